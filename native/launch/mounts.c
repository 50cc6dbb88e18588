/* What a sandbox finds at /proc, /dev and /sys. */
#include "launch/sandbox.h"

#include "common/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* Clones of the launcher's, taken while they can still be named. */
int step_prepared(struct plan *plan)
{
	plan->dev = sys_open_tree(AT_FDCWD, "../dev", SF_OPEN_TREE_CLONE | SF_AT_RECURSIVE);
	plan->empty = sys_open_tree(AT_FDCWD, "../empty", SF_OPEN_TREE_CLONE);
	return plan->dev < 0 || plan->empty < 0 ? -errno : 0;
}

/* Makes a directory of the sandbox's root where none is. The layers and the upper directory may
 * come from an earlier sandbox, so a link or a file in its place is removed, never followed. */
static int place(struct plan *plan, const char *path)
{
	struct stat stat;

	if (mkdir(path, 0755) == 0)
		return lchown(path, plan->uid, plan->uid) ? -errno : 0;
	if (errno != EEXIST || lstat(path, &stat))
		return -errno;
	if (S_ISDIR(stat.st_mode))
		return 0;
	if (unlink(path) || mkdir(path, 0755) || lchown(path, plan->uid, plan->uid))
		return -errno;
	return 0;
}

struct setting {
	const char *key, *value;
};

/* Mounts a new instance of a file system. */
static int mount_new(const char *type, const char *path, unsigned int attributes,
		     const struct setting *settings, size_t count)
{
	AUTO_CLOSE int fs = sys_fsopen(type);

	if (fs < 0)
		return -errno;
	for (size_t i = 0; i < count; i++)
		if (sys_fsconfig(fs,
				 settings[i].value ? SF_FSCONFIG_SET_STRING : SF_FSCONFIG_SET_FLAG,
				 settings[i].key, settings[i].value))
			return -errno;
	if (sys_fsconfig(fs, SF_FSCONFIG_CMD_CREATE, NULL, NULL))
		return -errno;
	AUTO_CLOSE int mount = sys_fsmount(fs, attributes);

	if (mount < 0 || sys_move_mount(mount, AT_FDCWD, path))
		return -errno;
	return 0;
}

int step_proc(struct plan *plan)
{
	int status = place(plan, "/proc");

	if (status < 0)
		return status;
	/* Mounted while still in the initial user namespace: inside another one the kernel would
	 * demand an unmasked instance to compare with. */
	return mount_new("proc", "/proc",
			 SF_MOUNT_ATTR_NOSUID | SF_MOUNT_ATTR_NODEV | SF_MOUNT_ATTR_NOEXEC, NULL,
			 0);
}

/* Terminals, and shared memory, both new for each sandbox. */
static int place_dev_mounts(struct plan *plan)
{
	char uid[16], tty[16];

	snprintf(uid, sizeof(uid), "%u", plan->uid);
	snprintf(tty, sizeof(tty), "%u", plan->uid + 5); /* the group tty of Debian and others */
	const struct setting pts[] = {
		{ "newinstance", NULL }, { "ptmxmode", "0666" }, { "mode", "0620" },
		{ "gid", tty },		 { "max", "512" }, /* the host's own number of terminals is
							      shared by all */
	};
	const struct setting shm[] = {
		{ "size", "64m" }, { "nr_inodes", "16384" }, { "mode", "1777" },
		{ "uid", uid },	   { "gid", uid },
	};
	int status;

	status = mount_new("devpts", "/dev/pts", SF_MOUNT_ATTR_NOSUID | SF_MOUNT_ATTR_NOEXEC, pts,
			   COUNT(pts));
	if (status < 0)
		return status;
	return mount_new("tmpfs", "/dev/shm", SF_MOUNT_ATTR_NOSUID | SF_MOUNT_ATTR_NODEV, shm,
			 COUNT(shm));
}

int step_dev(struct plan *plan)
{
	int status = place(plan, "/dev");

	if (status < 0)
		return status;
	if (sys_move_mount(plan->dev, AT_FDCWD, "/dev"))
		return -errno;
	return place_dev_mounts(plan);
}

/* Nothing of the host's hardware is shown. One empty file system serves every sandbox. */
int step_sys(struct plan *plan)
{
	int status = place(plan, "/sys");

	if (status < 0)
		return status;
	return sys_move_mount(plan->empty, AT_FDCWD, "/sys") ? -errno : 0;
}

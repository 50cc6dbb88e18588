/*
 * The file system of layers that are read on demand: a FUSE mount at chunks/, seen in the
 * launcher's namespace only. A process of the node answers the kernel's requests. The launcher
 * never reads from it; it keeps the descriptor, so that the server may die and another go on,
 * and hands a duplicate to every node that asks.
 */
#include "launch/launcher.h"

#include "common/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static int make_mount(int device)
{
	AUTO_CLOSE int fs = sys_fsopen("fuse");
	char number[16];

	if (fs < 0)
		return -errno;
	snprintf(number, sizeof(number), "%d", device);
	const char *const options[][2] = {
		{ "source", "chunks" }, { "fd", number },    { "rootmode", "40000" },
		{ "user_id", "0" },	{ "group_id", "0" }, { "max_read", "1048576" },
	};

	for (size_t i = 0; i < COUNT(options); i++)
		if (sys_fsconfig(fs, SF_FSCONFIG_SET_STRING, options[i][0], options[i][1]))
			return -errno;
	/* A sandbox's processes read through it, whoever they are. */
	if (sys_fsconfig(fs, SF_FSCONFIG_SET_FLAG, "allow_other", NULL) ||
	    sys_fsconfig(fs, SF_FSCONFIG_CMD_CREATE, NULL, NULL))
		return -errno;
	int mount = sys_fsmount(fs, SF_MOUNT_ATTR_RDONLY | SF_MOUNT_ATTR_NODEV |
					SF_MOUNT_ATTR_NOSUID | SF_MOUNT_ATTR_NOEXEC);

	return mount < 0 ? -errno : mount;
}

int chunks_open(struct launcher *l, struct failure *failure)
{
	if (l->chunks >= 0)
		return 0;
	AUTO_CLOSE int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (device < 0)
		return fail(failure, errno, "chunks", "cannot open /dev/fuse: %s", strerror(errno));
	AUTO_CLOSE int mount = make_mount(device);

	if (mount < 0)
		return fail(failure, -mount, "chunks", "cannot make a FUSE mount: %s",
			    strerror(-mount));
	if (mkdir("chunks", 0700) && errno != EEXIST)
		return fail(failure, errno, "chunks", "cannot make a place for chunks");
	if (sys_move_mount(mount, AT_FDCWD, "chunks"))
		return fail(failure, errno, "chunks", "cannot attach the mount: %s",
			    strerror(errno));
	/* Among those that every child closes. */
	l->chunks = fcntl(device, F_DUPFD_CLOEXEC, SLOT_END);
	return l->chunks < 0 ? -errno : 0;
}

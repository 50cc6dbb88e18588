/* The sandbox's root: an overlay of id-mapped layers, then the pivot into it. */
#include "launch/sandbox.h"

#include "common/sys.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* The working directory of launcher and child is the launcher's tmpfs, with stage/l0, stage/l1 ...
 * prepared; what is mounted there is seen in this namespace only. */
int step_layers(struct plan *plan)
{
	struct sf_mount_attr attr = {
		.attr_set = SF_MOUNT_ATTR_IDMAP | SF_MOUNT_ATTR_RDONLY | SF_MOUNT_ATTR_NODEV,
		.userns_fd = (uint64_t)plan->userns,
	};
	char path[32];

	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return -errno;
	for (unsigned int i = 0; i < plan->lower_count; i++) {
		snprintf(path, sizeof(path), "layers/%u", plan->lowers[i]);
		AUTO_CLOSE int tree = sys_open_tree(AT_FDCWD, path, SF_OPEN_TREE_CLONE);

		if (tree < 0)
			return -errno;
		if (sys_mount_setattr(tree, "", SF_AT_EMPTY_PATH, &attr))
			return fail(&plan->failure, errno, "layers",
				    "cannot map ids of layer %u: %s", i, strerror(errno));
		snprintf(path, sizeof(path), "stage/l%u", i);
		if (sys_move_mount(tree, AT_FDCWD, path))
			return -errno;
	}
	return 0;
}

/* Makes the directory if need be and gives it to the sandbox's root. */
static int own_dir(struct plan *plan, const char *path)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		return fail(&plan->failure, errno, "overlay", "cannot make %.150s: %s", path,
			    strerror(errno));
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || fchown(fd, plan->uid, plan->uid) || fchmod(fd, 0755)) {
		int error = errno;

		close_and_forget(&fd);
		return fail(&plan->failure, error, "overlay", "cannot own %.150s: %s", path,
			    strerror(error));
	}
	return fd;
}

/* What the kernel has to say about a failed mount, else the plain error. */
static int explain(struct plan *plan, int fs, int error)
{
	char log[160];
	ssize_t size = read(fs, log, sizeof(log) - 1);
	const char *text = strerror(error);

	if (size > 2) {
		log[size] = '\0';
		log[strcspn(log, "\n")] = '\0';
		text = log + 2; /* after the letter for its level */
	}
	return fail(&plan->failure, error, "overlay", "cannot stack the layers: %s", text);
}

static int configure(struct plan *plan, int fs, int upper, int work)
{
	char lower[LOWERS_MAX * 4], upper_path[32], work_path[32];
	size_t used = 0;

	for (unsigned int i = 0; i < plan->lower_count; i++)
		used += (size_t)snprintf(lower + used, sizeof(lower) - used, "%sl%u",
					 i > 0 ? ":" : "", i);
	/* By descriptor: no characters to escape, and no host path in the sandbox's mountinfo. */
	snprintf(upper_path, sizeof(upper_path), "/proc/self/fd/%d", upper);
	snprintf(work_path, sizeof(work_path), "/proc/self/fd/%d", work);
	const char *const options[][2] = {
		{ "source", "sandbox" },	{ "lowerdir", lower }, { "upperdir", upper_path },
		{ "workdir", work_path },	{ "index", "off" },    { "metacopy", "off" },
		{ "redirect_dir", "nofollow" }, { "xino", "off" },
	};

	for (size_t i = 0; i < COUNT(options); i++)
		if (sys_fsconfig(fs, SF_FSCONFIG_SET_STRING, options[i][0], options[i][1]))
			return explain(plan, fs, errno);
	/* No sync of the whole upper file system when a sandbox ends; packing syncs for itself. */
	if (sys_fsconfig(fs, SF_FSCONFIG_SET_FLAG, "volatile", NULL) ||
	    sys_fsconfig(fs, SF_FSCONFIG_CMD_CREATE, NULL, NULL))
		return explain(plan, fs, errno);
	return 0;
}

static int mount_overlay(struct plan *plan)
{
	AUTO_CLOSE int upper = own_dir(plan, plan->upper);

	if (upper < 0)
		return upper;
	AUTO_CLOSE int work = own_dir(plan, plan->work);

	if (work < 0)
		return work;
	/* A sandbox that had the same upper before has left a mark that says "not synced", at which
	 * the kernel would refuse. The node knows, and wants it mounted again. */
	if ((unlinkat(work, "work/incompat/volatile/dirty", 0) ||
	     unlinkat(work, "work/incompat/volatile", AT_REMOVEDIR)) &&
	    errno != ENOENT)
		return -errno;
	AUTO_CLOSE int fs = sys_fsopen("overlay");

	if (fs < 0)
		return -errno;
	int status = configure(plan, fs, upper, work);

	if (status < 0)
		return status;
	plan->root = sys_fsmount(fs, SF_MOUNT_ATTR_NODEV);
	return plan->root < 0 ? -errno : 0;
}

int step_overlay(struct plan *plan)
{
	if (chdir("stage"))
		return -errno;
	return mount_overlay(plan);
}

/* Into a copy of the ground (stage.c), which drops the copy of the launcher's mounts, and the
 * overlay on top. What lies below is empty, and nobody inside can take its cover off. */
int step_pivot(struct plan *plan)
{
	if (setns(GROUND_FD, CLONE_NEWNS) || unshare(CLONE_NEWNS) ||
	    sys_move_mount(plan->root, AT_FDCWD, "/"))
		return -errno;
	if (fchdir(plan->root) || chroot(".") || chdir("/"))
		return -errno;
	close(GROUND_FD);
	close_and_forget(&plan->root);
	return 0;
}

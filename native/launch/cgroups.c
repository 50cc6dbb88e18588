/* Joining the cgroups that the node has prepared, before anything of the sandbox exists. */
#include "launch/sandbox.h"

#include "common/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static int join(int dir)
{
	/* v1's "tasks" first: moving one thread that is the caller itself needs no lock over the
	 * whole machine, which costs "cgroup.procs" a grace period of some milliseconds. */
	AUTO_CLOSE int fd = openat(dir, "tasks", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		fd = openat(dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		return -errno;
	return 0;
}

static int join_path(struct plan *plan, const char *path)
{
	AUTO_CLOSE int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	int status = dir < 0 ? -errno : join(dir);

	if (status < 0)
		return fail(&plan->failure, -status, "cgroup", "cannot join %.150s: %s", path,
			    strerror(-status));
	return 0;
}

/* The sandbox's root may make child groups, move its processes among them and nothing else. */
static int hand_over(struct plan *plan, int dir)
{
	static const char *const files[] = { "cgroup.procs", "cgroup.threads",
					     "cgroup.subtree_control" };

	if (fchownat(dir, "", plan->uid, plan->uid, AT_EMPTY_PATH))
		return -errno;
	for (size_t i = 0; i < COUNT(files); i++)
		if (fchownat(dir, files[i], plan->uid, plan->uid, 0) && errno != ENOENT)
			return -errno;
	return 0;
}

int step_cgroups(struct plan *plan)
{
	int status;

	for (unsigned int i = 0; i < plan->cgroup_count; i++) {
		status = join_path(plan, plan->cgroups[i]);
		if (status < 0)
			return status;
	}
	if (plan->cgroup2 == NULL)
		return 0;
	/* The launcher has cloned us into this one. A clone of the mount, not the directory itself,
	 * so that ".." ends here for whoever holds the descriptor. */
	plan->cgroup = sys_open_tree(AT_FDCWD, plan->cgroup2, SF_OPEN_TREE_CLONE);
	status = plan->cgroup < 0 ? -errno : hand_over(plan, plan->cgroup);
	if (status < 0)
		return fail(&plan->failure, -status, "cgroup", "cannot hand over %.150s: %s",
			    plan->cgroup2, strerror(-status));
	return 0;
}

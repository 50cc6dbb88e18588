/*
 * Who: the child that the launcher clones for one sandbox, first process of a new pid and mount
 * namespace. What it may do: everything, as root of the host, until step_user; from then on only
 * what root of its own user namespace may; after step_seccomp only what an agent needs.
 *
 * The steps stand in the order that works: cgroups first, so that all memory is charged to the
 * sandbox; mounts while still root of the host, so that the mount namespace stays out of the
 * sandbox's hands; network, ipc, uts and cgroup namespaces after the user namespace, which so
 * becomes their owner.
 */
#include "launch/sandbox.h"

#include "agent/agent.h"
#include "common/sys.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Leaves the launcher's descriptors behind. Until this has run they are shared with it, so no
 * other descriptor may be opened or closed. */
static int step_descriptors(struct plan *plan)
{
	if (sys_close_range(SLOT_END, ~0u, SF_CLOSE_RANGE_UNSHARE))
		return -errno;
	/* All but the ground and the slot of our own, which begins with the channel. */
	unsigned int slot = (unsigned int)plan->channel;

	if (sys_close_range(3, GROUND_FD - 1, 0) || sys_close_range(slot + SLOT_SIZE, SLOT_END, 0))
		return -errno;
	return slot > SLOT_FIRST && sys_close_range(SLOT_FIRST, slot - 1, 0) ? -errno : 0;
}

static const struct step {
	const char *name;
	int (*run)(struct plan *plan);
} steps[] = {
	{ "descriptors", step_descriptors },
	{ "limits", step_limits },
	{ "cgroup", step_cgroups },
	{ "layers", step_layers },
	{ "overlay", step_overlay },
	{ "prepared", step_prepared },
	{ "pivot", step_pivot },
	{ "proc", step_proc },
	{ "dev", step_dev },
	{ "sys", step_sys },
	{ "masks", step_masks },
	{ "user", step_user },
	{ "namespaces", step_namespaces },
	{ "files", step_files },
	{ "privileges", step_privileges },
	{ "seccomp", step_seccomp },
};

enum { AGENT_CHANNEL = 3, AGENT_CGROUP = 4, AGENT_STATUS = 5, AGENT_FDS = 6 };

/* Puts the descriptors that remain where the agent expects them and closes all others. */
static int arrange(struct plan *plan)
{
	AUTO_CLOSE int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int high[3] = { plan->channel, plan->cgroup, plan->status };

	for (int i = 0; i < 3; i++)
		if (high[i] >= 0)
			high[i] = fcntl(high[i], F_DUPFD_CLOEXEC, SLOT_END);
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0)
		return -errno;
	close(AGENT_CGROUP);
	if (dup3(high[0], AGENT_CHANNEL, O_CLOEXEC) < 0 ||
	    dup3(high[2], AGENT_STATUS, O_CLOEXEC) < 0 ||
	    (high[1] >= 0 && dup3(high[1], AGENT_CGROUP, O_CLOEXEC) < 0))
		return -errno;
	null = -1; /* closed with the rest */
	return sys_close_range(AGENT_FDS, ~0u, 0) ? -errno : 0;
}

static void report_and_exit(struct plan *plan, const char *step, int error, int status_fd)
{
	if (plan->failure.error == 0)
		fail(&plan->failure, error, step, "%s", strerror(error));
	struct failure failure = plan->failure;

	if (write(status_fd, &failure, sizeof(failure)) < 0)
		_exit(2);
	_exit(1);
}

void sandbox_become(struct plan *plan)
{
	for (size_t i = 0; i < COUNT(steps); i++) {
		int status = steps[i].run(plan);

		if (status < 0)
			report_and_exit(plan, steps[i].name, -status, plan->status);
	}
	int status = arrange(plan);

	if (status < 0)
		report_and_exit(plan, "arrange", -status, plan->status);
	struct agent_options options = {
		.channel = AGENT_CHANNEL,
		.cgroup = plan->cgroup >= 0 ? AGENT_CGROUP : -1,
		.ready = AGENT_STATUS,
		.nofile = plan->nofile,
		.fsize = plan->fsize,
	};

	munmap(plan->packet, SF_LAUNCHER_MAX); /* it names paths of the host */
	agent_run(&options);
}

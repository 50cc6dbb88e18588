/* Limits, ids and namespaces: how the child stops being root of the host. */
#include "launch/sandbox.h"

#include "common/sys.h"
#include "launch/caps.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { AGENT_FILES = 65536 };

/* What protects the launcher from the end of memory must not protect its sandboxes: whoever may
 * lower a score once may do so always, and so may all descendants. So the agent's own score is not
 * lowered either; its commands raise theirs (agent/child.c). Where this may not be written the
 * score is no lower than that already. */
static void reset_oom_score(void)
{
	AUTO_CLOSE int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "0", 1) < 0)
		errno = 0;
}

int step_limits(struct plan *plan)
{
	/* The agent's own: what the sandbox was given binds its commands (agent/child.c). */
	struct rlimit core = { 0, 0 }, files;

	if (getrlimit(RLIMIT_NOFILE, &files))
		return -errno;
	files.rlim_max = MIN(files.rlim_max, (rlim_t)AGENT_FILES);
	files.rlim_cur = files.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &files) || setrlimit(RLIMIT_CORE, &core))
		return -errno;
	(void)plan;
	reset_oom_score();
	return 0;
}

int step_user(struct plan *plan)
{
	if (setns(plan->userns, CLONE_NEWUSER))
		return -errno;
	/* Straight to the kernel: C libraries would look for threads to tell. */
	if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 0, 0, 0) ||
	    syscall(SYS_setresuid, 0, 0, 0))
		return -errno;
	/* Left without a capability over the old session, so that nobody inside inherits it. */
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
		return -errno;
	return 0;
}

/* Made after entering the user namespace, which thereby owns them; or made before by a helper
 * that had entered it (spaces.c). */
static int enter_spaces(struct plan *plan)
{
	if (plan->spaces[0] >= 0)
		return spaces_enter(plan->spaces);
	if (unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS))
		return -errno;
	return spaces_loopback_up();
}

int step_namespaces(struct plan *plan)
{
	int status = enter_spaces(plan);

	if (status < 0)
		return status;
	if (unshare(SF_CLONE_NEWCGROUP) || sethostname(plan->hostname, strlen(plan->hostname)))
		return -errno;
	return 0;
}

static int write_if_missing(const char *path, const char *text)
{
	AUTO_CLOSE int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0644);

	if (fd < 0)
		return errno == EEXIST || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
	return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

/* Files that programs expect and bare layers lack. Done as the sandbox's root, after the pivot:
 * whatever links lie about lead nowhere but into the sandbox. */
int step_files(struct plan *plan)
{
	int status;

	umask(0);
	if (mkdir("/etc", 0755) && errno != EEXIST)
		return -errno;
	if (mkdir("/tmp", 01777) && errno != EEXIST)
		return -errno;
	status = write_if_missing("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
	if (status == 0)
		status = write_if_missing("/etc/hostname", plan->hostname);
	if (status == 0)
		status = write_if_missing("/etc/resolv.conf", "");
	return status;
}

int step_privileges(struct plan *plan)
{
	(void)plan;
	int status = caps_reduce();

	if (status < 0)
		return status;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
		return -errno;
	/* After the last change of ids, which clears it: with the launcher its sandboxes go. */
	return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) ? -errno : 0;
}

/*
 * Who: the child of the agent, between clone and exec of a command.
 * What it may do: at first what the agent may; then what the command's user may, and no longer
 * clone3. It closes everything but its three streams and the pipe that tells of a failure.
 */
#include "agent/process.h"

#include "common/sys.h"
#include "launch/seccomp.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { STATUS_FD = 3, SOFT_NOFILE = 1024 };

__attribute__((noreturn)) static void give_up(int status_fd, enum child_step step, int error)
{
	struct child_failure failure = { error, step };

	if (write(status_fd, &failure, sizeof(failure)) < 0)
		_exit(126);
	_exit(127);
}

static int arrange_streams(struct launch *l)
{
	if (dup2(l->in, 0) < 0 || dup2(l->out, 1) < 0 || dup2(l->err, 2) < 0)
		return -errno;
	if (l->status != STATUS_FD && dup3(l->status, STATUS_FD, O_CLOEXEC) < 0)
		return -errno;
	l->status = STATUS_FD;
	return sys_close_range(STATUS_FD + 1, ~0u, 0) ? -errno : 0;
}

static int become(const struct identity *identity)
{
	if (syscall(SYS_setgroups, identity->group_count, identity->groups) ||
	    syscall(SYS_setresgid, identity->gid, identity->gid, identity->gid) ||
	    syscall(SYS_setresuid, identity->uid, identity->uid, identity->uid))
		return -errno;
	return 0;
}

/*
 * When memory runs out a command goes before the agent, however small it is: half of the memory
 * there is counts as its own beside what it uses. It may take that back, but not go below the
 * agent. The file belongs to the host's root as long as this process may not be dumped. For the
 * moment in which it may, a process of the same user could reach into it, and would find only what
 * it has itself: no descriptors, the same rights, clone3 hidden, and none of the launcher's memory.
 */
static void raise_oom_score(void)
{
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, "500", 3) != 3)
		errno = 0; /* it is higher already; nothing more can be done here */
	close_and_forget(&fd);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static void limit_files(const struct launch *l)
{
	struct rlimit files, size = { l->fsize, l->fsize };

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		if (l->nofile > 0) /* more than there is takes a capability that nobody here has */
			files.rlim_max = MIN(files.rlim_max, (rlim_t)l->nofile);
		files.rlim_cur = MIN(files.rlim_max, (rlim_t)SOFT_NOFILE);
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (l->fsize > 0)
		setrlimit(RLIMIT_FSIZE, &size);
}

static int enter_cwd(const struct launch *l)
{
	bool is_home = chdir(l->identity.home) == 0;

	if (!is_home && chdir("/"))
		return -errno;
	return l->cwd != NULL && chdir(l->cwd) ? -errno : 0;
}

static const char *search_path(char **envp)
{
	for (; *envp != NULL; envp++)
		if (strncmp(*envp, "PATH=", 5) == 0)
			return *envp + 5;
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* A script without a "#!" line is given to the shell, as shells and execvp do. */
static int run(const char *path, struct launch *l)
{
	execve(path, l->argv, l->envp);
	if (errno != ENOEXEC)
		return errno;
	size_t count = 0;

	while (l->argv[count] != NULL)
		count++;
	char **argv = malloc((count + 2) * sizeof(*argv));

	if (argv == NULL)
		return ENOMEM;
	argv[0] = (char *)"sh";
	argv[1] = (char *)path;
	memcpy(argv + 2, l->argv + 1, count * sizeof(*argv));
	execve("/bin/sh", argv, l->envp);
	return ENOEXEC;
}

/* Looks the program up as a shell would. Returns the errno that tells most. */
static int run_from_path(struct launch *l)
{
	const char *program = l->argv[0], *at = search_path(l->envp);
	char path[PATH_MAX];
	int error = ENOENT;

	if (program[0] == '\0')
		return ENOENT;
	if (strchr(program, '/') != NULL)
		return run(program, l);
	for (;;) {
		size_t length = strcspn(at, ":");
		int size =
		    snprintf(path, sizeof(path), "%.*s%s%s", (int)MIN(length, (size_t)PATH_MAX), at,
			     length > 0 ? "/" : "", program);

		if (size > 0 && (size_t)size < sizeof(path)) {
			int result = run(path, l);

			if (result != ENOENT && result != ENOTDIR &&
			    (error == ENOENT || result != EACCES))
				error = result;
			if (result != ENOENT && result != ENOTDIR && result != EACCES)
				return result;
		}
		if (at[length] == '\0')
			return error;
		at += length + 1;
	}
}

void child_run(struct launch *l)
{
	sigset_t none;
	int status;

	signal(SIGPIPE, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	status = arrange_streams(l);
	if (status < 0)
		give_up(l->status, CHILD_SETUP, -status);
	if (l->is_terminal && ioctl(0, TIOCSCTTY, 0))
		give_up(l->status, CHILD_TERMINAL, errno);
	status = become(&l->identity);
	if (status < 0)
		give_up(l->status, CHILD_USER, -status);
	limit_files(l);
	umask(022);
	status = enter_cwd(l);
	if (status < 0)
		give_up(l->status, CHILD_CWD, -status);
	/* Where the agent runs without a filter of its own, as under another runtime, the command
	 * may lack the right to add one, and goes without. */
	seccomp_hide_clone3();
	raise_oom_score();
	give_up(l->status, CHILD_PROGRAM, run_from_path(l));
}

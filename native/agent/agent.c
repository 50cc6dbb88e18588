/*
 * Who: the agent, pid 1 of a sandbox, a process that never runs anything but this program. In
 * the initial pid namespace it is a child of the launcher.
 * What it may do: what root of the sandbox's user namespace may with the few capabilities kept,
 * under the sandbox's own system call filter. It holds the channel to the node and a directory
 * of the sandbox's cgroup, and nothing else of the host.
 *
 * Everything inside the sandbox is hostile to it: files, links, process names, what comes through
 * pipes. It cannot be traced or signalled from inside, blocks on nothing but epoll, and keeps no
 * more memory for a process or a request than the limits in wire.h and agent.h say.
 */
#include "agent/agent.h"

#include "agent/process.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>

uint64_t agent_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void on_signal(struct source *source, uint32_t events)
{
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof(info)) == sizeof(info))
		;
	processes_reap(source->owner);
}

/* pid 1 ignores what it has no handler for; only the end of children is of interest. Writing to
 * a command that has closed its input raises SIGPIPE, which does nothing to pid 1 either, but may
 * to an agent that another runtime has started under some other number. */
static void signals_start(struct agent *a)
{
	sigset_t set;

	/* What the launcher ignores its commands must not: clearing handlers on clone leaves
	 * ignored signals ignored. */
	for (int number = 1; number < _NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN); /* child.c undoes it */
	a->signals.owner = a;
	a->signals.ready = on_signal;
	source_add(a->epoll, &a->signals, signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), EPOLLIN);
}

void agent_run(const struct agent_options *options)
{
	struct agent *a = calloc(1, sizeof(*a));

	if (a == NULL)
		_exit(1);
	a->options = *options;
	a->speakers_end = &a->speakers;
	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	a->timer.fd = -1;
	a->timer.owner = a;
	a->timer.ready = on_deadline;
	umask(0);
	prctl(PR_SET_NAME, "init", 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	signals_start(a);
	channel_start(a);
	if (options->ready >= 0) {
		if (write(options->ready, "", 1) != 1)
			_exit(1);
		close(options->ready);
	}
	for (;;) {
		jobs_step(a);
		channel_pump(a);
		/* With jobs that can go on the loop only looks for events; idle, it blocks. Asked
		 * after the pump, which may just have made room for what a job has to say. */
		loop_once(a->epoll, jobs_can_go_on(a) ? 0 : -1);
	}
}

/*
 * The network, ipc and uts namespaces of a sandbox, made ahead of need. They belong to the user
 * namespace that the sandbox will enter, as if it had made them itself, and serve one sandbox.
 *
 * Namespaces get their owner from the process that makes them, and nobody returns from a user
 * namespace, so a helper process makes them. It shares the launcher's memory and descriptors,
 * which costs neither page tables nor a table of descriptors, and the launcher waits for it.
 */
#include "launch/spaces.h"

#include "common/base.h"

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { STACK_SIZE = 16384 };

static const struct {
	int flag;
	const char *path;
} kinds[SPACES] = {
	{ CLONE_NEWNET, "/proc/self/ns/net" },
	{ CLONE_NEWIPC, "/proc/self/ns/ipc" },
	{ CLONE_NEWUTS, "/proc/self/ns/uts" },
};

struct order {
	int userns;
	int *spaces;
	int status;
};

int spaces_loopback_up(void)
{
	AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq request = { .ifr_name = "lo" };

	if (fd < 0)
		return -errno;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	return ioctl(fd, SIOCSIFFLAGS, &request) ? -errno : 0;
}

static int make_in(const struct order *order)
{
	if (setns(order->userns, CLONE_NEWUSER) ||
	    unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS))
		return -errno;
	int status = spaces_loopback_up();

	for (int i = 0; i < SPACES && status == 0; i++) {
		order->spaces[i] = open(kinds[i].path, O_RDONLY | O_CLOEXEC);
		if (order->spaces[i] < 0)
			status = -errno;
	}
	return status;
}

/* In the helper. What it opens stays open in the launcher. */
static int help(void *argument)
{
	struct order *order = argument;

	order->status = make_in(order);
	return 0;
}

int spaces_make(int userns, int spaces[SPACES])
{
	alignas(16) char stack[STACK_SIZE];
	struct order order = { .userns = userns, .spaces = spaces, .status = -ECHILD };

	for (int i = 0; i < SPACES; i++)
		spaces[i] = -1;
	pid_t pid =
	    clone(help, stack + STACK_SIZE, CLONE_VM | CLONE_VFORK | CLONE_FILES | SIGCHLD, &order);

	if (pid < 0)
		return -errno;
	RETRY(waitpid(pid, NULL, 0));
	if (order.status < 0)
		spaces_drop(spaces);
	return order.status;
}

void spaces_drop(int spaces[SPACES])
{
	for (int i = 0; i < SPACES; i++)
		close_and_forget(&spaces[i]);
}

int spaces_enter(const int spaces[SPACES])
{
	for (int i = 0; i < SPACES; i++)
		if (setns(spaces[i], kinds[i].flag))
			return -errno;
	return 0;
}

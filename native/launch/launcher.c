/*
 * Who: the launcher, one process per machine, started by the node service and outliving it.
 * What it may do: everything, as root; it takes requests from root only, mounts layers in a mount
 * namespace of its own, and clones the children that become sandboxes. It reads nothing that a
 * sandbox has written except wait statuses and, before a sandbox's set-up is over, one fixed
 * structure from a pipe.
 *
 * Its state lies in a region that forked children do not get: what it changes there costs no
 * copies in thousands of sandboxes, and no sandbox holds a list of the others.
 */
#include "launch/launch.h"

#include "common/sys.h"
#include "launch/launcher.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

int fail(struct failure *failure, int error, const char *step, const char *format, ...)
{
	va_list list;

	memset(failure, 0, sizeof(*failure));
	failure->error = error;
	snprintf(failure->step, sizeof(failure->step), "%s", step);
	va_start(list, format);
	vsnprintf(failure->message, sizeof(failure->message), format, list);
	va_end(list);
	return -error;
}

/* ---- what is said to the node ---- */

static void drop_first_letter(struct launcher *l)
{
	struct letter *letter = l->letters;

	l->letters = letter->next;
	if (l->letters == NULL)
		l->letters_end = &l->letters;
	close_and_forget(&letter->fd);
	free(letter);
}

static void node_gone(struct launcher *l)
{
	while (l->letters != NULL)
		drop_first_letter(l);
	if (l->node.fd < 0)
		return;
	source_close(l->epoll, &l->node);
	l->connection++;
	l->orphan_since_ms = now_ms();
}

static bool send_letter(struct launcher *l, const struct letter *letter)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec piece = { (void *)letter->data, letter->size };
	struct msghdr head = { .msg_iov = &piece, .msg_iovlen = 1 };

	if (letter->fd >= 0) {
		head.msg_control = control;
		head.msg_controllen = sizeof(control);
		struct cmsghdr *part = CMSG_FIRSTHDR(&head);

		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(part), &letter->fd, sizeof(int));
	}
	return RETRY(sendmsg(l->node.fd, &head, MSG_NOSIGNAL | MSG_DONTWAIT)) >= 0;
}

static uint32_t node_events(const struct launcher *l)
{
	return (l->setups < SETUPS_MAX && !l->is_quitting ? EPOLLIN : 0) |
	       (l->letters != NULL ? EPOLLOUT : 0);
}

void launcher_accepts_more(struct launcher *l)
{
	source_want(l->epoll, &l->node, node_events(l));
}

static void send_letters(struct launcher *l)
{
	while (l->letters != NULL && l->node.fd >= 0) {
		if (!send_letter(l, l->letters)) {
			if (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS)
				node_gone(l);
			break;
		}
		drop_first_letter(l);
	}
	launcher_accepts_more(l);
}

void launcher_say(struct launcher *l, const struct message *message, int fd)
{
	if (l->node.fd < 0)
		return;
	struct letter *letter = malloc(sizeof(*letter) + message->size);

	if (letter == NULL) {
		node_gone(l); /* it will connect again and be told */
		return;
	}
	letter->next = NULL;
	/* A copy: the sandbox may be gone by the time the letter is sent. */
	letter->fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, SLOT_END);
	letter->size = message->size;
	memcpy(letter->data, message->data, message->size);
	*l->letters_end = letter;
	l->letters_end = &letter->next;
	if (l->letters == letter)
		send_letters(l);
}

void launcher_refuse(struct launcher *l, const char *seq, const struct failure *failure)
{
	char data[512];
	struct message answer = { .data = data, .room = sizeof(data) };

	message_add(&answer, "seq", "%s", seq);
	message_add(&answer, "ok", "0");
	message_add(&answer, "errno", "%d", failure->error);
	message_add(&answer, "step", "%s", failure->step);
	message_add(&answer, "message", "%s", failure->message);
	launcher_say(l, &answer, -1);
}

/* ---- what comes from it ---- */

static void on_node(struct source *source, uint32_t events)
{
	struct launcher *l = source->owner;

	if (events & EPOLLOUT)
		send_letters(l);
	if (source->fd < 0 || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	ssize_t size = recv(source->fd, l->packet, SF_LAUNCHER_MAX, MSG_DONTWAIT | MSG_TRUNC);

	if (size < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (size <= 0) {
		node_gone(l);
		return;
	}
	struct message message = { l->packet, MIN((size_t)size, SF_LAUNCHER_MAX), SF_LAUNCHER_MAX };

	if (size > SF_LAUNCHER_MAX)
		message.size = 0; /* cut short: not sound */
	requests_serve(l, &message);
}

static void on_listener(struct source *source, uint32_t events)
{
	struct launcher *l = source->owner;
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd = accept4(source->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)events;
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != 0) {
		close(fd);
		return;
	}
	node_gone(l);
	l->connection++;
	l->orphan_since_ms = -1;
	l->node.ready = on_node;
	if (source_add(l->epoll, &l->node, fd, EPOLLIN) < 0)
		node_gone(l);
	launcher_accepts_more(l);
}

/* ---- start ---- */

static void reserve_slots(struct launcher *l)
{
	l->null = fcntl(open("/dev/null", O_RDWR | O_CLOEXEC), F_DUPFD_CLOEXEC, SLOT_END);
	for (int fd = GROUND_FD; fd < SLOT_END; fd++)
		if (dup3(l->null, fd, O_CLOEXEC) < 0)
			die("cannot reserve descriptors");
}

static void raise_limits(void)
{
	struct rlimit files = { 1048576, 1048576 };

	if (setrlimit(RLIMIT_NOFILE, &files) == 0)
		return;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
}

static int listen_in(int dir)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask = umask(0177);

	/* Through the descriptor, so that the directory's own path may be of any length. */
	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/launcher.sock", dir);
	if (unlinkat(dir, "launcher.sock", 0) && errno != ENOENT)
		die("cannot replace launcher.sock");
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 8))
		die("cannot listen");
	umask(mask);
	return fd;
}

static struct launcher *start(const struct options *options)
{
	struct launcher *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (l == MAP_FAILED || madvise(l, sizeof(*l), MADV_DONTFORK))
		die("cannot allocate");
	l->packet =
	    mmap(NULL, SF_LAUNCHER_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->packet == MAP_FAILED)
		die("cannot allocate");
	l->options = *options;
	l->letters_end = &l->letters;
	l->chunks = -1;
	l->node.fd = -1;
	l->listener.owner = l->node.owner = l;
	l->listener.ready = on_listener;
	l->orphan_since_ms = now_ms();
	raise_limits();
	reserve_slots(l);
	stage_own_mounts();
	/* Only now: nothing can be mounted below a directory of the old namespace. */
	l->run_dir = open(options->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (l->run_dir < 0)
		die("cannot open %s", options->run_dir);
	stage_make(l->run_dir);
	stage_make_ground();
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0 || source_add(l->epoll, &l->listener, listen_in(l->run_dir), EPOLLIN) < 0)
		die("cannot watch the socket");
	return l;
}

/* ---- running and ending ---- */

static void kill_all(struct launcher *l)
{
	for (uint32_t i = 0; i < l->sandbox_top; i++)
		if (l->sandboxes[i].child.fd >= 0 && l->sandboxes[i].state != SANDBOX_FREE)
			sys_pidfd_kill(l->sandboxes[i].child.fd, SIGKILL);
}

static bool any_alive(const struct launcher *l)
{
	for (uint32_t i = 0; i < l->sandbox_top; i++)
		if (l->sandboxes[i].state == SANDBOX_LIVE || l->sandboxes[i].state == SANDBOX_SETUP)
			return true;
	return false;
}

static int until(int64_t deadline, int64_t now, int timeout)
{
	int64_t left = MIN(MAX(deadline - now, 0), 3600 * 1000);

	return timeout < 0 || left < timeout ? (int)left : timeout;
}

/* Milliseconds until something is due; -1 when nothing is. */
static int next_timeout(const struct launcher *l, int64_t now)
{
	int timeout = -1;

	for (uint32_t at = l->first_setup; at != 0; at = l->sandboxes[at - 1].next_setup)
		if (l->sandboxes[at - 1].failure.error == 0)
			timeout = until(l->sandboxes[at - 1].deadline_ms, now, timeout);
	if (l->orphan_since_ms >= 0)
		timeout = until(l->orphan_since_ms + (int64_t)l->options.orphan_seconds * 1000, now,
				timeout);
	return timeout;
}

static void end(struct launcher *l)
{
	char data[64];
	struct message answer = { .data = data, .room = sizeof(data) };
	int64_t deadline = now_ms() + QUIT_SECONDS * 1000;

	l->is_quitting = true;
	kill_all(l);
	while (any_alive(l) && now_ms() < deadline)
		loop_once(l->epoll, 100);
	layers_unmount(l);
	unlinkat(l->run_dir, "launcher.sock", 0);
	if (l->quit_seq[0] != '\0') {
		message_add(&answer, "seq", "%s", l->quit_seq);
		message_add(&answer, "ok", "1");
		launcher_say(l, &answer, -1);
		for (int i = 0; i < 50 && l->letters != NULL; i++)
			loop_once(l->epoll, 20);
	}
}

static void run(struct launcher *l)
{
	while (!l->is_quitting) {
		int64_t now = now_ms();

		setups_expire(l, now);
		if (l->orphan_since_ms >= 0 &&
		    now - l->orphan_since_ms >= (int64_t)l->options.orphan_seconds * 1000)
			break;
		loop_once(l->epoll, next_timeout(l, now));
	}
	end(l);
}

int launcher_main(const char *run_dir, unsigned long orphan_seconds)
{
	struct options options = { run_dir, orphan_seconds };

	setsid(); /* fails when it leads a session already, which is as good */
	umask(022);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	prctl(PR_SET_NAME, "sf-launcher", 0, 0, 0);
	run(start(&options));
	return 0;
}

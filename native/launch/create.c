/* Creating sandboxes, several at once, and what becomes of them. */
#include "launch/launcher.h"

#include "common/sys.h"
#include "launch/sandbox.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

static int slot_fd(int slot, int which)
{
	return SLOT_FIRST + slot * SLOT_SIZE + which;
}

static int slot_take(struct launcher *l)
{
	for (int i = 0; i < SETUPS_MAX; i++) {
		if (l->slot_used[i])
			continue;
		l->slot_used[i] = true;
		l->setups++;
		return i;
	}
	return -1;
}

/* Puts /dev/null back, so that nothing else comes to stand at the slot's numbers. */
static void slot_give_back(struct launcher *l, int slot)
{
	for (int which = 0; which < SLOT_SIZE; which++)
		dup3(l->null, slot_fd(slot, which), O_CLOEXEC);
	l->slot_used[slot] = false;
	l->setups--;
	launcher_accepts_more(l);
}

static int read_lowers(struct launcher *l, const struct message *message, struct plan *plan,
		       struct failure *failure)
{
	const char *digest = NULL;

	while ((digest = message_next(message, "lower", digest)) != NULL) {
		int index = layer_find(l, digest);

		if (index < 0)
			return fail(failure, ENOENT, "request", "layer %.100s is not mounted",
				    digest);
		if (plan->lower_count == LOWERS_MAX)
			return fail(failure, E2BIG, "request", "at most %d layers", LOWERS_MAX);
		plan->lowers[plan->lower_count++] = (unsigned int)index;
	}
	if (plan->lower_count == 0)
		return fail(failure, EINVAL, "request", "a sandbox needs at least one lower=");
	return 0;
}

int read_range(const struct message *message, unsigned long *base, unsigned long *count,
	       struct failure *failure)
{
	/* Host ids from 1: a range that holds the host's root is never meant. */
	if (message_number(message, "uid", 1, UINT32_MAX - 65536ul, base) ||
	    message_number(message, "ids", 1, 65536ul * 16, count) || *base + *count > UINT32_MAX)
		return fail(failure, EINVAL, "request", "uid= and ids= do not make a range of ids");
	return 0;
}

static int read_limits(const struct message *message, struct plan *plan, struct failure *failure)
{
	plan->nofile = 65536;
	plan->fsize = 0;
	if (message_get(message, "nofile") != NULL &&
	    message_number(message, "nofile", 64, 1048576, &plan->nofile))
		return fail(failure, EINVAL, "request", "nofile= is from 64 to 1048576");
	if (message_get(message, "fsize") != NULL &&
	    message_number(message, "fsize", 1, INT64_MAX, &plan->fsize))
		return fail(failure, EINVAL, "request", "fsize= is a number of bytes above 0");
	return 0;
}

static int read_plan(struct launcher *l, const struct message *message, struct plan *plan,
		     struct failure *failure)
{
	const char *cgroup = NULL;
	int status;

	plan->hostname = message_get(message, "hostname");
	plan->upper = message_get(message, "upper");
	plan->work = message_get(message, "work");
	plan->cgroup2 = message_get(message, "cgroup2");
	plan->cgroup = -1;
	status = read_limits(message, plan, failure);
	if (status < 0)
		return status;
	if (plan->hostname == NULL || strlen(plan->hostname) > 64 || plan->upper == NULL ||
	    plan->work == NULL || plan->upper[0] != '/' || plan->work[0] != '/')
		return fail(failure, EINVAL, "request",
			    "a sandbox needs hostname= and absolute upper= and work=");
	while ((cgroup = message_next(message, "cgroup", cgroup)) != NULL) {
		if (plan->cgroup_count == CGROUPS_MAX)
			return fail(failure, E2BIG, "request", "at most %d cgroups", CGROUPS_MAX);
		plan->cgroups[plan->cgroup_count++] = cgroup;
	}
	return read_lowers(l, message, plan, failure);
}

/* The last thing before a sandbox is on record: what is prepared for its range serves it alone,
 * whatever becomes of it. */
static int claim_range(struct launcher *l, const struct message *message, struct plan *plan,
		       struct userns **range, struct failure *failure)
{
	unsigned long base, count;
	int status = read_range(message, &base, &count, failure);

	if (status < 0)
		return status;
	status = userns_get(l, base, count, range);
	if (status < 0)
		return fail(failure, -status, "userns", "cannot make a user namespace: %s",
			    strerror(-status));
	plan->uid = (uid_t)base;
	return 0;
}

/* Gives up a sandbox's hold on layers and descriptors; its record stays. */
static void release(struct launcher *l, struct sandbox *sandbox)
{
	for (unsigned int i = 0; i < sandbox->lower_count; i++)
		l->layers[sandbox->lowers[i]].users--;
	sandbox->lower_count = 0;
	source_close(l->epoll, &sandbox->child);
	source_close(l->epoll, &sandbox->progress);
	close_and_forget(&sandbox->channel);
}

static void setup_over(struct launcher *l, struct sandbox *sandbox)
{
	uint32_t self = (uint32_t)(sandbox - l->sandboxes) + 1;
	uint32_t *at = &l->first_setup;

	source_close(l->epoll, &sandbox->progress);
	while (*at != self)
		at = &l->sandboxes[*at - 1].next_setup;
	*at = sandbox->next_setup;
	slot_give_back(l, sandbox->slot);
	sandbox->slot = -1;
}

static void answer_ready(struct launcher *l, struct sandbox *sandbox)
{
	char data[128];
	struct message answer = { .data = data, .room = sizeof(data) };

	sandbox->state = SANDBOX_LIVE;
	if (sandbox->connection != l->connection) {
		/* Asked for by a node service that is gone; its successor has said hello already.
		 */
		sandbox_tell(l, sandbox);
		return;
	}
	message_add(&answer, "seq", "%s", sandbox->seq);
	message_add(&answer, "ok", "1");
	message_add(&answer, "pid", "%d", sandbox->pid);
	launcher_say(l, &answer, sandbox->channel);
}

/* The set-up pipe: a failure, a byte when the agent runs, or its end when the child has died. */
static void on_progress(struct source *source, uint32_t events)
{
	struct sandbox *sandbox = CONTAINER(source, struct sandbox, progress);
	struct launcher *l = source->owner;
	struct failure failure = { 0 };
	ssize_t size = read(source->fd, &failure, sizeof(failure));

	(void)events;
	if (size == 1) {
		setup_over(l, sandbox);
		answer_ready(l, sandbox);
		return;
	}
	if (size == sizeof(failure)) {
		failure.step[sizeof(failure.step) - 1] = '\0';
		failure.message[sizeof(failure.message) - 1] = '\0';
		sandbox->failure = failure;
	}
	source_close(l->epoll, source); /* on_child answers */
}

static void on_child(struct source *source, uint32_t events)
{
	struct sandbox *sandbox = CONTAINER(source, struct sandbox, child);
	struct launcher *l = source->owner;

	(void)events;
	if (waitpid(sandbox->pid, &sandbox->status, WNOHANG) != sandbox->pid)
		return;
	if (sandbox->state == SANDBOX_SETUP && sandbox->progress.fd >= 0)
		on_progress(&sandbox->progress, EPOLLIN); /* what it said before it died */
	if (sandbox->state == SANDBOX_LIVE) {
		release(l, sandbox);
		sandbox->state = SANDBOX_GONE;
		sandbox_tell_exit(l, sandbox);
		return;
	}
	if (sandbox->failure.error == 0)
		fail(&sandbox->failure, ECHILD, "setup", "the set-up ended early, wait status %d",
		     sandbox->status);
	if (sandbox->connection == l->connection)
		launcher_refuse(l, sandbox->seq, &sandbox->failure);
	setup_over(l, sandbox);
	release(l, sandbox);
	registry_remove(l, sandbox);
}

static int start_child(struct launcher *l, struct sandbox *sandbox, struct plan *plan)
{
	AUTO_CLOSE int cgroup = -1;
	int pidfd = -1;
	struct sf_clone_args args = {
		.flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_FILES | SF_CLONE_PIDFD,
		.pidfd = (uintptr_t)&pidfd,
		.exit_signal = SIGCHLD,
	};

	if (plan->cgroup2 != NULL) {
		cgroup = open(plan->cgroup2, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (cgroup < 0)
			return fail(&plan->failure, errno, "cgroup", "cannot open %.150s: %s",
				    plan->cgroup2, strerror(errno));
		args.flags |= SF_CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)cgroup;
	}
	pid_t pid = sys_clone3(&args);

	if (pid == 0)
		sandbox_become(plan); /* in the child, *l and *sandbox do not exist */
	if (pid < 0)
		return fail(&plan->failure, errno, "clone", "cannot start a process: %s",
			    strerror(errno));
	sandbox->pid = pid;
	sandbox->child.ready = on_child;
	int status = source_add(l->epoll, &sandbox->child, pidfd, EPOLLIN);

	if (status < 0) { /* its record goes with this request, so it may not go on */
		sys_pidfd_kill(pidfd, SIGKILL);
		RETRY(waitpid(pid, NULL, 0));
	}
	return status;
}

/* Puts a duplicate into the slot; returns its number there, and notes the first failure. */
static int slot_put(int slot, int which, int fd, int *status)
{
	if (dup3(fd, slot_fd(slot, which), O_CLOEXEC) < 0 && *status == 0)
		*status = -errno;
	return slot_fd(slot, which);
}

static void slot_put_range(struct launcher *l, int slot, struct plan *plan, struct userns *range,
			   int *status)
{
	plan->userns = slot_put(slot, SLOT_USERNS, range->fd, status);
	for (int i = 0; i < SPACES; i++)
		plan->spaces[i] = userns_is_prepared(range)
				      ? slot_put(slot, SLOT_SPACES + i, range->spaces[i], status)
				      : -1;
	userns_unprepare(l, range); /* the slot has them now */
}

/* Makes the channel and the progress pipe and puts the child's ends into the slot. */
static int fill_slot(struct launcher *l, struct sandbox *sandbox, struct plan *plan,
		     struct userns *range)
{
	int pair[2], pipes[2], slot = sandbox->slot, status = 0;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	sandbox->channel = pair[0];
	if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK)) {
		status = -errno;
		close(pair[1]);
		return status;
	}
	sandbox->progress.ready = on_progress;
	status = source_add(l->epoll, &sandbox->progress, pipes[0], EPOLLIN);
	plan->channel = slot_put(slot, SLOT_CHANNEL, pair[1], &status);
	plan->status = slot_put(slot, SLOT_STATUS, pipes[1], &status);
	slot_put_range(l, slot, plan, range, &status);
	close(pair[1]);
	close(pipes[1]);
	return status;
}

static int begin(struct launcher *l, struct sandbox *sandbox, struct plan *plan,
		 struct userns *range)
{
	int status = fill_slot(l, sandbox, plan, range);

	if (status == 0)
		status = start_child(l, sandbox, plan);
	for (int which = SLOT_CHANNEL; which <= SLOT_STATUS && status < 0; which++)
		dup3(l->null, slot_fd(sandbox->slot, which), O_CLOEXEC);
	return status;
}

int sandbox_create(struct launcher *l, const struct message *message, struct failure *failure)
{
	const char *id = message_get(message, "id"), *seq = message_get(message, "seq");
	struct plan plan = { .packet = l->packet };
	struct userns *range;
	int status;

	if (id == NULL || id[0] == '\0' || strlen(id) >= ID_SIZE)
		return fail(failure, EINVAL, "request", "a sandbox needs id=, shorter than %d",
			    ID_SIZE);
	if (registry_find(l, id) != NULL)
		return fail(failure, EEXIST, "request", "there is a sandbox with this id");
	status = read_plan(l, message, &plan, failure);
	if (status == 0)
		status = claim_range(l, message, &plan, &range, failure);
	if (status < 0)
		return status;
	struct sandbox *sandbox = registry_add(l, id);

	if (sandbox == NULL)
		return fail(failure, ENOSPC, "request", "%d sandboxes are on record",
			    SANDBOXES_MAX);
	snprintf(sandbox->seq, sizeof(sandbox->seq), "%s", seq);
	sandbox->state = SANDBOX_SETUP;
	sandbox->connection = l->connection;
	sandbox->deadline_ms = now_ms() + SETUP_SECONDS * 1000;
	sandbox->slot = slot_take(l);
	status = begin(l, sandbox, &plan, range);
	if (status < 0) {
		*failure = plan.failure;
		slot_give_back(l, sandbox->slot);
		release(l, sandbox);
		registry_remove(l, sandbox);
		return status;
	}
	for (unsigned int i = 0; i < plan.lower_count; i++) {
		sandbox->lowers[sandbox->lower_count++] = (uint16_t)plan.lowers[i];
		l->layers[plan.lowers[i]].users++;
	}
	/* The child takes its own copy of the slot when it gets to it. Until the set-up is over the
	 * launcher's copy stays, so the pipe does not end with the child: on_child notices. */
	sandbox->next_setup = l->first_setup;
	l->first_setup = (uint32_t)(sandbox - l->sandboxes) + 1;
	return 0;
}

void setups_expire(struct launcher *l, int64_t now)
{
	for (uint32_t at = l->first_setup; at != 0; at = l->sandboxes[at - 1].next_setup) {
		struct sandbox *sandbox = &l->sandboxes[at - 1];

		if (sandbox->deadline_ms > now || sandbox->failure.error != 0)
			continue;
		fail(&sandbox->failure, ETIMEDOUT, "setup", "the set-up took more than %d seconds",
		     SETUP_SECONDS);
		sys_pidfd_kill(sandbox->child.fd, SIGKILL);
	}
}

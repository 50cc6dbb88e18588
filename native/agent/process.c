/* The records of commands, from EXEC to FORGET. */
#include "agent/process.h"

#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { REAPED_AT_ONCE = 256 };

struct process *process_find(struct agent *a, uint32_t id)
{
	struct process *p = a->processes[id % PROCESS_BUCKETS];

	while (p != NULL && p->id != id)
		p = p->next;
	return p;
}

struct process *process_add(struct agent *a, uint32_t id)
{
	struct process *p = calloc(1, sizeof(*p));

	if (p == NULL)
		return NULL;
	p->id = id;
	p->cgroup = -1;
	p->out.process = p->err.process = p->input.process = p;
	p->err.is_error = true;
	struct source *const sources[] = { &p->out.source, &p->err.source, &p->input.source,
					   &p->start };

	for (size_t i = 0; i < COUNT(sources); i++) {
		sources[i]->fd = -1;
		sources[i]->owner = a;
	}
	p->next = a->processes[id % PROCESS_BUCKETS];
	a->processes[id % PROCESS_BUCKETS] = p;
	a->process_count++;
	return p;
}

void process_lives(struct agent *a, struct process *p, pid_t pid)
{
	struct process **head = &a->living[(unsigned int)pid % PROCESS_BUCKETS];

	p->pid = pid;
	p->next_living = *head;
	*head = p;
}

/* Takes the living process with this pid out of its list; NULL for orphans of the sandbox. */
static struct process *take_living(struct agent *a, pid_t pid)
{
	struct process **at = &a->living[(unsigned int)pid % PROCESS_BUCKETS];

	while (*at != NULL && (*at)->pid != pid)
		at = &(*at)->next_living;
	struct process *p = *at;

	if (p != NULL)
		*at = p->next_living;
	return p;
}

void process_free(struct agent *a, struct process *p)
{
	struct process **at = &a->processes[p->id % PROCESS_BUCKETS];

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	a->process_count--;
	streams_close(a, p);
	input_close(a, p);
	source_close(a->epoll, &p->start);
	output_free(&p->output);
	ring_drop(&p->input.ring, p->input.ring.tail);
	group_remove(a, p->id, &p->cgroup);
	speakers_forget(a, p); /* last: closing the input makes it speak */
	free(p);
}

/* The command is over when its process is reaped and what it left in its pipes has been read. */
void process_settle(struct agent *a, struct process *p)
{
	if (p->state != PROCESS_DRAINING || p->out.source.fd >= 0 || p->err.source.fd >= 0)
		return;
	p->state = PROCESS_EXITED;
	process_speaks(a, p, SAY_EXIT);
}

static void tell_failed_start(struct agent *a, struct process *p)
{
	int error = p->start_error;
	const char *reason = strerror(error);

	if (p->start_step == CHILD_PROGRAM && error == ENOENT)
		reply_error(a, p->id, error, "no such program: %s", p->program);
	else if (p->start_step == CHILD_PROGRAM && error == EACCES)
		reply_error(a, p->id, error, "%s may not be executed by this user", p->program);
	else if (p->start_step == CHILD_PROGRAM)
		reply_error(a, p->id, error, "cannot run %s: %s", p->program, reason);
	else if (p->start_step == CHILD_CWD && error == ENOENT)
		reply_error(a, p->id, error, "working directory %s does not exist", p->cwd);
	else if (p->start_step == CHILD_CWD)
		reply_error(a, p->id, error, "cannot enter working directory %s: %s", p->cwd,
			    reason);
	else if (p->start_step == CHILD_USER)
		reply_error(a, p->id, error, "cannot become user %s: %s", p->user, reason);
	else
		reply_error(a, p->id, error, "cannot prepare the process: %s", reason);
}

static void reaped(struct agent *a, struct process *p, int status, const struct rusage *usage)
{
	p->is_reaped = true;
	p->status = status;
	p->cpu_us = (uint64_t)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
		    (uint64_t)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
	p->rss_bytes = (uint64_t)usage->ru_maxrss * 1024;
	if (p->state == PROCESS_STARTING && p->start.fd >= 0)
		p->start.ready(&p->start, 0); /* its word may still lie in the pipe */
	if (p->start_error != 0) {
		tell_failed_start(a, p);
		process_free(a, p);
		return;
	}
	p->deadline_ms = 0;
	p->state = PROCESS_DRAINING;
	input_close(a, p);
	streams_drain(a, p);
	process_settle(a, p);
	deadlines_set(a);
}

/* Reaps commands and every orphan that the sandbox's processes leave to pid 1. */
void processes_reap(struct agent *a)
{
	struct rusage usage;
	int status;
	bool had_orphans = false;

	for (int i = 0; i < REAPED_AT_ONCE; i++) {
		pid_t pid = wait4(-1, &status, WNOHANG, &usage);

		if (pid <= 0)
			break;
		struct process *p = take_living(a, pid);

		if (p != NULL)
			reaped(a, p, status, &usage);
		else
			had_orphans = true;
		if (i == REAPED_AT_ONCE - 1)
			kill(getpid(), SIGCHLD); /* come back for the rest */
	}
	if (had_orphans)
		groups_retry(a);
}

void process_repeat(struct agent *a, struct process *p)
{
	if (p->state != PROCESS_STARTING)
		process_speaks(a, p, SAY_STARTED | (p->state == PROCESS_EXITED ? SAY_EXIT : 0));
}

static void tell(struct agent *a, struct process *p)
{
	uint8_t space[64];
	struct builder fields = { .data = space, .room = sizeof(space) };

	build_u32(&fields, SF_TAG_PID, (uint32_t)p->pid);
	build_u32(&fields, SF_TAG_STATE, p->state == PROCESS_EXITED);
	build_u64(&fields, SF_TAG_STDIN_AT, p->input.ring.head);
	reply_send(a, SF_PROCESS, p->id, 0, p->output.ring.head, fields.data, fields.used);
	p->output.sent = p->output.ring.head;
	process_speaks(a, p, p->state == PROCESS_EXITED ? SAY_EXIT : 0);
}

void processes_tell_all(struct agent *a)
{
	for (unsigned int i = 0; i < PROCESS_BUCKETS; i++)
		for (struct process *p = a->processes[i]; p != NULL; p = p->next)
			tell(a, p);
}

/* Requests about a command that is unknown or over are passed by in silence: its exit has been
 * or will be told, and an error with its id would read as a failed start. */
void serve_signal(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	struct process *p = process_find(a, head->id);

	if (p == NULL || request->signal == 0 || request->signal > 64)
		return;
	if (head->flags & SF_FLAG_TREE)
		group_signal(a, p, (int)request->signal);
	else if (!p->is_reaped && kill(-p->pid, (int)request->signal) && errno == ESRCH)
		kill(p->pid, (int)request->signal); /* so young that it leads no group yet */
}

void serve_resize(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	struct process *p = process_find(a, head->id);
	struct winsize size = { .ws_row = (unsigned short)MIN(request->rows, 65535u),
				.ws_col = (unsigned short)MIN(request->cols, 65535u) };

	if (p != NULL && p->is_terminal && p->out.source.fd >= 0)
		ioctl(p->out.source.fd, TIOCSWINSZ, &size);
}

void serve_forget(struct agent *a, const struct sf_frame *head)
{
	struct process *p = process_find(a, head->id);

	if (p != NULL && p->state == PROCESS_EXITED)
		process_free(a, p);
}

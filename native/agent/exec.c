/* Starting a command: its streams, its cgroup, its process. */
#include "agent/process.h"

#include "common/sys.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

/* The descriptors of a start: ours on the left, the child's on the right. */
struct plumbing {
	int in, out, err, status;
	int child_in, child_out, child_err, child_status;
};

static void plumbing_close(struct plumbing *fds)
{
	int *const all[] = { &fds->in,	     &fds->out,	      &fds->err,       &fds->status,
			     &fds->child_in, &fds->child_out, &fds->child_err, &fds->child_status };

	for (size_t i = 0; i < COUNT(all); i++)
		close_and_forget(all[i]);
}

/* A pipe whose end on our side never blocks. */
static int make_pipe(int *ours, int *theirs, bool we_read)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	*ours = ends[we_read ? 0 : 1];
	*theirs = ends[we_read ? 1 : 0];
	return fcntl(*ours, F_SETFL, O_NONBLOCK) ? -errno : 0;
}

/* The other side is opened through the terminal itself, and the device by its own mount, which
 * cannot be moved or replaced: no name that the sandbox controls is trusted. */
static int make_terminal(struct plumbing *fds, const struct identity *identity, uint32_t rows,
			 uint32_t cols)
{
	struct winsize size = { .ws_row = (unsigned short)MIN(rows ? rows : 24, 65535u),
				.ws_col = (unsigned short)MIN(cols ? cols : 80, 65535u) };
	int unlock = 0;

	fds->out = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (fds->out < 0 || ioctl(fds->out, TIOCSPTLCK, &unlock) ||
	    ioctl(fds->out, TIOCSWINSZ, &size))
		return -errno;
	fds->child_in = ioctl(fds->out, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fds->child_in < 0 || fchown(fds->child_in, identity->uid, (gid_t)-1))
		return -errno;
	fds->in = fcntl(fds->out, F_DUPFD_CLOEXEC, 0);
	fds->child_out = fcntl(fds->child_in, F_DUPFD_CLOEXEC, 0);
	fds->child_err = fcntl(fds->child_in, F_DUPFD_CLOEXEC, 0);
	return fds->in < 0 || fds->child_out < 0 || fds->child_err < 0 ? -errno : 0;
}

static int make_pipes(struct plumbing *fds, bool has_stdin)
{
	int status;

	if (has_stdin) {
		status = make_pipe(&fds->in, &fds->child_in, false);
	} else {
		fds->child_in = open("/dev/null", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
		status = fds->child_in < 0 ? -errno : 0;
	}
	if (status == 0)
		status = make_pipe(&fds->out, &fds->child_out, true);
	if (status == 0)
		status = make_pipe(&fds->err, &fds->child_err, true);
	return status;
}

static bool is_named(char **envp, const char *name)
{
	size_t length = strlen(name);

	for (; *envp != NULL; envp++)
		if (strncmp(*envp, name, length) == 0 && (*envp)[length] == '=')
			return true;
	return false;
}

/* Adds what every login would set and the caller has not. Returns the space used. */
static size_t add_defaults(char **envp, size_t count, const struct identity *identity,
			   bool is_terminal, char *space, size_t room)
{
	const char *const defaults[][2] = {
		{ "HOME", identity->home },
		{ "USER", identity->name },
		{ "LOGNAME", identity->name },
		{ "SHELL", identity->shell },
		{ "PATH", identity->uid == 0
			      ? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
			      : "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games" },
		{ "TERM", is_terminal ? "xterm-256color" : NULL },
	};
	size_t used = 0;

	for (size_t i = 0; i < COUNT(defaults); i++) {
		if (defaults[i][1] == NULL || is_named(envp, defaults[i][0]))
			continue;
		int size =
		    snprintf(space + used, room - used, "%s=%s", defaults[i][0], defaults[i][1]);

		if (size < 0 || (size_t)size >= room - used)
			break;
		envp[count++] = space + used;
		envp[count] = NULL;
		used += (size_t)size + 1;
	}
	return used;
}

enum { DEFAULTS_MAX = 8, DEFAULTS_SPACE = 1024 };

/* Lays out arguments, environment and directory in one block, which the caller frees. */
static char *lay_out(struct launch *launch, const struct sf_frame *head, const uint8_t *payload,
		     const struct request *request)
{
	size_t slots = request->args + request->envs + 2 + DEFAULTS_MAX;
	size_t room =
	    slots * sizeof(char *) + request->text_bytes + request->cwd.size + 1 + DEFAULTS_SPACE;
	char *block = malloc(room);

	if (block == NULL)
		return NULL;
	launch->argv = (char **)block;
	launch->envp = launch->argv + request->args + 1;
	char *space = block + slots * sizeof(char *);

	space += request_texts(payload, head->size, SF_TAG_ARG, launch->argv, space);
	space += request_texts(payload, head->size, SF_TAG_ENV, launch->envp, space);
	if (request->cwd.size > 0) {
		launch->cwd = space;
		text_copy(&request->cwd, space, request->cwd.size + 1);
		space += request->cwd.size + 1;
	}
	add_defaults(launch->envp, request->envs, &launch->identity, launch->is_terminal, space,
		     DEFAULTS_SPACE);
	return block;
}

static void on_start(struct source *source, uint32_t events)
{
	struct process *p = CONTAINER(source, struct process, start);
	struct agent *a = source->owner;
	struct child_failure failure;
	ssize_t size = RETRY(read(source->fd, &failure, sizeof(failure)));

	(void)events;
	if (size < 0 && errno == EAGAIN)
		return;
	source_close(a->epoll, source);
	if (size == sizeof(failure)) {
		p->start_error = failure.error ? failure.error : EIO;
		p->start_step = failure.step;
		return; /* told when it has been reaped, so that nothing of it is left by then */
	}
	p->state = PROCESS_RUNNING;
	process_speaks(a, p, SAY_STARTED);
}

static pid_t clone_child(struct launch *launch, int cgroup)
{
	struct sf_clone_args args = { .flags = SF_CLONE_CLEAR_SIGHAND, .exit_signal = SIGCHLD };

	if (cgroup >= 0) {
		args.flags |= SF_CLONE_INTO_CGROUP;
		args.cgroup = (uint64_t)cgroup;
	}
	pid_t pid = sys_clone3(&args);

	if (pid == 0)
		child_run(launch);
	return pid < 0 ? -errno : pid;
}

/* Hands our ends to the process record, which closes them from now on. */
static void adopt(struct agent *a, struct process *p, struct plumbing *fds)
{
	p->start.ready = on_start;
	source_add(a->epoll, &p->start, fds->status, EPOLLIN);
	stream_open(a, p, &p->out, fds->out);
	if (fds->err >= 0)
		stream_open(a, p, &p->err, fds->err);
	if (fds->in >= 0)
		input_open(a, p, fds->in);
	fds->status = fds->out = fds->err = fds->in = -1;
}

static void remember(struct process *p, const struct launch *launch, const struct request *request)
{
	snprintf(p->program, sizeof(p->program), "%.95s", launch->argv[0]);
	snprintf(p->cwd, sizeof(p->cwd), "%.95s",
		 launch->cwd ? launch->cwd : launch->identity.home);
	snprintf(p->user, sizeof(p->user), "%s", launch->identity.name);
	p->is_terminal = launch->is_terminal;
	p->output.limit = request->has_limit ? request->limit : UINT64_MAX;
	if (request->timeout_ms > 0)
		p->deadline_ms = agent_now_ms() + MIN(request->timeout_ms, (uint64_t)1 << 40);
}

static int start(struct agent *a, struct process *p, struct launch *launch,
		 const struct request *request, uint16_t flags)
{
	struct plumbing fds = { -1, -1, -1, -1, -1, -1, -1, -1 };
	int status = make_pipe(&fds.status, &fds.child_status, true);

	if (status == 0)
		status = launch->is_terminal
			     ? make_terminal(&fds, &launch->identity, request->rows, request->cols)
			     : make_pipes(&fds, flags & SF_FLAG_STDIN);
	if (status == 0) {
		launch->in = fds.child_in;
		launch->out = fds.child_out;
		launch->err = fds.child_err;
		launch->status = fds.child_status;
		p->cgroup = group_make(a, p->id);
		status = clone_child(launch, p->cgroup);
	}
	if (status > 0) {
		process_lives(a, p, status);
		adopt(a, p, &fds);
	}
	plumbing_close(&fds);
	return MIN(status, 0);
}

static int begin(struct agent *a, struct process *p, struct launch *launch,
		 const struct request *request, const struct sf_frame *head, const uint8_t *payload)
{
	AUTO_FREE char *block = lay_out(launch, head, payload, request);

	if (block == NULL)
		return -ENOMEM;
	remember(p, launch, request);
	int status = start(a, p, launch, request, head->flags);

	if (status == 0)
		deadlines_set(a);
	return status;
}

void serve_exec(struct agent *a, const struct sf_frame *head, const uint8_t *payload,
		const struct request *request)
{
	struct process *p = process_find(a, head->id);
	struct launch launch = { .is_terminal = head->flags & SF_FLAG_PTY,
				 .nofile = a->options.nofile,
				 .fsize = a->options.fsize };

	if (p != NULL) {
		process_repeat(a, p);
		return;
	}
	if (request->args == 0) {
		reply_error(a, head->id, EINVAL, "a command needs at least one argument");
		return;
	}
	if (a->process_count >= SF_PROCESSES_MAX) {
		reply_error(a, head->id, EAGAIN, "%d commands are on record", SF_PROCESSES_MAX);
		return;
	}
	if (identity_find(&request->user, &launch.identity) < 0) {
		reply_error(a, head->id, ENOENT, "no such user: %.*s",
			    (int)MIN(request->user.size, (size_t)64), request->user.data);
		return;
	}
	p = process_add(a, head->id);
	int status = p == NULL ? -ENOMEM : begin(a, p, &launch, request, head, payload);

	if (status == 0)
		return;
	if (p != NULL)
		process_free(a, p);
	if (status == -EAGAIN)
		reply_error(a, head->id, EAGAIN, "the sandbox is at its process limit");
	else
		reply_error(a, head->id, -status, "cannot start a command: %s", strerror(-status));
}

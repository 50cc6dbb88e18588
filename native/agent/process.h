/* A command: its process, its streams, and what the node has yet to hear of it. */
#ifndef SF_PROCESS_H
#define SF_PROCESS_H

#include "agent/agent.h"

enum process_state {
	PROCESS_STARTING, /* cloned, not yet past exec */
	PROCESS_RUNNING,
	PROCESS_DRAINING, /* exited; what lies in its pipes is being read */
	PROCESS_EXITED,
};

enum {
	SAY_STARTED = 1,
	SAY_STDIN = 2,
	SAY_EXIT = 4,
};

struct segment {
	uint64_t end;
	bool is_error; /* stderr */
};

struct output {
	struct ring ring;
	struct segment *segments; /* of the bytes in the ring, in order, from segment_first on */
	size_t segment_first, segment_count, segment_room;
	uint64_t sent;	/* position up to which the present node has been told */
	uint64_t limit; /* bytes kept in all */
	uint64_t dropped;
};

struct stream {
	struct source source;
	struct process *process;
	bool is_error;
	size_t left; /* while draining: bytes that still may be read */
};

struct input {
	struct source source; /* fd -1: closed or none */
	struct process *process;
	struct ring ring; /* head: taken by the process; tail: received */
	bool ends;	  /* EOF follows the bytes in the ring */
	bool reader_gone;
};

struct process {
	struct process *next; /* in its bucket */
	struct process *next_living;
	struct process *next_speaker;
	bool is_speaker;
	uint32_t id;
	pid_t pid;
	enum process_state state;
	unsigned int say;	/* SAY_* */
	int cgroup;		/* the command's directory, or -1 */
	struct stream out, err; /* a terminal uses only out */
	struct input input;
	struct output output;
	struct source start; /* tells of a failed exec, ends on a good one */
	int start_error;     /* errno, with the step that failed */
	int start_step;
	char program[96], cwd[96], user[64]; /* for the sentence about it */
	uint64_t deadline_ms;		     /* 0: none */
	bool has_timed_out, is_terminal, is_reaped;
	int status; /* raw wait status */
	uint64_t cpu_us, rss_bytes;
};

/* What the child needs between clone and exec (child.c). */
struct launch {
	char **argv, **envp;
	char *cwd;
	struct identity identity;
	int in, out, err, status; /* in, out and err become 0, 1 and 2 */
	bool is_terminal;
	uint64_t nofile, fsize; /* 0: any */
};

enum child_step { CHILD_SETUP, CHILD_TERMINAL, CHILD_USER, CHILD_CWD, CHILD_PROGRAM };
struct child_failure {
	int32_t error, step;
};
__attribute__((noreturn)) void child_run(struct launch *launch);

/* process.c */
struct process *process_find(struct agent *a, uint32_t id);
struct process *process_add(struct agent *a, uint32_t id);
void process_lives(struct agent *a, struct process *p, pid_t pid);
void process_free(struct agent *a, struct process *p);
void process_repeat(struct agent *a, struct process *p);
void process_settle(struct agent *a, struct process *p);
void processes_reap(struct agent *a);
void processes_tell_all(struct agent *a);
void serve_signal(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_resize(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_forget(struct agent *a, const struct sf_frame *head);

/* speak.c: what is said about a process, in order, as the channel allows. */
void process_speaks(struct agent *a, struct process *p, unsigned int what);
int process_speak(struct agent *a, struct process *p);
void speakers_forget(struct agent *a, struct process *p);

/* exec.c */
void serve_exec(struct agent *a, const struct sf_frame *head, const uint8_t *payload,
		const struct request *request);

/* output.c */
void stream_open(struct agent *a, struct process *p, struct stream *stream, int fd);
void streams_drain(struct agent *a, struct process *p);
void streams_resume(struct agent *a, struct process *p);
void streams_close(struct agent *a, struct process *p);

/* leftovers.c: lets go of a stream whose command is over, without harm to others who write. */
void stream_leave(struct agent *a, struct stream *stream);

void output_ack(struct agent *a, struct process *p, uint64_t position);
void output_free(struct output *output);
/* How many bytes from `sent` on belong to one stream, at most `max`, and to which. */
size_t output_next(const struct output *output, size_t max, bool *is_error);

/* input.c */
void input_open(struct agent *a, struct process *p, int fd);
void input_take(struct agent *a, const struct sf_frame *head, const uint8_t *data);
void input_close(struct agent *a, struct process *p);

/* groups.c: one cgroup for each command. */
int group_make(struct agent *a, uint32_t id);
void group_signal(struct agent *a, struct process *p, int signal);
void group_remove(struct agent *a, uint32_t id, int *dir);
void groups_retry(struct agent *a);

/* deadlines.c */
void deadlines_set(struct agent *a);
void deadlines_hold(struct agent *a);
void deadlines_go(struct agent *a);
void on_deadline(struct source *source, uint32_t events);

#endif

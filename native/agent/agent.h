/* The agent's state and what its parts do for one another. */
#ifndef SF_AGENT_H
#define SF_AGENT_H

#include "common/base.h"
#include "common/frames.h"
#include "common/loop.h"
#include "common/request.h"
#include "common/ring.h"

#include <sys/types.h>

enum {
	REPLIES_HIGH = 4 * SF_FRAME_DATA_MAX, /* waiting replies; above, nothing makes more */
	JOBS_MAX = 1024,
	PROCESS_BUCKETS = 64,
	SEGMENTS_MAX = 4096, /* changes between stdout and stderr in the output kept */
	GROUPS_MAX = 64,
	MESSAGE_SIZE = 256,
	LEFTOVERS_MAX = 128, /* pipes of commands that are over, see leftovers.c */
	SETTLED_MAX = 128,   /* changes to files remembered, see settled.c */
};

struct agent_options {
	int channel;
	int cgroup;	 /* the sandbox's v2 directory, or -1 */
	int ready;	 /* a byte goes here when the agent serves, or -1 */
	uint64_t nofile; /* descriptors of a command, 0: as many as the agent */
	uint64_t fsize;	 /* bytes of the largest file that a command may write, 0: any */
};

/* Who acts: a user of the sandbox with all its groups. */
struct identity {
	uid_t uid;
	gid_t gid;
	gid_t groups[GROUPS_MAX];
	size_t group_count;
	char name[64], home[256], shell[128];
};

struct reply {
	struct reply *next;
	size_t size; /* header included */
	char frame[];
};

/* Work on files that takes more than a moment, done a step at a time between events. */
struct agent;
struct job {
	struct job *next;
	uint32_t id;
	uint16_t type; /* of the request */
	/* Returns 1 to be called again, 0 when the answer has been given. */
	int (*step)(struct agent *agent, struct job *job);
	void (*end)(struct job *job); /* frees it */
};

struct process;
struct upload;
struct watch;

struct agent {
	struct agent_options options;
	int epoll;
	struct source channel, signals, timer;
	uint8_t *packet;      /* one frame from the node */
	bool packet_is_large; /* it has grown pages worth giving back */
	uint8_t *scratch;     /* payload under construction, SF_FRAME_DATA_MAX */
	struct reply *replies, **replies_end;
	size_t replies_bytes;
	struct process *processes[PROCESS_BUCKETS]; /* by id */
	struct process *living[PROCESS_BUCKETS];    /* by pid, until reaped */
	unsigned int process_count;
	struct process *speakers, **speakers_end;
	struct job *jobs;
	unsigned int job_count;
	struct upload *uploads[SF_WRITES_MAX];
	struct watch *watches;
	unsigned int watch_count;
	bool watches_wait;   /* for room among the replies */
	uint32_t *lingering; /* command cgroups that still hold processes */
	size_t lingering_count, lingering_room;
	struct settled {
		uint32_t id;
		uint16_t type;
	} settled[SETTLED_MAX];
	unsigned int settled_next;
	struct source leftovers[LEFTOVERS_MAX]; /* without an owner: never used */
	unsigned int leftovers_next;
	bool is_acting;	   /* between act_as and act_as_root */
	uint64_t armed_ms; /* when the timer goes off, 0: never */
	uint64_t held_ms;  /* since when time limits stand still, 0: they count */
};

/* agent.c */
__attribute__((noreturn)) void agent_run(const struct agent_options *options);
uint64_t agent_now_ms(void);

/* channel.c: replies are queued and never lost; only output waits with its process. */
void reply_send(struct agent *a, uint16_t type, uint32_t id, uint16_t flags, uint64_t position,
		const void *payload, size_t size);
void reply_result(struct agent *a, uint32_t id, uint16_t flags, const struct builder *fields);
__attribute__((format(printf, 4, 5))) void reply_error(struct agent *a, uint32_t id, int error,
						       const char *format, ...);
bool replies_have_room(const struct agent *a);
/* Sends one frame at once or not at all: 0, or -EAGAIN when the channel is full. */
int channel_send(struct agent *a, const struct sf_frame *head, const struct iovec *data, int count);
void channel_pump(struct agent *a);
void channel_start(struct agent *a);

/* dispatch.c */
void dispatch(struct agent *a, const struct sf_frame *head, const uint8_t *payload);

/* jobs.c */
int job_add(struct agent *a, struct job *job);
void jobs_step(struct agent *a);
bool jobs_can_go_on(const struct agent *a);
bool job_is_known(const struct agent *a, uint32_t id);
void jobs_drop_readers(struct agent *a);

/* users.c: -ENOENT when there is no such user. */
int identity_find(const struct text *user, struct identity *identity);

/* acting.c: file access with a user's rights. A pair around every use of the file system. */
int act_as(struct agent *a, const struct identity *identity);
void act_as_root(struct agent *a);

/* files.c and the rest: one per request. */
void serve_stat(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_mkdir(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_rename(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_list(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_read(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_remove(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_ps(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_watch(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_unwatch(struct agent *a, uint32_t id);
void serve_write(struct agent *a, const struct sf_frame *head, const struct request *request);
void serve_write_data(struct agent *a, const struct sf_frame *head, const uint8_t *data);
void serve_write_end(struct agent *a, const struct sf_frame *head);
void uploads_abort(struct agent *a);
void watches_resume(struct agent *a);

/* settled.c: requests that have changed files already, so that asking again changes nothing. */
bool settled_has(const struct agent *a, uint32_t id, uint16_t type);
void settled_add(struct agent *a, uint32_t id, uint16_t type);

#endif

/* The launcher's state and the parts that work on it. */
#ifndef SF_LAUNCHER_H
#define SF_LAUNCHER_H

#include "common/base.h"
#include "common/loop.h"
#include "launch/messages.h"
#include "launch/spaces.h"

#include <sys/types.h>

enum {
	SANDBOXES_MAX = 32768, /* records, exits that nobody has heard of included */
	SANDBOX_BUCKETS = 4096,
	LAYERS_MAX = 4096,
	LOWERS_MAX = 64, /* layers under one sandbox */
	CGROUPS_MAX = 16,
	ID_SIZE = 96,
	DIGEST_SIZE = 160,
	SEQ_SIZE = 32,
	USERNS_MAX = 4096, /* user namespaces kept for the next use of their range */
	USERNS_BUCKETS = 1024,
	PREPARED_MAX = 1024, /* ranges prepared at once */
	SETUPS_MAX = 32,     /* sandboxes being set up at once */
	SETUP_SECONDS = 30,
	QUIT_SECONDS = 20,
};

/* While a sandbox is set up, its descriptors stand at fixed low numbers, so that the child
 * can leave everything above them behind in one call, however many sandboxes there are. */
enum {
	GROUND_FD = 7, /* the mount namespace that every sandbox's begins as, see stage.c */
	SLOT_FIRST = 8,
	SLOT_CHANNEL = 0,
	SLOT_STATUS = 1,
	SLOT_USERNS = 2,
	SLOT_SPACES = 3, /* when they are prepared */
	SLOT_SIZE = SLOT_SPACES + SPACES,
	SLOT_END = SLOT_FIRST + SETUPS_MAX * SLOT_SIZE,
};

struct layer {
	char digest[DIGEST_SIZE]; /* "": free */
	unsigned int users;	  /* sandboxes alive or being set up */
};

enum sandbox_state { SANDBOX_FREE, SANDBOX_SETUP, SANDBOX_LIVE, SANDBOX_GONE };

struct failure {
	int error; /* errno, 0: none */
	char step[24];
	char message[232];
};

struct sandbox {
	char id[ID_SIZE];
	char seq[SEQ_SIZE]; /* of the create request, until it is answered */
	enum sandbox_state state;
	uint32_t next; /* in its bucket or the free list; index + 1, 0 ends */
	uint32_t next_setup;
	pid_t pid;
	int channel; /* a duplicate of the node's end */
	int slot;
	int status;		 /* raw wait status once GONE */
	unsigned int connection; /* the one that asked for it */
	int64_t deadline_ms;	 /* of the set-up */
	struct failure failure;
	struct source child;	/* pidfd: readable when the process has ended */
	struct source progress; /* pipe from the set-up: a failure, or its end */
	uint16_t lowers[LOWERS_MAX];
	unsigned int lower_count;
};

struct userns {
	unsigned long base, count;
	int fd;
	int spaces[SPACES]; /* prepared for the range's next sandbox, or -1 all */
	uint32_t next;	    /* in its bucket; index + 1, 0 ends */
	uint64_t used;	    /* a counter of uses, for choosing what to forget */
};

struct letter {
	struct letter *next;
	int fd; /* travels along, or -1 */
	size_t size;
	char data[];
};

struct options {
	const char *run_dir;
	unsigned long orphan_seconds;
};

struct launcher {
	int epoll;
	int run_dir;
	int null; /* /dev/null, the filling of unused slots */
	int chunks; /* /dev/fuse of the mount at chunks/, -1 before there is one */
	struct options options;
	struct source listener, node;
	unsigned int connection; /* counts connections */
	int64_t orphan_since_ms; /* when the last node left; -1 while one is there */
	bool is_quitting;
	int64_t quit_deadline_ms;
	char quit_seq[SEQ_SIZE];
	struct letter *letters, **letters_end;
	char *packet; /* the request being served; the child unmaps its copy */
	bool slot_used[SETUPS_MAX];
	unsigned int setups;
	uint32_t first_setup, first_free, sandbox_top, sandbox_count;
	uint32_t buckets[SANDBOX_BUCKETS];
	struct sandbox sandboxes[SANDBOXES_MAX];
	struct layer layers[LAYERS_MAX];
	unsigned int layer_top;
	struct userns userns[USERNS_MAX];
	uint32_t userns_buckets[USERNS_BUCKETS];
	unsigned int userns_count, userns_hand, prepared_count;
	uint64_t userns_uses;
};

/* chunks.c: makes sure of the mount of layers that are read on demand. */
int chunks_open(struct launcher *l, struct failure *failure);

int64_t now_ms(void);

/* launcher.c: what is said to the node. The letter is queued and sent as the socket allows. */
void launcher_say(struct launcher *l, const struct message *message, int fd);
void launcher_refuse(struct launcher *l, const char *seq, const struct failure *failure);
void launcher_accepts_more(struct launcher *l);

/* Fills in a failure; returns -error for use in a return statement. */
__attribute__((format(printf, 4, 5))) int fail(struct failure *failure, int error, const char *step,
					       const char *format, ...);

/* requests.c */
void requests_serve(struct launcher *l, struct message *message);

/* registry.c */
struct sandbox *registry_find(struct launcher *l, const char *id);
struct sandbox *registry_add(struct launcher *l, const char *id);
void registry_remove(struct launcher *l, struct sandbox *sandbox);

/* create.c */
int read_range(const struct message *message, unsigned long *base, unsigned long *count,
	       struct failure *failure);
int sandbox_create(struct launcher *l, const struct message *message, struct failure *failure);
void setups_expire(struct launcher *l, int64_t now);
void sandbox_tell(struct launcher *l, const struct sandbox *sandbox);
void sandbox_tell_exit(struct launcher *l, const struct sandbox *sandbox);

/* layers.c: each layer lies at layers/<index> below the launcher's working directory. */
int layer_add(struct launcher *l, const struct message *message, struct failure *failure);
int layer_remove(struct launcher *l, const char *digest, struct failure *failure);
int layer_find(const struct launcher *l, const char *digest);
void layers_unmount(struct launcher *l);

/* stage.c: what is prepared once; both end the launcher when they fail. */
void stage_own_mounts(void);
void stage_make(int run_dir);
void stage_make_ground(void);

/* userns.c: what is found belongs to the cache, and may be gone after the next userns_get. */
int userns_get(struct launcher *l, unsigned long base, unsigned long count, struct userns **found);
struct userns *userns_find(struct launcher *l, unsigned long base, unsigned long count);
bool userns_is_prepared(const struct userns *known);
int userns_prepare(struct launcher *l, struct userns *known);
void userns_unprepare(struct launcher *l, struct userns *known);

#endif

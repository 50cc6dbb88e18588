/* A watch: an inotify descriptor of its own and the directories it covers. */
#ifndef SF_WATCH_H
#define SF_WATCH_H

#include "agent/dirents.h"
#include "agent/files.h"

enum {
	WATCHED_MAX = 8192,	     /* directories in one watch */
	WATCHED_NAMES_MAX = 1 << 20, /* bytes of their names */
	WATCHED_BUCKETS = 256,
};

/* One directory, or the watched path itself, which is number 0. */
struct watched {
	int wd;		 /* -1: not yet, or free */
	uint32_t parent; /* its number */
	uint32_t next;	 /* in its bucket; number + 1, 0 ends */
	char *name;	 /* in its parent; NULL: free (but number 0 has none) */
	bool is_new;	 /* appeared after the watch began: what it holds is news */
};

struct watch {
	struct watch *next;
	uint32_t id;
	struct source source;
	struct identity identity;
	char path[SF_PATH_MAX];
	bool is_recursive;
	bool is_full; /* told already that some directories are not covered */
	struct watched *all;
	uint32_t count, room;
	size_t name_bytes;
	uint32_t buckets[WATCHED_BUCKETS]; /* by wd */
};

/* tree.c: the directories of a watch, without any system call. */
struct watched *watched_find(struct watch *w, int wd);
/* Adds one; its number, or -ENOSPC when the watch covers as much as it may. */
int watched_add(struct watch *w, uint32_t parent, const char *name, bool is_new);
void watched_set_wd(struct watch *w, uint32_t number, int wd);
/* The number of a directory by name, or -1. */
int watched_child(const struct watch *w, uint32_t parent, const char *name);
/* Forgets one and all below it; `dropped` is told each wd. */
void watched_drop(struct watch *w, uint32_t number, void (*dropped)(struct watch *, int wd));
/* The path of `name` in a directory, relative to the watched one; false if it is too long. */
bool watched_path(const struct watch *w, uint32_t number, const char *name, char *out, size_t room);

/* scan.c: covers directories that have been added, some at a step. */
void scan_start(struct agent *a, struct watch *w, bool is_first);
int watch_cover(struct watch *w, uint32_t number);
struct watch *watch_find(struct agent *a, uint32_t id);
void watch_tell(struct agent *a, struct watch *w, uint32_t kind, uint32_t number, const char *name);
void watch_overflows(struct agent *a, struct watch *w);
void watch_forget_wd(struct watch *w, int wd);
void watch_free(struct agent *a, struct watch *w);

#endif

/* An epoll loop in its smallest form: what has a descriptor and wants to be told is a source. */
#ifndef SF_LOOP_H
#define SF_LOOP_H

#include <stdint.h>

struct source;
typedef void source_ready(struct source *source, uint32_t events);

struct source {
	int fd;		 /* -1: not watched */
	uint32_t events; /* what epoll has been asked for */
	source_ready *ready;
	void *owner; /* the loop's state: struct agent or struct launcher */
};

/* Each returns 0 or a negative errno. A source keeps its place in memory while watched. Wanting
 * no events takes it out of epoll altogether, which would report hang-ups all the same. */
int source_add(int epoll, struct source *source, int fd, uint32_t events);
int source_want(int epoll, struct source *source, uint32_t events);

/* Stops watching and closes the descriptor. */
void source_close(int epoll, struct source *source);

/* Waits for one event and serves it. One at a time: no later event of the same batch can then
 * point to a source that an earlier one has freed. Returns 1, or 0 after `timeout_ms`. */
int loop_once(int epoll, int timeout_ms);

#endif

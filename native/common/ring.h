/*
 * Bytes of a stream between two positions, kept until the other side has them. The memory
 * grows with what is kept, up to a fixed maximum, and is given back when nothing is.
 */
#ifndef SF_RING_H
#define SF_RING_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ring {
	uint8_t *data;
	size_t size;   /* a power of two, or 0 */
	uint64_t head; /* position of the first byte kept */
	uint64_t tail; /* position after the last */
};

/* Makes room for up to `want` bytes at the tail, all kept together never above `max` (a power of
 * two). Returns how many contiguous bytes may be written to *at; 0 if full or out of memory. */
size_t ring_room(struct ring *ring, size_t want, size_t max, uint8_t **at);

/* Says that `count` of them have been written. */
void ring_add(struct ring *ring, size_t count);

/* Points at the bytes [from, from + count), which must be kept; returns the number of pieces. */
int ring_peek(const struct ring *ring, uint64_t from, size_t count, struct iovec pieces[2]);

/* Forgets what lies below `position`; positions outside are taken as the nearest inside. */
void ring_drop(struct ring *ring, uint64_t position);

#endif

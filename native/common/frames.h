/*
 * Reading and building frames and fields. Pure: no system calls, no allocation. Everything
 * that is read here is taken to be written by an attacker.
 */
#ifndef SF_FRAMES_H
#define SF_FRAMES_H

#include "wire.h"

#include <stdbool.h>
#include <stddef.h>

struct field {
	uint16_t tag;
	uint32_t size;
	const uint8_t *data; /* inside the payload; not aligned, not ended by NUL */
};

struct fields {
	const uint8_t *at, *end;
};

/* Copies the header of a packet of `size` bytes. -EBADMSG unless the packet is one frame. */
int frame_open(const void *packet, size_t size, struct sf_frame *head);

/* Steps to the next field. Returns 1, 0 at the end, or -EBADMSG. */
int fields_next(struct fields *fields, struct field *field);

/* Reads a number of exactly that width. Returns 0 or -EBADMSG. */
int field_u32(const struct field *field, uint32_t *value);
int field_u64(const struct field *field, uint64_t *value);

/* Builds a payload in memory that the caller owns; what does not fit sets `full`. */
struct builder {
	uint8_t *data;
	size_t used, room;
	bool full;
};

void build_bytes(struct builder *builder, uint16_t tag, const void *data, size_t size);
void build_u32(struct builder *builder, uint16_t tag, uint32_t value);
void build_u64(struct builder *builder, uint16_t tag, uint64_t value);

/* A field made of a fixed head and two texts, as ENTRY and PROCESS are. */
struct piece {
	const void *data;
	size_t size;
};
void build_pieces(struct builder *builder, uint16_t tag, const struct piece *pieces, size_t count);

#endif

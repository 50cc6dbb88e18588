#include "common/ring.h"

#include "common/base.h"

#include <string.h>

enum { RING_MIN = 4096 };

static size_t kept(const struct ring *ring)
{
	return (size_t)(ring->tail - ring->head);
}

static bool grow(struct ring *ring, size_t need, size_t max)
{
	size_t size = MAX(ring->size, (size_t)RING_MIN);

	while (size < need && size < max)
		size *= 2;
	if (size == ring->size)
		return true;
	uint8_t *data = malloc(size);

	if (data == NULL)
		return false;
	struct iovec pieces[2];
	int count = ring->size > 0 ? ring_peek(ring, ring->head, kept(ring), pieces) : 0;
	uint64_t at = ring->head;

	/* A position keeps its place modulo the size, so the copy may wrap anew. */
	for (int i = 0; i < count; i++) {
		const uint8_t *from = pieces[i].iov_base;

		for (size_t left = pieces[i].iov_len; left > 0;) {
			size_t offset = (size_t)at & (size - 1);
			size_t part = MIN(left, size - offset);

			memcpy(data + offset, from, part);
			from += part;
			at += part;
			left -= part;
		}
	}
	free(ring->data);
	ring->data = data;
	ring->size = size;
	return true;
}

size_t ring_room(struct ring *ring, size_t want, size_t max, uint8_t **at)
{
	size_t used = kept(ring);

	want = MIN(want, max - MIN(used, max));
	if (want == 0)
		return 0;
	if (!grow(ring, used + want, max) && ring->size == 0)
		return 0;
	size_t offset = (size_t)ring->tail & (ring->size - 1);

	*at = ring->data + offset;
	return MIN(MIN(want, ring->size - used), ring->size - offset);
}

void ring_add(struct ring *ring, size_t count)
{
	ring->tail += count;
}

int ring_peek(const struct ring *ring, uint64_t from, size_t count, struct iovec pieces[2])
{
	if (count == 0)
		return 0;
	size_t offset = (size_t)from & (ring->size - 1);
	size_t first = MIN(count, ring->size - offset);

	pieces[0] = (struct iovec){ ring->data + offset, first };
	pieces[1] = (struct iovec){ ring->data, count - first };
	return first < count ? 2 : 1;
}

void ring_drop(struct ring *ring, uint64_t position)
{
	ring->head = MIN(MAX(position, ring->head), ring->tail);
	if (kept(ring) > 0)
		return;
	free(ring->data);
	ring->data = NULL;
	ring->size = 0;
}

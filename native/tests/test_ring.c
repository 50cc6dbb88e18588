#include "common/ring.h"
#include "tests/tap.h"

#include <stdlib.h>
#include <string.h>

static uint8_t expected(uint64_t position)
{
	return (uint8_t)(position * 31 + position / 251);
}

static size_t put(struct ring *ring, size_t count, size_t max)
{
	size_t done = 0;

	while (done < count) {
		uint8_t *at;
		size_t room = ring_room(ring, count - done, max, &at);

		if (room == 0)
			break;
		for (size_t i = 0; i < room; i++)
			at[i] = expected(ring->tail + i);
		ring_add(ring, room);
		done += room;
	}
	return done;
}

static bool is_right(const struct ring *ring)
{
	struct iovec pieces[2];
	size_t kept = (size_t)(ring->tail - ring->head);
	int count = ring_peek(ring, ring->head, kept, pieces);
	uint64_t position = ring->head;

	for (int i = 0; i < count; i++)
		for (size_t j = 0; j < pieces[i].iov_len; j++)
			if (((uint8_t *)pieces[i].iov_base)[j] != expected(position++))
				return false;
	return position == ring->tail;
}

static void random_use(void)
{
	struct ring ring = { 0 };
	bool right = true;

	srand(7);
	for (int i = 0; i < 4000 && right; i++) {
		put(&ring, (size_t)rand() % 9000, 65536);
		right = is_right(&ring) && ring.tail - ring.head <= 65536;
		ring_drop(&ring, ring.head + (uint64_t)(rand() % 9000));
		right = right && is_right(&ring);
	}
	CHECK("bytes keep their order through growing, wrapping and dropping", right);
	ring_drop(&ring, ring.tail);
}

int main(void)
{
	struct ring ring = { 0 };

	CHECK("a ring takes no more than its maximum", put(&ring, 100000, 16384) == 16384);
	ring_drop(&ring, 100);
	CHECK("dropping makes room for as much", put(&ring, 100000, 16384) == 100);
	CHECK("what is kept is right after wrapping", is_right(&ring));
	ring_drop(&ring, 50);
	CHECK("dropping what is gone changes nothing", ring.head == 100);
	ring_drop(&ring, UINT64_MAX);
	CHECK("dropping what is not there yet stops at the tail", ring.head == ring.tail);
	CHECK("an empty ring has no memory", ring.data == NULL && ring.size == 0);
	CHECK("an empty ring shows nothing",
	      ring_peek(&ring, ring.head, 0, (struct iovec[2]){ 0 }) == 0);
	random_use();
	return tap_end();
}

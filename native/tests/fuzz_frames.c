/* A libFuzzer target: whatever the node's side of a channel might send. */
#include "common/frames.h"
#include "common/request.h"
#include "common/ring.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void lay_out(const uint8_t *payload, size_t size, uint16_t tag, size_t count, size_t bytes)
{
	char **slots = malloc((count + 1) * sizeof(*slots));
	char *space = malloc(bytes + 1);

	if (slots != NULL && space != NULL) {
		size_t used = request_texts(payload, size, tag, slots, space);

		if (used > bytes || slots[count] != NULL)
			abort();
		for (size_t i = 0; i < count; i++)
			if (strlen(slots[i]) >= bytes + 1)
				abort();
	}
	free(slots);
	free(space);
}

static void try_request(const uint8_t *payload, size_t size)
{
	struct request request;
	char path[SF_PATH_MAX];

	if (request_parse(payload, size, &request) < 0)
		return;
	lay_out(payload, size, SF_TAG_ARG, request.args, request.text_bytes);
	lay_out(payload, size, SF_TAG_ENV, request.envs, request.text_bytes);
	if (text_copy(&request.path, path, sizeof(path)) < 0 ||
	    text_copy(&request.target, path, sizeof(path)) < 0)
		abort();
}

/* The same bytes as a series of writes to a ring and acknowledgements. */
static void try_ring(const uint8_t *data, size_t size)
{
	struct ring ring = { 0 };

	for (size_t i = 0; i + 2 < size; i += 3) {
		size_t count = (size_t)data[i] << 8 | data[i + 1];
		uint8_t *at;

		if (data[i + 2] & 1) {
			size_t room = ring_room(&ring, count, 32768, &at);

			memset(at, data[i], room);
			ring_add(&ring, room);
		} else {
			ring_drop(&ring, ring.head + count);
		}
		if (ring.tail - ring.head > 32768)
			abort();
	}
	ring_drop(&ring, ring.tail);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sf_frame head;

	if (frame_open(data, size, &head) == 0)
		try_request(data + sizeof(head), head.size);
	try_request(data, size);
	try_ring(data, size);
	return 0;
}

#include "common/frames.h"
#include "common/request.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t pack(uint8_t *out, struct sf_frame head, const void *payload)
{
	memcpy(out, &head, sizeof(head));
	memcpy(out + sizeof(head), payload, head.size);
	return sizeof(head) + head.size;
}

static void frames(void)
{
	uint8_t packet[64];
	struct sf_frame head, whole = { .size = 3, .type = SF_STDIN, .id = 7, .position = 9 };
	size_t size = pack(packet, whole, "abc");

	CHECK("a whole frame is read", frame_open(packet, size, &head) == 0 && head.id == 7);
	CHECK("a frame cut short is refused", frame_open(packet, size - 1, &head) == -EBADMSG);
	CHECK("a frame with bytes after it is refused",
	      frame_open(packet, size + 1, &head) == -EBADMSG);
	CHECK("a header cut short is refused", frame_open(packet, 23, &head) == -EBADMSG);
	whole.reserved = 1;
	size = pack(packet, whole, "abc");
	CHECK("a reserved word in use is refused", frame_open(packet, size, &head) == -EBADMSG);
	whole = (struct sf_frame){ .size = UINT32_MAX };
	memcpy(packet, &whole, sizeof(whole));
	CHECK("a size that wraps around is refused",
	      frame_open(packet, 23 + 24, &head) == -EBADMSG);
}

/* A heap copy, so that the sanitizer sees a read past the end. */
static int parse(const uint8_t *data, size_t size, struct request *request)
{
	uint8_t *copy = malloc(size + 1);

	memcpy(copy, data, size);
	int status = request_parse(copy, size, request);

	free(copy);
	return status;
}

static void fields(void)
{
	uint8_t space[256];
	struct builder b = { .data = space, .room = sizeof(space) };
	struct fields list;
	struct field field;
	uint64_t number = 0;

	build_u64(&b, SF_TAG_LIMIT, 1ull << 40);
	build_bytes(&b, SF_TAG_PATH, "/x", 2);
	list = (struct fields){ space, space + b.used };
	CHECK("a number comes back", fields_next(&list, &field) == 1 &&
					 field_u64(&field, &number) == 0 && number == 1ull << 40);
	CHECK("a number is not read as a shorter one",
	      field_u32(&field, (uint32_t *)&number) == -EBADMSG);
	CHECK("bytes come back", fields_next(&list, &field) == 1 && field.size == 2);
	CHECK("the end is told", fields_next(&list, &field) == 0);
	list = (struct fields){ space, space + b.used - 1 };
	fields_next(&list, &field);
	CHECK("a field longer than its payload is refused", fields_next(&list, &field) == -EBADMSG);
	list = (struct fields){ space, space + 5 };
	CHECK("a field header cut short is refused", fields_next(&list, &field) == -EBADMSG);
	b.room = b.used + 8;
	build_bytes(&b, SF_TAG_PATH, "y", 1);
	CHECK("a builder without room says so and writes nothing", b.full && b.used < b.room);
}

static void requests(void)
{
	uint8_t space[8192];
	struct builder b = { .data = space, .room = sizeof(space) };
	struct request r;

	build_bytes(&b, SF_TAG_ARG, "ls", 2);
	build_bytes(&b, SF_TAG_ARG, "", 0);
	build_bytes(&b, SF_TAG_ENV, "A=1", 3);
	build_u64(&b, SF_TAG_TIMEOUT_MS, 5);
	CHECK("arguments and environment are counted",
	      parse(space, b.used, &r) == 0 && r.args == 2 && r.envs == 1 && r.text_bytes == 8);
	char *slots[3], text[8];

	CHECK("arguments are laid out",
	      request_texts(space, b.used, SF_TAG_ARG, slots, text) == 4 &&
		  strcmp(slots[0], "ls") == 0 && slots[1][0] == '\0' && slots[2] == NULL);
	b.used = 0;
	build_bytes(&b, SF_TAG_ENV, "A", 1);
	CHECK("an environment entry without = is refused", parse(space, b.used, &r) == -EINVAL);
	b.used = 0;
	build_bytes(&b, SF_TAG_PATH, "a\0b", 3);
	CHECK("a path with a NUL is refused", parse(space, b.used, &r) == -EINVAL);
	b.used = 0;
	char path[4096];

	memset(path, 'x', sizeof(path));
	build_bytes(&b, SF_TAG_PATH, path, 4096);
	CHECK("a path that is too long is refused", parse(space, b.used, &r) == -ENAMETOOLONG);
	b.used = 0;
	build_bytes(&b, 999, "?", 1);
	CHECK("an unknown tag is passed over", parse(space, b.used, &r) == 0);
	CHECK("an empty payload is an empty request",
	      parse(space, 0, &r) == 0 && r.path.data == NULL);
}

int main(void)
{
	frames();
	fields();
	requests();
	return tap_end();
}

#include "launch/messages.h"
#include "tests/tap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A heap copy of exactly that size, so that the sanitizer sees a read past the end. */
static struct message made(const char *data, size_t size)
{
	struct message message = { .data = malloc(size + 1), .size = size };

	memcpy(message.data, data, size);
	message.data = realloc(message.data, size > 0 ? size : 1);
	return message;
}

#define IS_SOUND(text) is_sound(text, sizeof(text))

static bool is_sound(const char *data, size_t size)
{
	struct message message = made(data, size);
	bool sound = message_is_sound(&message);

	free(message.data);
	return sound;
}

int main(void)
{
	unsigned long number;
	char space[32];
	struct message m = made("op=create\0lower=a\0lower=\0uid=12x\0ids=65536", 43);
	struct message small = { .data = space, .room = sizeof(space) };

	CHECK("pairs ended by NUL are sound", IS_SOUND("a=b\0c="));
	CHECK("a message without its last NUL is not", !is_sound("a=b", 3));
	CHECK("an empty message is not", !is_sound("", 0));
	CHECK("a string without = is not", !IS_SOUND("a=b\0c"));
	CHECK("a string without a key is not", !IS_SOUND("=b"));
	CHECK("a value is found by its key", strcmp(message_get(&m, "op"), "create") == 0);
	CHECK("a longer key is not taken for a shorter one", message_get(&m, "low") == NULL);
	const char *lower = message_get(&m, "lower");

	CHECK("a key that repeats gives its next value",
	      *(lower = message_next(&m, "lower", lower)) == '\0');
	CHECK("and then none", message_next(&m, "lower", lower) == NULL);
	CHECK("a number is read",
	      message_number(&m, "ids", 1, 65536, &number) == 0 && number == 65536);
	CHECK("a number out of range is refused",
	      message_number(&m, "ids", 1, 65535, &number) == -EINVAL);
	CHECK("a number with letters is refused",
	      message_number(&m, "uid", 0, 99, &number) == -EINVAL);
	CHECK("a missing number is refused", message_number(&m, "gid", 0, 99, &number) == -EINVAL);
	message_add(&small, "ok", "%d", 1);
	message_add(&small, "message", "%s", "far too long to fit into what is left of the room");
	CHECK("what does not fit is left out whole", small.size == 5 && message_is_sound(&small));
	free(m.data);
	return tap_end();
}

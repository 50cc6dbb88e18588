/* The launcher's messages: "key=value" strings, each ended by NUL, in one packet. */
#ifndef SF_MESSAGES_H
#define SF_MESSAGES_H

#include "wire.h"

#include <stdbool.h>
#include <stddef.h>

struct message {
	char *data;
	size_t size, room;
};

/* True when every string has a key and the packet ends with NUL. Call before all others. */
bool message_is_sound(const struct message *message);

/* The first value of a key, or NULL. */
const char *message_get(const struct message *message, const char *key);

/* The value of a key after the one at `previous` (NULL: the first), for keys that repeat. */
const char *message_next(const struct message *message, const char *key, const char *previous);

/* A decimal number from `low` to `high`. Returns 0 or -EINVAL, also when it is not there. */
int message_number(const struct message *message, const char *key, unsigned long low,
		   unsigned long high, unsigned long *value);

/* Adds "key=value"; what does not fit is left out whole. */
__attribute__((format(printf, 3, 4))) void message_add(struct message *message, const char *key,
						       const char *format, ...);

#endif

/* What a request frame asks for, taken out of its fields. Pure, like frames.h. */
#ifndef SF_REQUEST_H
#define SF_REQUEST_H

#include "common/frames.h"

enum { SF_PATH_MAX = 4096 }; /* with the NUL that C adds */

struct text {
	const char *data; /* NULL when the field is absent; not ended by NUL */
	size_t size;
};

struct request {
	struct text path, target, cwd, user;
	uint32_t version, rows, cols, signal, mode;
	uint64_t timeout_ms, limit, length;
	bool has_mode, has_limit, has_length;
	size_t args, envs; /* how many */
	size_t text_bytes; /* of all args and envs, each with a NUL */
};

/* Reads a payload. -EBADMSG if it is not made of sound fields, -EINVAL if a text holds a NUL or
 * an environment entry no '=', -ENAMETOOLONG if a path is. Unknown tags are passed over. */
int request_parse(const void *payload, size_t size, struct request *request);

/* Copies every text with this tag to `space` and points `slots` at them, then NULL. The payload
 * has been parsed, and its counts say how much room is needed. Returns the space used. */
size_t request_texts(const void *payload, size_t size, uint16_t tag, char **slots, char *space);

/* Copies a text as a C string; -ENAMETOOLONG if it does not fit. An absent one becomes "". */
int text_copy(const struct text *text, char *out, size_t room);

#endif

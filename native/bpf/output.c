#include "output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Writes all that was gathered; blocks while the reader is slow, and the rings fill meanwhile. */
int output_flush(struct output *out)
{
	size_t done = 0;

	while (done < out->used && out->error == 0) {
		ssize_t wrote = write(STDOUT_FILENO, out->bytes + done, out->used - done);

		if (wrote >= 0)
			done += (size_t)wrote;
		else if (errno != EINTR)
			out->error = -errno;
	}
	out->used = 0;
	return out->error;
}

void output_add(struct output *out, const void *record, size_t size)
{
	if (size > sizeof(out->bytes))
		return;
	if (out->used + size > sizeof(out->bytes))
		output_flush(out);
	memcpy(out->bytes + out->used, record, size);
	out->used += size;
}

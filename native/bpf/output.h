/* Records on their way to standard output, gathered so that a burst costs few writes. */
#ifndef SF_OUTPUT_H
#define SF_OUTPUT_H

#include <stddef.h>

enum { OUTPUT_BYTES = 65536 };

struct output {
	size_t used;
	int error; /* negative errno once a write has failed; everything after that is dropped */
	char bytes[OUTPUT_BYTES];
};

void output_add(struct output *out, const void *record, size_t size);
int output_flush(struct output *out);

#endif

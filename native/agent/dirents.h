/* Reading a directory a buffer at a time, without the memory that libraries keep for it. */
#ifndef SF_DIRENTS_H
#define SF_DIRENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dirents {
	int fd;
	size_t at, filled;
	_Alignas(8) char buffer[4096];
};

struct dirent_entry {
	const char *name;
	unsigned char type; /* DT_* */
};

/* Steps to the next entry but "." and "..". Returns 1, 0 at the end, or a negative errno. */
int dirents_next(struct dirents *dirents, struct dirent_entry *entry);

#endif

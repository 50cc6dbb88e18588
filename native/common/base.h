/* Small words used everywhere: scope cleanup, retry on EINTR, the end of a process. */
#ifndef SF_BASE_H
#define SF_BASE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CONTAINER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

#define RETRY(call)                                                                                \
	({                                                                                         \
		long result_;                                                                      \
		do {                                                                               \
			result_ = (call);                                                          \
		} while (result_ == -1 && errno == EINTR);                                         \
		result_;                                                                           \
	})

static inline void close_and_forget(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static inline void free_pointed(void *pointer)
{
	free(*(void **)pointer);
}

/* An int that is closed, a pointer that is freed, when its scope ends. */
#define AUTO_CLOSE __attribute__((cleanup(close_and_forget)))
#define AUTO_FREE __attribute__((cleanup(free_pointed)))

/* Says why on standard error and ends the process; only for the launcher's own start. */
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);

#endif

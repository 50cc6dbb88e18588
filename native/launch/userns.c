/*
 * User namespaces, one per range of ids. A namespace lives on in its descriptor when its
 * sandbox has gone, and the next sandbox with the same range enters it again. With it are kept,
 * when the node has asked for that, the other namespaces of the range's next sandbox.
 *
 * The helper process exists only to own a new namespace until its maps are written and a
 * descriptor is open; it does nothing and shares the launcher's memory read-only.
 */
#include "launch/launcher.h"

#include "common/sys.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum { EVICTION_TRIES = 32 };

static int write_map(pid_t pid, const char *kind, unsigned long base, unsigned long count)
{
	char path[64], line[64];
	int size = snprintf(line, sizeof(line), "0 %lu %lu\n", base, count);

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, kind);
	AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return write(fd, line, (size_t)size) == size ? 0 : -errno;
}

static int open_mapped(pid_t pid, unsigned long base, unsigned long count)
{
	char path[64];
	int status = write_map(pid, "uid_map", base, count);

	if (status == 0)
		status = write_map(pid, "gid_map", base, count);
	if (status < 0)
		return status;
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static int make(unsigned long base, unsigned long count)
{
	/* Its descriptors are shared, not copied: there may be many thousands. */
	struct sf_clone_args args = { .flags = CLONE_NEWUSER | CLONE_FILES,
				      .exit_signal = SIGCHLD };
	pid_t pid = sys_clone3(&args);

	if (pid < 0)
		return -errno;
	if (pid == 0)
		for (;;)
			pause();
	int fd = open_mapped(pid, base, count);

	kill(pid, SIGKILL);
	RETRY(waitpid(pid, NULL, 0));
	return fd;
}

static uint32_t *bucket(struct launcher *l, unsigned long base)
{
	/* Ranges mostly begin at multiples of their length. */
	return &l->userns_buckets[(base ^ base >> 16) % USERNS_BUCKETS];
}

static void unlink_known(struct launcher *l, struct userns *known)
{
	uint32_t self = (uint32_t)(known - l->userns) + 1;
	uint32_t *at = bucket(l, known->base);

	while (*at != self)
		at = &l->userns[*at - 1].next;
	*at = known->next;
}

/* Forgets one that was not used for long: the longest unused of a few, in turn. */
static struct userns *evict(struct launcher *l)
{
	struct userns *oldest = NULL;

	for (unsigned int i = 0; i < EVICTION_TRIES; i++) {
		struct userns *known = &l->userns[l->userns_hand++ % USERNS_MAX];

		if (oldest == NULL || known->used < oldest->used)
			oldest = known;
	}
	userns_unprepare(l, oldest);
	unlink_known(l, oldest);
	close(oldest->fd); /* a sandbox that is in it keeps it alive */
	return oldest;
}

struct userns *userns_find(struct launcher *l, unsigned long base, unsigned long count)
{
	for (uint32_t at = *bucket(l, base); at != 0; at = l->userns[at - 1].next)
		if (l->userns[at - 1].base == base && l->userns[at - 1].count == count)
			return &l->userns[at - 1];
	return NULL;
}

int userns_get(struct launcher *l, unsigned long base, unsigned long count, struct userns **found)
{
	struct userns *known = userns_find(l, base, count);

	if (known == NULL) {
		int fd = make(base, count);

		if (fd < 0)
			return fd;
		known = l->userns_count < USERNS_MAX ? &l->userns[l->userns_count++] : evict(l);
		*known = (struct userns){ .base = base, .count = count, .fd = fd };
		for (int i = 0; i < SPACES; i++)
			known->spaces[i] = -1;
		known->next = *bucket(l, base);
		*bucket(l, base) = (uint32_t)(known - l->userns) + 1;
	}
	known->used = ++l->userns_uses;
	*found = known;
	return 0;
}

bool userns_is_prepared(const struct userns *known)
{
	return known->spaces[0] >= 0;
}

int userns_prepare(struct launcher *l, struct userns *known)
{
	if (userns_is_prepared(known))
		return 0;
	if (l->prepared_count >= PREPARED_MAX)
		return -ENOSPC;
	int status = spaces_make(known->fd, known->spaces);

	if (status == 0)
		l->prepared_count++;
	return status;
}

void userns_unprepare(struct launcher *l, struct userns *known)
{
	if (!userns_is_prepared(known))
		return;
	spaces_drop(known->spaces);
	l->prepared_count--;
}

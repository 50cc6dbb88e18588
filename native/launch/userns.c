/*
 * User namespaces, one per range of ids. A namespace lives on in its descriptor when its
 * sandbox has gone, and the next sandbox with the same range enters it again.
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

static struct userns *place_for_one_more(struct launcher *l)
{
	if (l->userns_count < USERNS_MAX)
		return &l->userns[l->userns_count++];
	struct userns *oldest = &l->userns[0];

	for (unsigned int i = 1; i < l->userns_count; i++)
		if (l->userns[i].used < oldest->used)
			oldest = &l->userns[i];
	close(oldest->fd); /* a sandbox that is in it keeps it alive */
	return oldest;
}

int userns_get(struct launcher *l, unsigned long base, unsigned long count)
{
	for (unsigned int i = 0; i < l->userns_count; i++) {
		struct userns *known = &l->userns[i];

		if (known->base != base || known->count != count)
			continue;
		known->used = ++l->userns_uses;
		return known->fd;
	}
	int fd = make(base, count);

	if (fd < 0)
		return fd;
	struct userns *place = place_for_one_more(l);

	*place = (struct userns){ base, count, fd, ++l->userns_uses };
	return fd;
}

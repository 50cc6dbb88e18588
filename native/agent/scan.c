/* Covering a tree of directories with a watch, a few entries at a step. */
#include "agent/watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>

enum { ENTRIES_PER_STEP = 256 };

struct scan {
	struct job job;		/* its id is the watch's */
	struct dirents dirents; /* of the directory being read; fd -1: none */
	uint32_t number;	/* that directory */
	bool is_first;		/* the WATCH request waits for the end */
};

static void scan_end(struct job *job)
{
	struct scan *s = CONTAINER(job, struct scan, job);

	close_and_forget(&s->dirents.fd);
	free(s);
}

static int open_watched(struct watch *w, uint32_t number)
{
	char path[2 * SF_PATH_MAX], below[SF_PATH_MAX];

	if (number == 0)
		return path_open(AT_FDCWD, w->path, O_RDONLY);
	if (!watched_path(w, number, "", below, sizeof(below)))
		return -ENAMETOOLONG;
	snprintf(path, sizeof(path), "%s/%s", w->path, below);
	return path_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

/* Opens it and asks the kernel for its events. Returns the descriptor or a negative errno. The
 * watch goes through the descriptor, so that it is for what has been opened. */
int watch_cover(struct watch *w, uint32_t number)
{
	const uint32_t events = IN_CREATE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM |
				IN_MOVED_TO | IN_EXCL_UNLINK |
				(number == 0 ? IN_DELETE_SELF | IN_MOVE_SELF : 0);
	int fd = open_watched(w, number);
	char path[32];

	if (fd < 0)
		return fd;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int wd = inotify_add_watch(w->source.fd, path, events);

	if (wd < 0 || watched_find(w, wd) != NULL) {
		int error = wd < 0 ? errno : EEXIST;

		close(fd);
		return -error;
	}
	watched_set_wd(w, number, wd);
	return fd;
}

static bool is_directory(int dir, const struct dirent_entry *entry)
{
	struct stat stat;

	if (entry->type != DT_UNKNOWN)
		return entry->type == DT_DIR;
	return fstatat(dir, entry->name, &stat, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(stat.st_mode);
}

/* The next directory that has been added and not been covered; false when there is none. */
static bool open_next(struct agent *a, struct watch *w, struct scan *s)
{
	for (uint32_t i = 1; i < w->count; i++) {
		if (w->all[i].name == NULL || w->all[i].wd >= 0)
			continue;
		int fd = watch_cover(w, i);

		if (fd < 0) {
			if (fd == -ENOSPC)
				watch_overflows(a, w);
			watched_drop(w, i, watch_forget_wd);
			continue;
		}
		s->dirents.fd = fd;
		s->dirents.at = s->dirents.filled = 0;
		s->number = i;
		return true;
	}
	return false;
}

static void note_entry(struct agent *a, struct watch *w, struct scan *s,
		       const struct dirent_entry *entry)
{
	bool is_new = w->all[s->number].is_new;

	if (is_new)
		watch_tell(a, w, SF_EVENT_CREATE, s->number, entry->name);
	if (!is_directory(s->dirents.fd, entry) || watched_child(w, s->number, entry->name) >= 0)
		return;
	if (watched_add(w, s->number, entry->name, is_new) < 0)
		watch_overflows(a, w);
}

static int scan_some(struct agent *a, struct watch *w, struct scan *s)
{
	struct dirent_entry entry;

	for (int i = 0; i < ENTRIES_PER_STEP; i++) {
		if (s->dirents.fd < 0 && !open_next(a, w, s))
			return 0;
		/* It may have been dropped since the last step. */
		bool is_gone = s->number >= w->count || w->all[s->number].wd < 0;

		if (is_gone || dirents_next(&s->dirents, &entry) <= 0)
			close_and_forget(&s->dirents.fd);
		else
			note_entry(a, w, s, &entry);
	}
	return 1;
}

static int scan_step(struct agent *a, struct job *job)
{
	struct scan *s = CONTAINER(job, struct scan, job);
	struct watch *w = watch_find(a, job->id);

	if (w == NULL)
		return 0;
	int status = act_as(a, &w->identity);

	if (status == 0)
		status = scan_some(a, w, s);
	act_as_root(a);
	if (status > 0)
		return 1;
	if (s->is_first)
		reply_result(a, job->id, 0, NULL);
	return 0;
}

void scan_start(struct agent *a, struct watch *w, bool is_first)
{
	struct scan *s = job_is_known(a, w->id) ? NULL : calloc(1, sizeof(*s));

	if (s == NULL)
		return; /* it is under way, or there is no memory and new directories go unseen */
	s->job = (struct job){ .id = w->id, .type = SF_WATCH, .step = scan_step, .end = scan_end };
	s->is_first = is_first;
	s->dirents.fd = -1;
	if (is_first) {
		s->dirents.fd = path_open(AT_FDCWD, w->path, O_RDONLY | O_DIRECTORY);
		s->number = 0;
	}
	job_add(a, &s->job);
}

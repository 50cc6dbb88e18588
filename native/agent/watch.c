/*
 * WATCH: changes below a path. Names are what the kernel reports of the sandbox's own file
 * system; a flood of changes is cut short by the kernel's queue, and the node is told that
 * something was lost. How much of a tree one watch covers is limited, and told likewise.
 */
#include "agent/watch.h"

#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>

struct watch *watch_find(struct agent *a, uint32_t id)
{
	struct watch *w = a->watches;

	while (w != NULL && w->id != id)
		w = w->next;
	return w;
}

static void send_event(struct agent *a, uint32_t id, uint16_t flags, uint32_t kind,
		       const char *path)
{
	uint8_t space[SF_PATH_MAX + 64];
	struct builder fields = { .data = space, .room = sizeof(space) };

	build_u32(&fields, SF_TAG_EVENT, kind);
	build_bytes(&fields, SF_TAG_PATH, path, strlen(path));
	reply_send(a, SF_EVENT, id, flags, 0, fields.data, fields.used);
}

void watch_tell(struct agent *a, struct watch *w, uint32_t kind, uint32_t number, const char *name)
{
	char path[SF_PATH_MAX];

	if (watched_path(w, number, name, path, sizeof(path)))
		send_event(a, w->id, 0, kind, path);
}

/* Once: afterwards the watch is known to be incomplete. */
void watch_overflows(struct agent *a, struct watch *w)
{
	if (!w->is_full)
		send_event(a, w->id, SF_FLAG_OVERFLOW, SF_EVENT_CREATE, "");
	w->is_full = true;
}

void watch_forget_wd(struct watch *w, int wd)
{
	inotify_rm_watch(w->source.fd, wd);
}

void watch_free(struct agent *a, struct watch *w)
{
	struct watch **at = &a->watches;

	while (*at != w)
		at = &(*at)->next;
	*at = w->next;
	a->watch_count--;
	source_close(a->epoll, &w->source);
	for (uint32_t i = 1; i < w->count; i++)
		free(w->all[i].name);
	free(w->all);
	free(w);
}

/* Directories come and go: the tree follows. */
static void follow_directory(struct agent *a, struct watch *w, uint32_t number,
			     const struct inotify_event *event)
{
	int child = watched_child(w, number, event->name);

	if (event->mask & (IN_MOVED_FROM | IN_DELETE)) {
		if (child >= 0)
			watched_drop(w, (uint32_t)child, watch_forget_wd);
		return;
	}
	if (!(event->mask & (IN_CREATE | IN_MOVED_TO)))
		return;
	if (child < 0 && watched_add(w, number, event->name, true) < 0)
		watch_overflows(a, w);
	scan_start(a, w, false);
}

static uint32_t kind_of(uint32_t mask)
{
	if (mask & (IN_CREATE | IN_MOVED_TO))
		return SF_EVENT_CREATE;
	if (mask & IN_MODIFY)
		return SF_EVENT_WRITE;
	if (mask & (IN_DELETE | IN_DELETE_SELF))
		return SF_EVENT_REMOVE;
	if (mask & (IN_MOVED_FROM | IN_MOVE_SELF))
		return SF_EVENT_RENAME;
	return mask & IN_ATTRIB ? SF_EVENT_CHMOD : 0;
}

static void serve_event(struct agent *a, struct watch *w, const struct inotify_event *event)
{
	if (event->mask & IN_Q_OVERFLOW) {
		send_event(a, w->id, SF_FLAG_OVERFLOW, SF_EVENT_CREATE, "");
		return;
	}
	struct watched *one = watched_find(w, event->wd);

	if (one == NULL)
		return; /* the last events of something dropped */
	uint32_t number = (uint32_t)(one - w->all), kind = kind_of(event->mask);
	const char *name = event->len > 0 ? event->name : "";

	/* A directory below says of itself only what its parent says of it by name. The hidden
	 * file of a write is the agent's own; that the write is over shows under the real name. */
	if (kind != 0 && (event->len > 0 || number == 0) &&
	    strncmp(name, WRITE_PREFIX, strlen(WRITE_PREFIX)) != 0)
		watch_tell(a, w, kind, number, name);
	if (event->mask & IN_IGNORED)
		watched_drop(w, number, watch_forget_wd);
	else if (w->is_recursive && (event->mask & IN_ISDIR) && event->len > 0)
		follow_directory(a, w, number, event);
}

static void on_watch(struct source *source, uint32_t events)
{
	struct watch *w = CONTAINER(source, struct watch, source);
	struct agent *a = source->owner;
	_Alignas(struct inotify_event) char buffer[4096];

	(void)events;
	if (!replies_have_room(a)) {
		source_want(a->epoll, source, 0);
		a->watches_wait = true;
		return;
	}
	ssize_t size = RETRY(read(source->fd, buffer, sizeof(buffer)));

	for (ssize_t at = 0; at < size;) {
		const struct inotify_event *event = (const struct inotify_event *)(buffer + at);

		serve_event(a, w, event);
		at += (ssize_t)sizeof(*event) + event->len;
	}
}

void watches_resume(struct agent *a)
{
	if (!a->watches_wait)
		return;
	a->watches_wait = false;
	for (struct watch *w = a->watches; w != NULL; w = w->next)
		source_want(a->epoll, &w->source, EPOLLIN);
}

/* Allocates a watch and covers the path itself. Returns 1 for a directory, 0 for something else,
 * or a negative errno. */
static int cover_path(struct agent *a, struct watch *w)
{
	struct stat stat;
	int inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);

	if (inotify < 0)
		return -errno;
	w->source.owner = a;
	w->source.ready = on_watch;
	int status = source_add(a->epoll, &w->source, inotify, EPOLLIN);
	struct watched *all = calloc(8, sizeof(*all));

	if (status < 0 || all == NULL) {
		free(all);
		return status < 0 ? status : -ENOMEM;
	}
	w->all = all;
	w->room = 8;
	w->count = 1;
	w->all[0].wd = -1;
	AUTO_CLOSE int fd = watch_cover(w, 0);

	if (fd < 0)
		return fd;
	return fstat(fd, &stat) ? -errno : S_ISDIR(stat.st_mode);
}

void serve_watch(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	if (watch_find(a, head->id) != NULL) {
		if (!job_is_known(a, head->id))
			reply_result(a, head->id, 0, NULL);
		return;
	}
	if (a->watch_count >= SF_WATCHES_MAX) {
		reply_error(a, head->id, EAGAIN, "%d paths are being watched", SF_WATCHES_MAX);
		return;
	}
	struct watch *w = calloc(1, sizeof(*w));

	if (w == NULL || files_begin(a, head->id, request, &w->identity, w->path) < 0) {
		if (w == NULL)
			reply_error(a, head->id, ENOMEM, "cannot watch: %s", strerror(ENOMEM));
		free(w);
		return;
	}
	w->id = head->id;
	w->source.fd = -1;
	w->next = a->watches;
	a->watches = w;
	a->watch_count++;
	w->is_recursive = head->flags & SF_FLAG_RECURSIVE;
	int status = cover_path(a, w);

	if (status > 0 && w->is_recursive)
		scan_start(a, w, true);
	else if (status >= 0)
		reply_result(a, head->id, 0, NULL);
	act_as_root(a);
	if (status >= 0)
		return;
	files_refuse(a, head->id, "watch", w->path, -status);
	watch_free(a, w);
}

void serve_unwatch(struct agent *a, uint32_t id)
{
	struct watch *w = watch_find(a, id);

	if (w != NULL)
		watch_free(a, w);
	reply_result(a, id, 0, NULL);
}

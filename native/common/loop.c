#include "common/loop.h"

#include "common/base.h"

#include <sys/epoll.h>

int source_add(int epoll, struct source *source, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	source->fd = fd;
	source->events = events;
	if (events == 0)
		return 0;
	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

int source_want(int epoll, struct source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };
	int operation = events == 0	      ? EPOLL_CTL_DEL
			: source->events == 0 ? EPOLL_CTL_ADD
					      : EPOLL_CTL_MOD;

	if (source->fd < 0 || source->events == events)
		return 0;
	source->events = events;
	return epoll_ctl(epoll, operation, source->fd, &event) ? -errno : 0;
}

void source_close(int epoll, struct source *source)
{
	if (source->fd < 0)
		return;
	/* Said explicitly: a forked child may still hold the open file for a moment. */
	if (source->events != 0)
		epoll_ctl(epoll, EPOLL_CTL_DEL, source->fd, NULL);
	close(source->fd);
	source->fd = -1;
}

int loop_once(int epoll, int timeout_ms)
{
	struct epoll_event event;
	long count = epoll_wait(epoll, &event, 1, timeout_ms);

	if (count <= 0)
		return 0;
	struct source *source = event.data.ptr;

	source->ready(source, event.events);
	return 1;
}

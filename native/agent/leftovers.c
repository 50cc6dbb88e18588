/*
 * A command has exited and something that it started in the background still writes to its
 * output. Nobody reads that any more, but closing the pipe would kill the writer by SIGPIPE, so
 * it is read and dropped until the last writer has gone. Only so many pipes are kept: beyond
 * that the oldest closes.
 */
#include "agent/process.h"

#include <poll.h>
#include <sys/epoll.h>

static void on_leftover(struct source *source, uint32_t events)
{
	struct agent *a = source->owner;
	ssize_t size = RETRY(read(source->fd, a->scratch, SF_FRAME_DATA_MAX));

	(void)events;
	a->packet_is_large = true;
	if (size == 0 || (size < 0 && errno != EAGAIN))
		source_close(a->epoll, source);
}

static bool has_writers(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return RETRY(poll(&poll_fd, 1, 0)) >= 0 && !(poll_fd.revents & (POLLHUP | POLLERR));
}

static struct source *next_place(struct agent *a)
{
	struct source *place = &a->leftovers[a->leftovers_next];

	a->leftovers_next = (a->leftovers_next + 1) % LEFTOVERS_MAX;
	if (place->owner != NULL)
		source_close(a->epoll, place);
	return place;
}

void stream_leave(struct agent *a, struct stream *stream)
{
	/* A terminal hangs up, as terminals do. */
	if (stream->source.fd >= 0 && !stream->process->is_terminal &&
	    has_writers(stream->source.fd)) {
		struct source *place = next_place(a);
		int fd = stream->source.fd;

		source_want(a->epoll, &stream->source, 0);
		stream->source.fd = -1;
		place->owner = a;
		place->ready = on_leftover;
		if (source_add(a->epoll, place, fd, EPOLLIN) < 0)
			source_close(a->epoll, place);
		return;
	}
	source_close(a->epoll, &stream->source);
}

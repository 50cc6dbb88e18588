/* Giving a command its input, as fast as it takes it. */
#include "agent/process.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/uio.h>

static void flush(struct agent *a, struct process *p);

static void on_writable(struct source *source, uint32_t events)
{
	struct input *input = CONTAINER(source, struct input, source);

	(void)events;
	flush(source->owner, input->process);
}

void input_open(struct agent *a, struct process *p, int fd)
{
	p->input.source.ready = on_writable;
	source_add(a->epoll, &p->input.source, fd, 0);
}

/* The reader is gone: what waits will never be taken. */
void input_close(struct agent *a, struct process *p)
{
	struct input *input = &p->input;

	if (input->source.fd < 0)
		return;
	input->reader_gone = true;
	source_close(a->epoll, &input->source);
	process_speaks(a, p, SAY_STDIN);
}

/* Returns what writev does; at least one byte waits. */
static ssize_t write_some(struct input *input)
{
	struct iovec pieces[2];
	size_t waiting = (size_t)(input->ring.tail - input->ring.head);
	int count = ring_peek(&input->ring, input->ring.head, waiting, pieces);

	return RETRY(writev(input->source.fd, pieces, count));
}

/* All has been taken and the end is due. A terminal has no end, only a character that means it. */
static void finish(struct agent *a, struct process *p)
{
	struct input *input = &p->input;

	if (p->is_terminal && write(input->source.fd, "\4", 1) < 0 && errno == EAGAIN) {
		source_want(a->epoll, &input->source, EPOLLOUT);
		return;
	}
	source_close(a->epoll, &input->source);
}

static void flush(struct agent *a, struct process *p)
{
	struct input *input = &p->input;

	if (input->source.fd < 0)
		return;
	if (input->ring.tail > input->ring.head) {
		ssize_t size = write_some(input);

		if (size < 0 && errno != EAGAIN) {
			ring_drop(&input->ring, input->ring.head);
			input_close(a, p);
			return;
		}
		if (size > 0) {
			ring_drop(&input->ring, input->ring.head + (uint64_t)size);
			process_speaks(a, p, SAY_STDIN);
		}
	}
	if (input->ring.tail > input->ring.head)
		source_want(a->epoll, &input->source, EPOLLOUT);
	else if (input->ends)
		finish(a, p);
	else
		source_want(a->epoll, &input->source, 0);
}

/* Copies to the ring what fits the window; true if that is all. */
static bool keep(struct input *input, const uint8_t *data, size_t size)
{
	while (size > 0) {
		uint8_t *at;
		size_t room = ring_room(&input->ring, size, SF_WINDOW, &at);

		if (room == 0)
			return false;
		memcpy(at, data, room);
		ring_add(&input->ring, room);
		data += room;
		size -= room;
	}
	return true;
}

void input_take(struct agent *a, const struct sf_frame *head, const uint8_t *data)
{
	struct process *p = process_find(a, head->id);

	if (p == NULL)
		return;
	struct input *input = &p->input;

	/* After a gap, or with nobody to read, the node is told where things stand. */
	if (input->source.fd < 0 || input->ends || head->position > input->ring.tail) {
		process_speaks(a, p, SAY_STDIN);
		return;
	}
	uint64_t known = input->ring.tail - head->position;
	size_t skip = (size_t)MIN(known, (uint64_t)head->size);

	if (keep(input, data + skip, head->size - skip) && known <= head->size)
		input->ends = head->flags & SF_FLAG_EOF;
	flush(a, p);
}

/* Reading what a command writes, under the window and its limit. */
#include "agent/process.h"

#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

static bool is_full(const struct output *output)
{
	return output->ring.tail - output->ring.head >= SF_WINDOW ||
	       output->segment_count >= SEGMENTS_MAX;
}

/* Notes that the bytes up to the ring's tail came from this stream. */
static bool add_segment(struct output *output, bool is_error)
{
	size_t end = output->segment_first + output->segment_count;

	if (output->segment_count > 0 && output->segments[end - 1].is_error == is_error) {
		output->segments[end - 1].end = output->ring.tail;
		return true;
	}
	if (end == output->segment_room) {
		size_t room = MAX(output->segment_room * 2, (size_t)4);
		struct segment *larger = realloc(output->segments, room * sizeof(*larger));

		if (larger == NULL)
			return false;
		output->segments = larger;
		output->segment_room = room;
	}
	output->segments[end] = (struct segment){ output->ring.tail, is_error };
	output->segment_count++;
	return true;
}

/* Forgets segments whose bytes have been acknowledged. */
static void drop_segments(struct output *output)
{
	while (output->segment_count > 0 &&
	       output->segments[output->segment_first].end <= output->ring.head) {
		output->segment_first++;
		output->segment_count--;
	}
	if (output->segment_count == 0) {
		free(output->segments);
		output->segments = NULL;
		output->segment_first = output->segment_room = 0;
	} else if (output->segment_first > output->segment_room / 2) {
		memmove(output->segments, output->segments + output->segment_first,
			output->segment_count * sizeof(*output->segments));
		output->segment_first = 0;
	}
}

size_t output_next(const struct output *output, size_t max, bool *is_error)
{
	const struct segment *low = output->segments + output->segment_first;
	size_t count = output->segment_count;

	while (count > 1) {
		size_t half = count / 2;

		if (low[half - 1].end > output->sent) {
			count = half;
		} else {
			low += half;
			count -= half;
		}
	}
	*is_error = low->is_error;
	return MIN(max, (size_t)(low->end - output->sent));
}

void output_free(struct output *output)
{
	ring_drop(&output->ring, output->ring.tail);
	drop_segments(output);
}

/* Reads and counts, beyond the limit or out of memory. The scratch pages are free between events.
 */
static ssize_t read_and_drop(struct agent *a, struct output *output, struct stream *stream)
{
	size_t want = MIN(stream->left, (size_t)SF_FRAME_DATA_MAX);
	ssize_t size = RETRY(read(stream->source.fd, a->scratch, want));

	a->packet_is_large = true;
	if (size > 0)
		output->dropped += (uint64_t)size;
	return size;
}

static ssize_t read_and_keep(struct agent *a, struct output *output, struct stream *stream)
{
	uint8_t *at;
	int waiting = 0;

	ioctl(stream->source.fd, FIONREAD, &waiting);
	size_t want = MIN((size_t)MAX(waiting, 4096), (size_t)SF_FRAME_DATA_MAX);

	want = MIN(want, stream->left);
	want = (size_t)MIN((uint64_t)want, output->limit - output->ring.tail);
	size_t room = ring_room(&output->ring, want, SF_WINDOW, &at);

	if (room == 0)
		return read_and_drop(a, output, stream);
	ssize_t size = RETRY(read(stream->source.fd, at, room));

	if (size > 0) {
		ring_add(&output->ring, (size_t)size);
		if (!add_segment(output, stream->is_error))
			output->ring.tail -= (uint64_t)size, output->dropped += (uint64_t)size;
	} else {
		ring_drop(&output->ring, output->ring.head); /* gives the memory back if empty */
	}
	return size;
}

/* One read. True while more may be read at once. */
static bool read_stream(struct agent *a, struct stream *stream)
{
	struct process *p = stream->process;
	struct output *output = &p->output;
	bool is_draining = p->state == PROCESS_DRAINING;
	ssize_t size;

	if (output->ring.tail >= output->limit) {
		size = read_and_drop(a, output, stream);
	} else if (is_full(output)) {
		source_want(a->epoll, &stream->source, 0); /* until the node acknowledges */
		return false;
	} else {
		size = read_and_keep(a, output, stream);
		if (size > 0)
			process_speaks(a, p, 0);
	}
	if (size > 0 && is_draining)
		stream->left -= (size_t)size;
	if (size > 0 && stream->left > 0)
		return true;
	/* The end, or EIO from a terminal nobody holds; while draining, also nothing more to read.
	 */
	if (size >= 0 || errno != EAGAIN || is_draining) {
		stream_leave(a, stream);
		process_settle(a, p);
	}
	return false;
}

static void on_stream(struct source *source, uint32_t events)
{
	(void)events;
	read_stream(source->owner, CONTAINER(source, struct stream, source));
}

void stream_open(struct agent *a, struct process *p, struct stream *stream, int fd)
{
	stream->process = p;
	stream->left = SIZE_MAX;
	stream->source.ready = on_stream;
	source_add(a->epoll, &stream->source, fd, EPOLLIN);
}

/* The process has exited: only what lies in the pipe now still belongs to it. A background child
 * may hold the other end for ever, so the end of the file is not waited for. */
static void drain(struct agent *a, struct stream *stream)
{
	int waiting = 0;

	if (stream->source.fd < 0)
		return;
	/* A terminal passes bytes on in the background and cannot say how many are to come. */
	if (!stream->process->is_terminal && ioctl(stream->source.fd, FIONREAD, &waiting) == 0)
		stream->left = (size_t)waiting;
	else
		stream->left = SF_WINDOW;
	if (stream->left == 0)
		stream_leave(a, stream);
	while (stream->source.fd >= 0 && read_stream(a, stream))
		;
}

void streams_drain(struct agent *a, struct process *p)
{
	drain(a, &p->out);
	drain(a, &p->err);
}

void streams_resume(struct agent *a, struct process *p)
{
	if (is_full(&p->output) && p->output.ring.tail < p->output.limit)
		return;
	source_want(a->epoll, &p->out.source, EPOLLIN);
	source_want(a->epoll, &p->err.source, EPOLLIN);
}

void streams_close(struct agent *a, struct process *p)
{
	source_close(a->epoll, &p->out.source);
	source_close(a->epoll, &p->err.source);
}

void output_ack(struct agent *a, struct process *p, uint64_t position)
{
	/* What has not been sent cannot have arrived. */
	ring_drop(&p->output.ring, MIN(position, p->output.sent));
	drop_segments(&p->output);
	streams_resume(a, p);
}

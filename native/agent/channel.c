/* The channel to the node: frames in, one at a time, and replies and output out. */
#include "agent/agent.h"

#include "agent/process.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { PACKET_SIZE = sizeof(struct sf_frame) + SF_FRAME_DATA_MAX, FRAMES_PER_EVENT = 16 };

/* Nobody is left who could ask for anything: the sandbox ends. Where the agent is not pid 1 it is
 * a guest among other processes, and whoever started it sees to them. */
__attribute__((noreturn)) static void channel_lost(void)
{
	if (getpid() == 1)
		kill(-1, SIGKILL);
	_exit(0);
}

int channel_send(struct agent *a, const struct sf_frame *head, const struct iovec *data, int count)
{
	struct iovec pieces[3] = { { (void *)head, sizeof(*head) } };
	struct msghdr message = { .msg_iov = pieces, .msg_iovlen = (size_t)count + 1 };

	for (int i = 0; i < count; i++)
		pieces[i + 1] = data[i];
	if (RETRY(sendmsg(a->channel.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)) >= 0)
		return 0;
	if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM)
		return -EAGAIN;
	channel_lost();
}

bool replies_have_room(const struct agent *a)
{
	return a->replies_bytes < REPLIES_HIGH;
}

void reply_send(struct agent *a, uint16_t type, uint32_t id, uint16_t flags, uint64_t position,
		const void *payload, size_t size)
{
	struct sf_frame head = {
		.size = (uint32_t)size, .type = type, .flags = flags, .id = id, .position = position
	};
	struct iovec data = { (void *)payload, size };

	if (a->replies == NULL && channel_send(a, &head, &data, size > 0) == 0)
		return;
	struct reply *reply = malloc(sizeof(*reply) + sizeof(head) + size);

	/* A lost reply would leave the node waiting for ever; without memory the sandbox is over.
	 */
	if (reply == NULL)
		channel_lost();
	reply->next = NULL;
	reply->size = sizeof(head) + size;
	memcpy(reply->frame, &head, sizeof(head));
	if (size > 0)
		memcpy(reply->frame + sizeof(head), payload, size);
	*a->replies_end = reply;
	a->replies_end = &reply->next;
	a->replies_bytes += reply->size;
}

void reply_result(struct agent *a, uint32_t id, uint16_t flags, const struct builder *fields)
{
	reply_send(a, SF_RESULT, id, flags, 0, fields ? fields->data : NULL,
		   fields ? fields->used : 0);
}

void reply_error(struct agent *a, uint32_t id, int error, const char *format, ...)
{
	uint8_t space[MESSAGE_SIZE + 64];
	struct builder fields = { .data = space, .room = sizeof(space) };
	char text[MESSAGE_SIZE];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	build_u32(&fields, SF_TAG_ERRNO, (uint32_t)error);
	build_bytes(&fields, SF_TAG_MESSAGE, text, strlen(text));
	reply_send(a, SF_ERROR, id, 0, 0, fields.data, fields.used);
}

static bool send_first_reply(struct agent *a)
{
	struct reply *reply = a->replies;
	struct sf_frame head;
	struct iovec data = { reply->frame + sizeof(head), reply->size - sizeof(head) };

	memcpy(&head, reply->frame, sizeof(head));
	if (channel_send(a, &head, &data, data.iov_len > 0) < 0)
		return false;
	a->replies = reply->next;
	if (a->replies == NULL)
		a->replies_end = &a->replies;
	a->replies_bytes -= reply->size;
	free(reply);
	return true;
}

/* One frame of the process that has waited longest; it goes to the end if it has more. */
static bool send_first_speaker(struct agent *a)
{
	struct process *p = a->speakers;
	int status = process_speak(a, p);

	if (status == -EAGAIN)
		return false;
	if (a->speakers != p)
		return true; /* it has been freed or has moved on */
	speakers_forget(a, p);
	if (status > 0)
		process_speaks(a, p, 0);
	return true;
}

void channel_pump(struct agent *a)
{
	bool is_open = true;

	while (is_open && a->replies != NULL)
		is_open = send_first_reply(a);
	while (is_open && a->speakers != NULL)
		is_open = send_first_speaker(a);
	if (replies_have_room(a))
		watches_resume(a);
	/* A node that asks faster than it listens is heard again when it has listened. */
	source_want(a->epoll, &a->channel,
		    (replies_have_room(a) ? EPOLLIN : 0) | (is_open ? 0 : EPOLLOUT));
}

/* Gives back the pages that a burst of large frames has touched. */
static void shrink_packet(struct agent *a)
{
	if (!a->packet_is_large)
		return;
	madvise(a->packet, PACKET_SIZE, MADV_DONTNEED);
	madvise(a->scratch, SF_FRAME_DATA_MAX, MADV_DONTNEED);
	a->packet_is_large = false;
}

static void on_channel(struct source *source, uint32_t events)
{
	struct agent *a = source->owner;
	struct sf_frame head;

	if ((events & (EPOLLERR | EPOLLHUP)) && !(events & EPOLLIN))
		channel_lost();
	if (!(events & EPOLLIN))
		return;
	for (int i = 0; i < FRAMES_PER_EVENT && replies_have_room(a); i++) {
		ssize_t size = RETRY(recv(source->fd, a->packet, PACKET_SIZE, MSG_DONTWAIT));

		if (size < 0 && errno == EAGAIN) {
			shrink_packet(a);
			return;
		}
		if (size <= 0)
			channel_lost();
		a->packet_is_large |= size > 4096;
		if (frame_open(a->packet, (size_t)size, &head) == 0)
			dispatch(a, &head, a->packet + sizeof(head));
		else
			reply_error(a, 0, EBADMSG, "a packet was not a frame");
	}
}

void channel_start(struct agent *a)
{
	a->replies_end = &a->replies;
	a->channel.owner = a;
	a->channel.ready = on_channel;
	a->packet =
	    mmap(NULL, PACKET_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	a->scratch = mmap(NULL, SF_FRAME_DATA_MAX, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->packet == MAP_FAILED || a->scratch == MAP_FAILED ||
	    source_add(a->epoll, &a->channel, a->options.channel, EPOLLIN) < 0)
		channel_lost();
}

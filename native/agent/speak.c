/* What the node hears of a command: STARTED, then input taken and output, then EXIT. */
#include "agent/process.h"

#include <sys/wait.h>

void process_speaks(struct agent *a, struct process *p, unsigned int what)
{
	p->say |= what;
	if (p->is_speaker)
		return;
	p->is_speaker = true;
	p->next_speaker = NULL;
	*a->speakers_end = p;
	a->speakers_end = &p->next_speaker;
}

void speakers_forget(struct agent *a, struct process *p)
{
	struct process **at = &a->speakers;

	if (!p->is_speaker)
		return;
	while (*at != p)
		at = &(*at)->next_speaker;
	*at = p->next_speaker;
	if (a->speakers_end == &p->next_speaker)
		a->speakers_end = at;
	p->is_speaker = false;
}

static int say_started(struct agent *a, struct process *p)
{
	uint8_t space[16];
	struct builder fields = { .data = space, .room = sizeof(space) };

	build_u32(&fields, SF_TAG_PID, (uint32_t)p->pid);
	struct sf_frame head = { .size = (uint32_t)fields.used, .type = SF_STARTED, .id = p->id };
	struct iovec data = { fields.data, fields.used };

	return channel_send(a, &head, &data, 1);
}

static int say_stdin(struct agent *a, struct process *p)
{
	struct sf_frame head = {
		.type = SF_STDIN_ACK,
		.id = p->id,
		.flags = p->input.reader_gone ? SF_FLAG_EOF : 0,
		.position = p->input.ring.head,
	};

	return channel_send(a, &head, NULL, 0);
}

static int say_output(struct agent *a, struct process *p)
{
	struct iovec pieces[2];
	bool is_error;
	size_t size = output_next(&p->output, SF_FRAME_DATA_MAX, &is_error);
	struct sf_frame head = {
		.size = (uint32_t)size,
		.type = SF_OUTPUT,
		.flags = is_error ? SF_FLAG_STDERR : 0,
		.id = p->id,
		.position = p->output.sent,
	};
	int status = channel_send(a, &head, pieces,
				  ring_peek(&p->output.ring, p->output.sent, size, pieces));

	if (status == 0)
		p->output.sent += size;
	return status;
}

static int say_exit(struct agent *a, struct process *p)
{
	uint8_t space[128];
	struct builder fields = { .data = space, .room = sizeof(space) };

	if (WIFSIGNALED(p->status))
		build_u32(&fields, SF_TAG_SIGNAL, (uint32_t)WTERMSIG(p->status));
	else
		build_u32(&fields, SF_TAG_CODE, (uint32_t)WEXITSTATUS(p->status));
	if (p->output.dropped > 0)
		build_u64(&fields, SF_TAG_DROPPED, p->output.dropped);
	build_u64(&fields, SF_TAG_CPU_US, p->cpu_us);
	build_u64(&fields, SF_TAG_RSS_BYTES, p->rss_bytes);
	struct sf_frame head = {
		.size = (uint32_t)fields.used,
		.type = SF_EXIT,
		.flags = p->has_timed_out ? SF_FLAG_TIMED_OUT : 0,
		.id = p->id,
		.position = p->output.ring.tail,
	};
	struct iovec data = { fields.data, fields.used };

	return channel_send(a, &head, &data, 1);
}

static int say(struct agent *a, struct process *p, unsigned int what,
	       int (*frame)(struct agent *, struct process *))
{
	int status = frame(a, p);

	if (status == 0)
		p->say &= ~what;
	return status;
}

/* Sends one frame. Returns 1 if there is more to say, 0 if not, -EAGAIN when nothing went. */
int process_speak(struct agent *a, struct process *p)
{
	bool has_output = p->output.sent < p->output.ring.tail;
	int status = 0;

	if (p->say & SAY_STARTED)
		status = say(a, p, SAY_STARTED, say_started);
	else if (p->say & SAY_STDIN)
		status = say(a, p, SAY_STDIN, say_stdin);
	else if (has_output)
		status = say_output(a, p);
	else if (p->say & SAY_EXIT)
		status = say(a, p, SAY_EXIT, say_exit);
	if (status < 0)
		return status;
	return p->say != 0 || p->output.sent < p->output.ring.tail;
}

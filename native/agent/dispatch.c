/* Which request goes where. */
#include "agent/agent.h"

#include "agent/process.h"

#include <string.h>

static void serve_hello(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	uint8_t space[16];
	struct builder fields = { .data = space, .room = sizeof(space) };

	if (request->version != SF_PROTOCOL) {
		reply_error(a, head->id, EPROTONOSUPPORT, "this agent speaks version %d",
			    SF_PROTOCOL);
		return;
	}
	/* Another node service may be listening now: half-told and half-written files are over. */
	jobs_drop_readers(a);
	uploads_abort(a);
	deadlines_go(a);
	build_u32(&fields, SF_TAG_VERSION, SF_PROTOCOL);
	reply_send(a, SF_WELCOME, head->id, 0, 0, fields.data, fields.used);
	processes_tell_all(a);
	reply_send(a, SF_READY, head->id, 0, 0, NULL, 0);
}

/* Frames whose payload is raw bytes, or nothing. True if it was one. */
static bool dispatch_plain(struct agent *a, const struct sf_frame *head, const uint8_t *payload)
{
	struct process *p;

	switch (head->type) {
	case SF_STDIN:
		input_take(a, head, payload);
		return true;
	case SF_ACK:
		p = process_find(a, head->id);
		if (p != NULL)
			output_ack(a, p, head->position);
		return true;
	case SF_HOLD:
		deadlines_hold(a);
		reply_send(a, SF_RESULT, head->id, 0, 0, NULL, 0);
		return true;
	case SF_GO:
		deadlines_go(a);
		return true;
	case SF_FORGET:
		serve_forget(a, head);
		return true;
	case SF_WRITE_DATA:
		serve_write_data(a, head, payload);
		return true;
	case SF_WRITE_END:
		serve_write_end(a, head);
		return true;
	case SF_UNWATCH:
		serve_unwatch(a, head->id);
		return true;
	default:
		return false;
	}
}

typedef void serve(struct agent *a, const struct sf_frame *head, const struct request *request);

static const struct {
	uint16_t type;
	bool has_path;
	serve *serve;
} requests[] = {
	{ SF_HELLO, false, serve_hello },   { SF_SIGNAL, false, serve_signal },
	{ SF_RESIZE, false, serve_resize }, { SF_PS, false, serve_ps },
	{ SF_STAT, true, serve_stat },	    { SF_LIST, true, serve_list },
	{ SF_READ, true, serve_read },	    { SF_WRITE, true, serve_write },
	{ SF_MKDIR, true, serve_mkdir },    { SF_REMOVE, true, serve_remove },
	{ SF_RENAME, true, serve_rename },  { SF_WATCH, true, serve_watch },
};

void dispatch(struct agent *a, const struct sf_frame *head, const uint8_t *payload)
{
	struct request request;

	if (dispatch_plain(a, head, payload))
		return;
	int status = request_parse(payload, head->size, &request);

	if (status < 0) {
		reply_error(a, head->id, -status, "the request is not well formed: %s",
			    strerror(-status));
		return;
	}
	if (head->type == SF_EXEC) {
		serve_exec(a, head, payload, &request);
		return;
	}
	for (size_t i = 0; i < COUNT(requests); i++) {
		if (requests[i].type != head->type)
			continue;
		if (requests[i].has_path && request.path.size == 0)
			reply_error(a, head->id, EINVAL, "the request names no path");
		else
			requests[i].serve(a, head, &request);
		return;
	}
	reply_error(a, head->id, ENOSYS, "this agent does not know request %u", head->type);
}

/* One request of the node, one answer. */
#include "launch/launcher.h"

#include "common/sys.h"

#include <stdio.h>
#include <string.h>

static const char *seq_of(const struct message *message)
{
	const char *seq = message_get(message, "seq");

	return seq != NULL && strlen(seq) < SEQ_SIZE ? seq : "";
}

static void answer_ok(struct launcher *l, const struct message *message)
{
	char data[64];
	struct message answer = { .data = data, .room = sizeof(data) };

	message_add(&answer, "seq", "%s", seq_of(message));
	message_add(&answer, "ok", "1");
	launcher_say(l, &answer, -1);
}

void sandbox_tell(struct launcher *l, const struct sandbox *sandbox)
{
	char data[ID_SIZE + 64];
	struct message event = { .data = data, .room = sizeof(data) };

	message_add(&event, "event", "sandbox");
	message_add(&event, "id", "%s", sandbox->id);
	message_add(&event, "pid", "%d", sandbox->pid);
	launcher_say(l, &event, sandbox->channel);
}

void sandbox_tell_exit(struct launcher *l, const struct sandbox *sandbox)
{
	char data[ID_SIZE + 64];
	struct message event = { .data = data, .room = sizeof(data) };

	message_add(&event, "event", "exit");
	message_add(&event, "id", "%s", sandbox->id);
	message_add(&event, "status", "%d", sandbox->status);
	launcher_say(l, &event, -1);
}

static void tell_all(struct launcher *l, enum sandbox_state state,
		     void (*tell)(struct launcher *, const struct sandbox *))
{
	for (uint32_t i = 0; i < l->sandbox_top; i++)
		if (l->sandboxes[i].state == state)
			tell(l, &l->sandboxes[i]);
}

/* "UID+IDS" of each, with commas between. What does not fit is not told, and found by `prepare`. */
static void add_prepared(struct launcher *l, struct message *answer)
{
	char list[PREPARED_MAX * 20] = "";
	size_t used = 0;

	for (unsigned int i = 0; i < l->userns_count; i++) {
		const struct userns *known = &l->userns[i];

		if (!userns_is_prepared(known))
			continue;
		used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%lu+%lu",
					 used > 0 ? "," : "", known->base, known->count);
	}
	message_add(answer, "prepared", "%s", list);
}

static int serve_hello(struct launcher *l, const struct message *message, struct failure *failure)
{
	char data[PREPARED_MAX * 20 + 128];
	struct message answer = { .data = data, .room = sizeof(data) };
	unsigned int live = 0;

	(void)failure;
	for (uint32_t i = 0; i < l->sandbox_top; i++)
		live += l->sandboxes[i].state == SANDBOX_LIVE;
	message_add(&answer, "seq", "%s", seq_of(message));
	message_add(&answer, "ok", "1");
	message_add(&answer, "version", "%d", SF_PROTOCOL);
	message_add(&answer, "pid", "%d", getpid());
	message_add(&answer, "sandboxes", "%u", live);
	add_prepared(l, &answer);
	launcher_say(l, &answer, -1);
	tell_all(l, SANDBOX_LIVE, sandbox_tell);
	tell_all(l, SANDBOX_GONE, sandbox_tell_exit);
	return 1;
}

static int serve_layer(struct launcher *l, const struct message *message, struct failure *failure)
{
	return layer_add(l, message, failure);
}

static int serve_unlayer(struct launcher *l, const struct message *message, struct failure *failure)
{
	return layer_remove(l, message_get(message, "digest"), failure);
}

static int serve_chunks(struct launcher *l, const struct message *message, struct failure *failure)
{
	char data[64];
	struct message answer = { .data = data, .room = sizeof(data) };
	int status = chunks_open(l, failure);

	if (status < 0)
		return status;
	message_add(&answer, "seq", "%s", seq_of(message));
	message_add(&answer, "ok", "1");
	launcher_say(l, &answer, l->chunks);
	return 1;
}

static int serve_create(struct launcher *l, const struct message *message, struct failure *failure)
{
	int status = sandbox_create(l, message, failure);

	return status < 0 ? status : 1; /* answered when it is ready */
}

static int serve_prepare(struct launcher *l, const struct message *message, struct failure *failure)
{
	unsigned long base, count;
	struct userns *range;
	int status = read_range(message, &base, &count, failure);

	if (status < 0)
		return status;
	status = userns_get(l, base, count, &range);
	if (status == 0)
		status = userns_prepare(l, range);
	if (status == -ENOSPC)
		return fail(failure, ENOSPC, "prepare", "%d ranges are prepared", PREPARED_MAX);
	if (status < 0)
		return fail(failure, -status, "prepare", "cannot make namespaces: %s",
			    strerror(-status));
	return 0;
}

static int serve_unprepare(struct launcher *l, const struct message *message,
			   struct failure *failure)
{
	unsigned long base, count;
	int status = read_range(message, &base, &count, failure);

	if (status < 0)
		return status;
	struct userns *known = userns_find(l, base, count);

	if (known != NULL)
		userns_unprepare(l, known);
	return 0;
}

static struct sandbox *named(struct launcher *l, const struct message *message)
{
	const char *id = message_get(message, "id");

	return id == NULL ? NULL : registry_find(l, id);
}

static int serve_kill(struct launcher *l, const struct message *message, struct failure *failure)
{
	struct sandbox *sandbox = named(l, message);

	if (sandbox == NULL)
		return fail(failure, ENOENT, "request", "there is no sandbox with this id");
	if (sandbox->child.fd >= 0)
		sys_pidfd_kill(sandbox->child.fd, SIGKILL);
	return 0; /* dead already is as good */
}

static int serve_forget(struct launcher *l, const struct message *message, struct failure *failure)
{
	struct sandbox *sandbox = named(l, message);

	if (sandbox == NULL)
		return 0; /* it may have been said twice */
	if (sandbox->state != SANDBOX_GONE)
		return fail(failure, EBUSY, "request", "the sandbox is alive");
	registry_remove(l, sandbox);
	return 0;
}

static int serve_quit(struct launcher *l, const struct message *message, struct failure *failure)
{
	(void)failure;
	snprintf(l->quit_seq, sizeof(l->quit_seq), "%s", seq_of(message));
	l->is_quitting = true;
	return 1; /* answered when all have gone */
}

static const struct {
	const char *op;
	int (*serve)(struct launcher *l, const struct message *message, struct failure *failure);
} operations[] = {
	{ "hello", serve_hello },     { "layer", serve_layer },
	{ "unlayer", serve_unlayer }, { "create", serve_create },
	{ "kill", serve_kill },	      { "forget", serve_forget },
	{ "prepare", serve_prepare }, { "unprepare", serve_unprepare },
	{ "chunks", serve_chunks },   { "quit", serve_quit },
};

void requests_serve(struct launcher *l, struct message *message)
{
	struct failure failure = { 0 };

	if (!message_is_sound(message)) {
		fail(&failure, EBADMSG, "request", "the message is not made of key=value strings");
		launcher_refuse(l, "", &failure);
		return;
	}
	const char *op = message_get(message, "op");
	int status = fail(&failure, EINVAL, "request", "unknown op=");

	for (size_t i = 0; op != NULL && i < COUNT(operations); i++) {
		if (strcmp(op, operations[i].op) != 0)
			continue;
		failure.error = 0;
		status = operations[i].serve(l, message, &failure);
		break;
	}
	if (status < 0 && failure.error == 0)
		fail(&failure, -status, "request", "%s", strerror(-status));
	if (status < 0)
		launcher_refuse(l, seq_of(message), &failure);
	else if (status == 0)
		answer_ok(l, message);
}

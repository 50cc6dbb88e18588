/* Prints every constant and offset of wire.h as JSON, for the test that compares Python's mirror.
 */
#include "wire.h"

#include <stddef.h>
#include <stdio.h>

static const char *separator = "{";

static void say(const char *kind, const char *name, unsigned long value)
{
	printf("%s\"%s.%s\": %lu", separator, kind, name, value);
	separator = ",\n ";
}

#define CONSTANT(name) say("constant", #name, SF_##name)
#define TYPE(name) say("type", #name, SF_##name)
#define FLAG(name) say("flag", #name, SF_FLAG_##name)
#define TAG(name) say("tag", #name, SF_TAG_##name)
#define EVENT(name) say("event", #name, SF_EVENT_##name)
#define SIZE(name) say("size", #name, sizeof(struct name))
#define OFFSET(name, member) say("offset", #name "." #member, offsetof(struct name, member))

static void constants(void)
{
	CONSTANT(PROTOCOL);
	CONSTANT(FRAME_DATA_MAX);
	CONSTANT(WINDOW);
	CONSTANT(PROCESSES_MAX);
	CONSTANT(WRITES_MAX);
	CONSTANT(WATCHES_MAX);
	CONSTANT(LAUNCHER_MAX);
}

static void types(void)
{
	TYPE(HELLO);
	TYPE(EXEC);
	TYPE(STDIN);
	TYPE(ACK);
	TYPE(SIGNAL);
	TYPE(RESIZE);
	TYPE(FORGET);
	TYPE(PS);
	TYPE(STAT);
	TYPE(LIST);
	TYPE(READ);
	TYPE(WRITE);
	TYPE(WRITE_DATA);
	TYPE(WRITE_END);
	TYPE(MKDIR);
	TYPE(REMOVE);
	TYPE(RENAME);
	TYPE(WATCH);
	TYPE(HOLD);
	TYPE(GO);
	TYPE(UNWATCH);
	TYPE(WELCOME);
	TYPE(PROCESS);
	TYPE(READY);
	TYPE(STARTED);
	TYPE(OUTPUT);
	TYPE(EXIT);
	TYPE(STDIN_ACK);
	TYPE(RESULT);
	TYPE(ERROR);
	TYPE(EVENT);
}

static void flags(void)
{
	FLAG(STDIN);
	FLAG(PTY);
	FLAG(EOF);
	FLAG(STDERR);
	FLAG(TREE);
	FLAG(MORE);
	FLAG(PARENTS);
	FLAG(RECURSIVE);
	FLAG(ABORT);
	FLAG(NOFOLLOW);
	FLAG(TIMED_OUT);
	FLAG(OVERFLOW);
}

static void tags(void)
{
	TAG(VERSION);
	TAG(ARG);
	TAG(ENV);
	TAG(CWD);
	TAG(USER);
	TAG(TIMEOUT_MS);
	TAG(LIMIT);
	TAG(ROWS);
	TAG(COLS);
	TAG(SIGNAL);
	TAG(PID);
	TAG(STATE);
	TAG(CODE);
	TAG(DROPPED);
	TAG(CPU_US);
	TAG(RSS_BYTES);
	TAG(ERRNO);
	TAG(MESSAGE);
	TAG(PATH);
	TAG(TARGET);
	TAG(MODE);
	TAG(LENGTH);
	TAG(ENTRY);
	TAG(PROCESS);
	TAG(EVENT);
	TAG(STDIN_AT);
}

static void events(void)
{
	EVENT(CREATE);
	EVENT(WRITE);
	EVENT(REMOVE);
	EVENT(RENAME);
	EVENT(CHMOD);
}

static void structures(void)
{
	SIZE(sf_frame);
	OFFSET(sf_frame, size);
	OFFSET(sf_frame, type);
	OFFSET(sf_frame, flags);
	OFFSET(sf_frame, id);
	OFFSET(sf_frame, reserved);
	OFFSET(sf_frame, position);
	SIZE(sf_field);
	OFFSET(sf_field, tag);
	OFFSET(sf_field, reserved);
	OFFSET(sf_field, size);
	SIZE(sf_entry);
	OFFSET(sf_entry, size);
	OFFSET(sf_entry, mtime_ns);
	OFFSET(sf_entry, mode);
	OFFSET(sf_entry, uid);
	OFFSET(sf_entry, gid);
	OFFSET(sf_entry, name_size);
	OFFSET(sf_entry, target_size);
	OFFSET(sf_entry, reserved);
	SIZE(sf_process);
	OFFSET(sf_process, pid);
	OFFSET(sf_process, ppid);
	OFFSET(sf_process, uid);
	OFFSET(sf_process, command);
	OFFSET(sf_process, rss_bytes);
	OFFSET(sf_process, cpu_us);
	OFFSET(sf_process, state);
	OFFSET(sf_process, cmdline_size);
}

int main(void)
{
	constants();
	types();
	flags();
	tags();
	events();
	structures();
	puts("}");
	return 0;
}

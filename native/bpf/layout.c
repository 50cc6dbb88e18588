/* Prints sizes, offsets and constants of events.h as JSON, for the test that compares records.py.
 */
#include "events.h"

#include <stddef.h>
#include <stdio.h>

#define CONSTANT(name) printf("%s\"" #name "\": %d", separator(), (int)name)
#define SIZE(type) printf("%s\"" #type "\": %zu", separator(), sizeof(struct type))
#define OFFSET(type, field)                                                                        \
	printf("%s\"" #type "." #field "\": %zu", separator(), offsetof(struct type, field))

static const char *separator(void)
{
	static int printed;

	return printed++ ? ",\n  " : "{\n  ";
}

static void print_constants(void)
{
	CONSTANT(SN_PROTOCOL);
	CONSTANT(SN_SANDBOX_MAX);
	CONSTANT(SN_PROGRAM_MAX);
	CONSTANT(SN_PATH_MAX);
	CONSTANT(SN_RECORD_MAX);
	CONSTANT(SN_CALL);
	CONSTANT(SN_EXEC);
	CONSTANT(SN_DROPPED);
	CONSTANT(SN_BEAT);
	CONSTANT(SN_READY);
	CONSTANT(SN_FLAG_I386);
	CONSTANT(SN_FLAG_X32);
	CONSTANT(SN_FLAG_AT_INIT);
	CONSTANT(SN_FLAG_SHARES_PARENT);
	CONSTANT(SN_FLAG_UNLINKED);
	CONSTANT(SN_FLAG_URGENT);
	CONSTANT(SN_NR_FOREIGN);
	CONSTANT(SN_NR_EXEC);
}

static void print_sizes(void)
{
	SIZE(sn_header);
	SIZE(sn_call);
	SIZE(sn_exec);
	SIZE(sn_dropped);
	SIZE(sn_beat);
	SIZE(sn_ready);
}

static void print_offsets(void)
{
	OFFSET(sn_header, size);
	OFFSET(sn_header, type);
	OFFSET(sn_header, flags);
	OFFSET(sn_header, time_ns);
	OFFSET(sn_header, cgroup);
	OFFSET(sn_call, sandbox);
	OFFSET(sn_call, pid);
	OFFSET(sn_call, tid);
	OFFSET(sn_call, uid);
	OFFSET(sn_call, nr);
	OFFSET(sn_call, program);
	OFFSET(sn_call, args);
	OFFSET(sn_call, result);
	OFFSET(sn_exec, sandbox);
	OFFSET(sn_exec, pid);
	OFFSET(sn_exec, tid);
	OFFSET(sn_exec, uid);
	OFFSET(sn_exec, program);
	OFFSET(sn_exec, path);
	OFFSET(sn_dropped, sandbox);
	OFFSET(sn_dropped, nr);
	OFFSET(sn_dropped, count);
	OFFSET(sn_beat, reported);
	OFFSET(sn_beat, rate_limited);
	OFFSET(sn_beat, ring_full);
	OFFSET(sn_beat, unread);
	OFFSET(sn_ready, protocol);
}

int main(void)
{
	print_constants();
	print_sizes();
	print_offsets();
	printf("\n}\n");
	return 0;
}

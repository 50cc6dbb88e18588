/*
 * What the sensor tells: records from the eBPF programs (native/bpf/), through two ring
 * buffers and the sensor program's standard output, to sandfleet_security. Its mirror there is
 * records.py; native/bpf/layout.c prints every size, offset and constant of this file and a unit
 * test compares.
 *
 * A record starts with one header whose size counts all of it, so a reader can skip a type that
 * it does not know. Integers are little-endian, padding is explicit and zero. Text ends with a
 * NUL. The first record on standard output is SN_READY; SN_BEAT follows every second.
 */
#ifndef SF_EVENTS_H
#define SF_EVENTS_H

#ifndef __VMLINUX_H__
#include <stdint.h>
typedef uint16_t sn_u16;
typedef uint32_t sn_u32;
typedef uint64_t sn_u64;
typedef int32_t sn_s32;
typedef int64_t sn_s64;
#else
typedef __u16 sn_u16;
typedef __u32 sn_u32;
typedef __u64 sn_u64;
typedef __s32 sn_s32;
typedef __s64 sn_s64;
#endif

enum {
	SN_PROTOCOL = 1,
	SN_SANDBOX_MAX = 72, /* a sandbox id has 70 letters at most */
	SN_PROGRAM_MAX = 16,
	SN_PATH_MAX = 256,
	SN_RECORD_MAX = 4096, /* no record is larger */
};

enum sn_type {
	SN_CALL = 1, /* a watched system call came back */
	SN_EXEC = 2, /* a program was started */
	SN_DROPPED =
	    3,	      /* calls of one kind and sandbox that the rate limit held back this second */
	SN_BEAT = 4,  /* the sensor lives; totals since its start */
	SN_READY = 5, /* the programs are attached */
};

enum sn_flag {
	SN_FLAG_I386 = 1 << 0,	  /* a 32-bit call: `nr` is of the i386 table */
	SN_FLAG_X32 = 1 << 1,	  /* an x32 call: `nr` without its marker bit */
	SN_FLAG_AT_INIT = 1 << 2, /* aims at pid 1, which in a sandbox is the agent */
	SN_FLAG_SHARES_PARENT =
	    1 << 3,		   /* the caller shares its parent's memory, as vfork's child */
	SN_FLAG_UNLINKED = 1 << 4, /* the program's file has no name: memfd or removed */
	SN_FLAG_URGENT = 1 << 5,   /* came through the urgent ring */
};

enum { SN_NR_FOREIGN = -1 }; /* SN_DROPPED: 32-bit and x32 calls, all numbers together */
enum { SN_NR_EXEC = -2 };    /* SN_DROPPED: program starts */

struct sn_header {
	sn_u32 size;
	sn_u16 type;	/* enum sn_type */
	sn_u16 flags;	/* enum sn_flag */
	sn_u64 time_ns; /* CLOCK_BOOTTIME */
	sn_u64 cgroup;	/* id of the sandbox's directory in cgroup v2; 0 where it has none */
};

struct sn_call {
	struct sn_header header;
	char sandbox[SN_SANDBOX_MAX];
	sn_u32 pid; /* of the process, on the host */
	sn_u32 tid;
	sn_u32 uid; /* on the host */
	sn_s32 nr;
	char program[SN_PROGRAM_MAX];
	sn_u64 args[6]; /* of clone3: args[0] is its flags, not their address */
	sn_s64 result;
};

struct sn_exec {
	struct sn_header header;
	char sandbox[SN_SANDBOX_MAX];
	sn_u32 pid;
	sn_u32 tid;
	sn_u32 uid;
	sn_u32 reserved;
	char program[SN_PROGRAM_MAX];
	char path[SN_PATH_MAX]; /* as it was given to execve, cut where it is longer */
};

struct sn_dropped {
	struct sn_header header;
	char sandbox[SN_SANDBOX_MAX];
	sn_s32 nr;
	sn_u32 reserved;
	sn_u64 count;
};

struct sn_beat {
	struct sn_header header; /* cgroup: the directory that is watched, 0 while there is none */
	sn_u64 reported;	 /* records handed to the rings */
	sn_u64 rate_limited;	 /* held back by a sandbox's rate limit */
	sn_u64 ring_full;	 /* lost because the reader was too slow */
	sn_u64 unread;		 /* reads of kernel or user memory that failed */
};

struct sn_ready {
	struct sn_header header;
	sn_u32 protocol;
	sn_u32 reserved;
};

#endif

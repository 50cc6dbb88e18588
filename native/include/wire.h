/*
 * The contract between the node service (Python, sandfleet_node) and the two
 * faces of the native binary: the agent, which is pid 1 of a sandbox, and the
 * launcher, of which there is one per machine.
 *
 * Python's mirror is libs/common/sandfleet_common/wire.py. native/tests/layout.c
 * prints every constant and offset of this file, and a unit test compares.
 *
 * ---------------------------------------------------------------- the agent
 *
 * The channel is one end of an AF_UNIX SOCK_SEQPACKET socketpair that the agent
 * inherits. One packet is one frame: struct sf_frame, then `size` bytes of
 * payload. All integers are little-endian. In a virtual machine the same frames
 * run over a byte stream, which is why the header carries the size.
 *
 * Ids are chosen by the node and name a process or one file request within one
 * sandbox. They never repeat during the sandbox's life. A request whose id is
 * known already changes nothing and is answered with the present state, so the
 * node may repeat whatever it is not sure of.
 *
 * Output is never lost between two node services. The agent keeps what it has
 * read from a process until SF_ACK says that the node holds it; it stops
 * reading the process when SF_WINDOW bytes wait. `position` counts the bytes of
 * stdout and stderr together, in the order the agent read them; a repeated
 * frame carries the same position. After SF_HELLO the agent tells every process
 * it knows (SF_PROCESS), sends again all that is not acknowledged, and then the
 * exits (SF_EXIT), each of which stays on record until SF_FORGET.
 *
 * Input works the same way round: SF_STDIN carries its position, bytes below
 * what the agent has are skipped, and SF_STDIN_ACK says how many were handed to
 * the process. The node keeps at most SF_WINDOW bytes beyond that in flight.
 */
#ifndef SF_WIRE_H
#define SF_WIRE_H

#include <stdint.h>

enum {
	SF_PROTOCOL = 1,            /* said in SF_HELLO and SF_WELCOME */
	SF_FRAME_DATA_MAX = 65536,  /* payload bytes in one frame, at most */
	SF_WINDOW = 262144,         /* unacknowledged bytes per process and direction */
	SF_PROCESSES_MAX = 1024,    /* process records in one agent */
	SF_WRITES_MAX = 64,         /* files being written at once */
	SF_WATCHES_MAX = 64,
};

struct sf_frame {
	uint32_t size;      /* payload bytes that follow */
	uint16_t type;      /* enum sf_type */
	uint16_t flags;     /* enum sf_flag, meaning by type */
	uint32_t id;        /* process or request */
	uint32_t reserved;  /* zero */
	uint64_t position;  /* byte position, meaning by type */
};

/* Requests carry what does not fit the header as a list of fields. */
struct sf_field {
	uint16_t tag;       /* enum sf_tag */
	uint16_t reserved;  /* zero */
	uint32_t size;      /* value bytes that follow, unpadded */
};

enum sf_type {
	/* node to agent */
	SF_HELLO = 1,        /* U32 version; answered by SF_WELCOME, SF_PROCESS..., SF_READY */
	SF_EXEC = 2,         /* ARG+ ENV* [CWD] [USER] [TIMEOUT_MS] [LIMIT] [ROWS COLS]; flag STDIN, PTY */
	SF_STDIN = 3,        /* raw bytes at `position`; flag EOF closes after them */
	SF_ACK = 4,          /* output below `position` is safe with the node */
	SF_SIGNAL = 5,       /* SIGNAL; flag TREE: every process the command has started */
	SF_RESIZE = 6,       /* ROWS COLS */
	SF_FORGET = 7,       /* drop the record of a process that has exited */
	SF_PS = 8,           /* answered by SF_RESULT frames: PROCESS entries; MORE on all but the last */
	SF_HOLD = 9,         /* time limits stand still from now on -> RESULT: the sandbox will be frozen */
	SF_GO = 10,          /* they count again; so does SF_HELLO say */

	/* Files. Paths are bytes without NUL; relative ones start at the user's
	 * home. [USER] makes the agent act with that user's rights and ownership. */
	SF_STAT = 16,        /* PATH [USER]; flag NOFOLLOW -> RESULT: ENTRY */
	SF_LIST = 17,        /* PATH [USER] -> RESULT: ENTRY*, MORE on all but the last */
	SF_READ = 18,        /* PATH [USER] [LENGTH] at `position` -> RESULT raw bytes, MORE..., last has EOF when the file ended */
	SF_WRITE = 19,       /* PATH [USER] [MODE]; flag PARENTS: opens a hidden file beside the target */
	SF_WRITE_DATA = 20,  /* raw bytes at `position`, same id; not answered unless it fails */
	SF_WRITE_END = 21,   /* same id; renames into place -> RESULT: ENTRY. flag ABORT: drop it */
	SF_MKDIR = 22,       /* PATH [USER] [MODE]; flag PARENTS -> RESULT: ENTRY */
	SF_REMOVE = 23,      /* PATH [USER]; flag RECURSIVE */
	SF_RENAME = 24,      /* PATH TARGET [USER] -> RESULT: ENTRY */
	SF_WATCH = 25,       /* PATH [USER]; flag RECURSIVE -> RESULT, then SF_EVENT frames until SF_UNWATCH */
	SF_UNWATCH = 26,     /* id of the watch */

	/* agent to node */
	SF_WELCOME = 64,     /* U32 version */
	SF_PROCESS = 65,     /* PID STATE; `position` = output acknowledged so far; STDIN_AT = input taken */
	SF_READY = 66,       /* everything known has been told */
	SF_STARTED = 67,     /* PID */
	SF_OUTPUT = 68,      /* raw bytes from `position`; flag STDERR, else stdout or pty */
	SF_EXIT = 69,        /* CODE or SIGNAL, [DROPPED] [CPU_US] [RSS_BYTES]; `position` = output in all; flag TIMED_OUT */
	SF_STDIN_ACK = 70,   /* `position` = bytes taken; flag EOF: the reader has closed, send no more */
	SF_RESULT = 71,      /* answer to a request; flag MORE: further frames follow */
	SF_ERROR = 72,       /* ERRNO MESSAGE: the request with this id failed and changed nothing */
	SF_EVENT = 73,       /* watch: EVENT PATH (relative to the watched path) */
};

enum sf_flag {
	SF_FLAG_STDIN = 1 << 0,      /* EXEC: keep a pipe for input (else /dev/null) */
	SF_FLAG_PTY = 1 << 1,        /* EXEC: a terminal instead of pipes; implies STDIN */
	SF_FLAG_EOF = 1 << 2,
	SF_FLAG_STDERR = 1 << 3,
	SF_FLAG_TREE = 1 << 4,
	SF_FLAG_MORE = 1 << 5,
	SF_FLAG_PARENTS = 1 << 6,
	SF_FLAG_RECURSIVE = 1 << 7,
	SF_FLAG_ABORT = 1 << 8,
	SF_FLAG_NOFOLLOW = 1 << 9,
	SF_FLAG_TIMED_OUT = 1 << 10,
	SF_FLAG_OVERFLOW = 1 << 11,  /* EVENT: events were lost, look again */
};

/* Values: U32/U64/I32 little-endian, BYTES as they are. */
enum sf_tag {
	SF_TAG_VERSION = 1,     /* U32 */
	SF_TAG_ARG = 2,         /* BYTES, one per argument, first is the program (looked up in PATH) */
	SF_TAG_ENV = 3,         /* BYTES "NAME=value" */
	SF_TAG_CWD = 4,         /* BYTES */
	SF_TAG_USER = 5,        /* BYTES, name or number; default root */
	SF_TAG_TIMEOUT_MS = 6,  /* U64, 0 or absent: none */
	SF_TAG_LIMIT = 7,       /* U64, output bytes kept; more is read, counted and dropped */
	SF_TAG_ROWS = 8,        /* U32 */
	SF_TAG_COLS = 9,        /* U32 */
	SF_TAG_SIGNAL = 10,     /* U32 */
	SF_TAG_PID = 11,        /* U32, as seen inside the sandbox */
	SF_TAG_STATE = 12,      /* U32: 0 running, 1 exited */
	SF_TAG_CODE = 13,       /* U32 */
	SF_TAG_DROPPED = 14,    /* U64 */
	SF_TAG_CPU_US = 15,     /* U64 */
	SF_TAG_RSS_BYTES = 16,  /* U64 */
	SF_TAG_ERRNO = 17,      /* U32 */
	SF_TAG_MESSAGE = 18,    /* BYTES */
	SF_TAG_PATH = 19,       /* BYTES */
	SF_TAG_TARGET = 20,     /* BYTES */
	SF_TAG_MODE = 21,       /* U32 */
	SF_TAG_LENGTH = 22,     /* U64 */
	SF_TAG_ENTRY = 23,      /* struct sf_entry, then name, then link target */
	SF_TAG_PROCESS = 24,    /* struct sf_process, then command line with NULs */
	SF_TAG_EVENT = 25,      /* U32: enum sf_event */
	SF_TAG_STDIN_AT = 26,   /* U64 */
};

enum sf_event {
	SF_EVENT_CREATE = 1,
	SF_EVENT_WRITE = 2,
	SF_EVENT_REMOVE = 3,
	SF_EVENT_RENAME = 4,
	SF_EVENT_CHMOD = 5,
};

struct sf_entry {
	uint64_t size;
	uint64_t mtime_ns;
	uint32_t mode;         /* st_mode, type bits included */
	uint32_t uid;          /* as seen inside */
	uint32_t gid;
	uint32_t name_size;    /* bytes of name, then target_size bytes of link target */
	uint32_t target_size;
	uint32_t reserved;
};

struct sf_process {
	uint32_t pid;
	uint32_t ppid;
	uint32_t uid;
	uint32_t command;      /* id of the command it was started by, 0 if that is over or unknown */
	uint64_t rss_bytes;
	uint64_t cpu_us;
	uint32_t state;        /* letter as in /proc/PID/stat */
	uint32_t cmdline_size;
};

/*
 * ------------------------------------------------------------- the launcher
 *
 *   sandfleet-native launcher --run-dir DIR [--orphan-seconds N]
 *
 * listens on DIR/launcher.sock (SOCK_SEQPACKET, mode 0600, only uid 0; reached
 * through a directory descriptor, so that DIR may be longer than sun_path). It
 * lives in a mount namespace of its own; layers are mounted only there. One
 * node service is connected at a time; a newer connection replaces the older.
 * When none was connected for --orphan-seconds (default 600) every sandbox ends
 * and so does the launcher. When the launcher dies its sandboxes die with it.
 *
 * A message is one packet of "key=value" strings, each ended by NUL, at most
 * SF_LAUNCHER_MAX bytes; file descriptors travel beside it. Requests carry
 * op= and seq=, the answer repeats seq= and says ok=1, or ok=0 with errno=,
 * step= and message=. Keys and values are:
 *
 *   op=hello                      -> version= pid= sandboxes=N prepared=UID+IDS,UID+IDS... , then N packets "event=sandbox id= pid=" each with the channel
 *   op=layer digest= path= [device=] fs=erofs|dir   mounts the image read-only (file-backed where the kernel can, else through
 *                                  loop devices); device: the file that holds what the files of the image hold
 *   op=chunks                     makes sure of a FUSE mount at chunks/ in the launcher's directory; the answer carries its /dev/fuse
 *   op=unlayer digest=            fails with EBUSY while a live sandbox uses it
 *   op=prepare uid= ids=          makes the user namespace of a range and, for its next sandbox, network (loopback
 *                                 up), ipc and uts namespaces owned by it; create with the same range uses them, once,
 *                                 whatever becomes of it. Prepared already: changes nothing. ENOSPC above 1024
 *   op=unprepare uid= ids=        drops them again; not prepared is as good
 *   op=create id= uid= ids= lower=DIGEST... (top first) upper= work= hostname= cgroup2=DIR cgroup=DIR...
 *                                 [nofile=] [fsize=] -> pid=, with the node's end of the channel
 *                                 nofile is how many files a process may open, fsize the bytes of the largest file
 *                                 that a command may write
 *                                 uid is the host id of the sandbox's root, ids the length of its range;
 *                                 cgroup2 is the sandbox's directory in the v2 hierarchy (handed to the
 *                                 sandbox's root; the agent makes one child per command there, so that a
 *                                 command's whole tree can be ended at once), cgroup= are the directories to
 *                                 join in v1 hierarchies
 *   op=kill id=                   SIGKILL to the sandbox's pid 1
 *   op=quit                       ends all sandboxes, unmounts, exits
 *
 * and unasked, to the connected node: event=exit id= status= (raw wait status) once a sandbox has gone
 * entirely; repeated after hello for exits nobody was connected to hear, until op=forget id=.
 */
enum { SF_LAUNCHER_MAX = 65536 };

#endif

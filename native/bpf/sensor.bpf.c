/*
 * The sensor's eBPF programs: facts about processes in sandbox cgroups, and nothing else.
 *
 * tp_btf/sys_exit (BTF tracing, 5.5): every system call that comes back. Not sys_enter, because
 * the kernel runs seccomp first and never reaches sys_enter for a call that seccomp refuses,
 * while sys_exit still has the number, the arguments and the refusal. execve replaces the
 * registers, so program starts come from sched_process_exec.
 *
 * A sandbox is a directory right below `root_id` in cgroup v2. It is looked for from the top
 * (cgroup.ancestors, 6.1), so that no depth of directories made inside a sandbox hides a process.
 *
 * The launcher builds a sandbox from inside its cgroup, with mounts and namespaces. A task is
 * therefore judged from its first exec there; what it forks afterwards inherits that, exec or
 * not. Tasks older than the watch are judged always: what they did before nobody saw.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "sensor.h"
#include "watched.h"

char LICENSE[] SEC("license") = "GPL";

#define LEVELS 16
#define TS_COMPAT 2
#define X32_BIT 0x40000000
#define EVERY_NS 1

/* Set by the loader before it attaches. */
const volatile struct sensor_limit call_limit = { EVERY_NS, EVERY_NS };
const volatile struct sensor_limit exec_limit = { EVERY_NS, EVERY_NS };

/* Set by the loader at any time: the directory of this node's sandboxes, watched since when. */
volatile __u64 root_id = 0;
volatile __u64 since_ns = 0;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SENSOR_URGENT_RING_BYTES);
} urgent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SENSOR_NORMAL_RING_BYTES);
} normal SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SENSOR_BUCKETS);
	__type(key, struct sensor_bucket);
	__type(value, __u64);
} buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SENSOR_HELD_BACK);
	__type(key, struct sensor_bucket);
	__type(value, struct sensor_held_back);
} held_back SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8);
} judged SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		*value += 1;
}

/* Returns the level of the current task's sandbox in cgroup v2, or 0 when it is in none. */
static __always_inline int sandbox_level(void)
{
	__u64 root = root_id;

	if (root == 0)
		return 0;
	for (int level = 0; level < LEVELS; level++) {
		__u64 id = bpf_get_current_ancestor_cgroup_id(level);

		if (id == 0)
			return 0;
		if (id == root)
			return level + 1;
	}
	return 0;
}

/* Fills in whose record it is; false when the task is not in a sandbox but beside them. */
static __always_inline bool describe(struct sn_header *header, char *sandbox, int level)
{
	struct cgroup *group = BPF_CORE_READ(bpf_get_current_task_btf(), cgroups, dfl_cgrp);
	struct cgroup *own = NULL;
	const char *name;

	header->cgroup = bpf_get_current_ancestor_cgroup_id(level);
	if (header->cgroup == 0)
		return false;
	header->time_ns = bpf_ktime_get_boot_ns();
	if (bpf_core_read(&own, sizeof(own), &group->ancestors[level])) {
		count(COUNT_UNREAD);
		return false;
	}
	name = BPF_CORE_READ(own, kn, name);
	if (bpf_probe_read_kernel_str(sandbox, SN_SANDBOX_MAX, name) < 0) {
		count(COUNT_UNREAD);
		return false;
	}
	return true;
}

static __always_inline bool is_judged(struct task_struct *task)
{
	return bpf_task_storage_get(&judged, task, NULL, 0) != NULL || since_ns == 0 ||
	       task->start_time < since_ns;
}

static __always_inline void judge(struct task_struct *task)
{
	__u8 yes = 1;

	if (!bpf_task_storage_get(&judged, task, &yes, BPF_LOCAL_STORAGE_GET_F_CREATE))
		count(COUNT_UNREAD);
}

/* Takes one record from a sandbox's allowance; counts it as held back when there is none left. */
static __always_inline bool allowed(const struct sensor_bucket *bucket, const char *sandbox,
				    const volatile struct sensor_limit *limit)
{
	__u64 now = bpf_ktime_get_ns(), next = now;
	__u64 *due = bpf_map_lookup_elem(&buckets, bucket);
	struct sensor_held_back first = { .count = 1 }, *held;

	if (due && *due > now)
		next = *due;
	if (next - now <= limit->burst_ns) {
		next += limit->interval_ns;
		bpf_map_update_elem(&buckets, bucket, &next, BPF_ANY);
		return true;
	}
	count(COUNT_RATE_LIMITED);
	held = bpf_map_lookup_elem(&held_back, bucket);
	if (held) {
		__sync_fetch_and_add(&held->count, 1);
	} else {
		__builtin_memcpy(first.sandbox, sandbox, SN_SANDBOX_MAX);
		bpf_map_update_elem(&held_back, bucket, &first, BPF_NOEXIST);
	}
	return false;
}

/* Says whether a watched call is worth a record, and reads what stands behind a pointer. */
static __always_inline bool matters(unsigned char how, __u64 *args, long result)
{
	if ((how & NOT_IN_CHILD) && result == 0)
		return false;
	if (how & FLAGS_IN_USER) {
		__u64 flags = 0;

		if (bpf_probe_read_user(&flags, sizeof(flags), (void *)args[0]))
			return false; /* a bad address starts no process */
		args[0] = flags;
	}
	if ((how & NAMESPACES) && !(args[0] & NAMESPACE_FLAGS))
		return false;
	if ((how & FAMILIES) && args[0] < 64 && (COMMON_FAMILIES >> args[0] & 1))
		return false;
	return true;
}

static __always_inline __u16 aims(unsigned char how, const __u64 *args)
{
	bool first = (how & PID_FIRST) && (int)args[0] == 1;
	bool second = (how & PID_SECOND) && (int)args[1] == 1;

	return first || second ? SN_FLAG_AT_INIT | SN_FLAG_URGENT : 0;
}

static __always_inline void read_args(__u64 *args, struct pt_regs *regs, bool is_i386)
{
	if (is_i386) {
		args[0] = (__u32)regs->bx;
		args[1] = (__u32)regs->cx;
		args[2] = (__u32)regs->dx;
		args[3] = (__u32)regs->si;
		args[4] = (__u32)regs->di;
		args[5] = (__u32)regs->bp;
	} else {
		args[0] = regs->di;
		args[1] = regs->si;
		args[2] = regs->dx;
		args[3] = regs->r10;
		args[4] = regs->r8;
		args[5] = regs->r9;
	}
}

static __always_inline void report(const struct sn_call *call, bool is_urgent)
{
	long lost = is_urgent ? bpf_ringbuf_output(&urgent, (void *)call, sizeof(*call), 0)
			      : bpf_ringbuf_output(&normal, (void *)call, sizeof(*call), 0);

	count(lost ? COUNT_RING_FULL : COUNT_REPORTED);
}

/* What one call is: of which table, and how it is watched. */
struct looked_up {
	int number;
	__u16 flags;
	unsigned char how;
};

/* False for a call that is not watched, which is nearly every one: this runs for all of them. */
static __always_inline bool look_up(struct looked_up *call, struct task_struct *task, int number)
{
	call->number = number;
	call->how = WATCHED;
	call->flags = 0;
	if (task->thread_info.status & TS_COMPAT) {
		call->flags = SN_FLAG_I386;
		return true;
	}
	if (number < 0)
		return false; /* rt_sigreturn, or no call at all */
	if (number & X32_BIT) {
		call->number = number & ~X32_BIT;
		call->flags = SN_FLAG_X32;
		return true;
	}
	if (number >= WATCHED_MAX)
		return false;
	call->how = watched_calls[number & (WATCHED_MAX - 1)];
	return call->how & WATCHED;
}

static __always_inline void tell(const struct looked_up *what, struct task_struct *task,
				 struct pt_regs *regs, long result, int level)
{
	struct sn_call call = {
		.header = { .size = sizeof(call), .type = SN_CALL, .flags = what->flags },
		.nr = what->number,
		.result = result,
	};
	struct sensor_bucket bucket = { .nr = what->flags ? SN_NR_FOREIGN : what->number };
	__u64 identity = bpf_get_current_pid_tgid();

	read_args(call.args, regs, what->flags & SN_FLAG_I386);
	if (!matters(what->how, call.args, result))
		return;
	call.header.flags |= aims(what->how, call.args);
	if (what->how & URGENT)
		call.header.flags |= SN_FLAG_URGENT;
	if (task->mm == task->real_parent->mm)
		call.header.flags |= SN_FLAG_SHARES_PARENT;
	if (!describe(&call.header, call.sandbox, level))
		return;
	bucket.cgroup = call.header.cgroup;
	bucket.urgent = !!(call.header.flags & SN_FLAG_URGENT);
	if (!allowed(&bucket, call.sandbox, &call_limit))
		return;
	call.pid = identity >> 32;
	call.tid = (__u32)identity;
	call.uid = (__u32)bpf_get_current_uid_gid();
	bpf_get_current_comm(call.program, sizeof(call.program));
	report(&call, bucket.urgent);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_call, struct pt_regs *regs, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct looked_up call;
	int level;

	/* The kernel looks at the low 32 bits of the number only, and so must we. */
	if (!look_up(&call, task, (int)regs->orig_ax))
		return 0;
	level = sandbox_level();
	if (level != 0 && is_judged(task))
		tell(&call, task, regs, result, level);
	return 0;
}

/* tp_btf (5.5): after the point of no return, so the task's name and memory are the new ones. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	struct sensor_bucket bucket = { .nr = SN_NR_EXEC };
	char sandbox[SN_SANDBOX_MAX] = {};
	struct sn_header header = { .size = sizeof(struct sn_exec), .type = SN_EXEC };
	int level = sandbox_level();
	struct sn_exec *exec;
	__u64 identity;

	if (level == 0)
		return 0;
	judge(task);
	if (!describe(&header, sandbox, level))
		return 0;
	bucket.cgroup = header.cgroup;
	if (!allowed(&bucket, sandbox, &exec_limit))
		return 0;
	exec = bpf_ringbuf_reserve(&normal, sizeof(*exec), 0);
	if (!exec) {
		count(COUNT_RING_FULL);
		return 0;
	}
	__builtin_memset(exec, 0, sizeof(*exec));
	if (bprm->file->f_inode->i_nlink == 0)
		header.flags |= SN_FLAG_UNLINKED;
	exec->header = header;
	__builtin_memcpy(exec->sandbox, sandbox, sizeof(sandbox));
	identity = bpf_get_current_pid_tgid();
	exec->pid = identity >> 32;
	exec->tid = (__u32)identity;
	exec->uid = (__u32)bpf_get_current_uid_gid();
	bpf_get_current_comm(exec->program, sizeof(exec->program));
	if (bpf_probe_read_kernel_str(exec->path, sizeof(exec->path), bprm->filename) < 0)
		count(COUNT_UNREAD);
	bpf_ringbuf_submit(exec, 0);
	count(COUNT_REPORTED);
	return 0;
}

/* tp_btf (5.5): the parent's side of fork, before the child runs. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	if (sandbox_level() != 0 && is_judged(parent))
		judge(child);
	return 0;
}

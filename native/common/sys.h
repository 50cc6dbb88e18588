/*
 * System calls that C libraries do not wrap, or not all of them, with the numbers and
 * structures that go with them. Each returns what the kernel does, with errno set.
 * From number 424 on, x86-64 and arm64 agree.
 */
#ifndef SF_SYS_H
#define SF_SYS_H

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum {
	SF_NR_PIDFD_SEND_SIGNAL = 424,
	SF_NR_OPEN_TREE = 428,
	SF_NR_MOVE_MOUNT = 429,
	SF_NR_FSOPEN = 430,
	SF_NR_FSCONFIG = 431,
	SF_NR_FSMOUNT = 432,
	SF_NR_CLONE3 = 435,
	SF_NR_CLOSE_RANGE = 436,
	SF_NR_OPENAT2 = 437,
	SF_NR_MOUNT_SETATTR = 442,
};

enum {
	SF_OPEN_TREE_CLONE = 1,
	SF_MOVE_MOUNT_F_EMPTY_PATH = 4,
	SF_FSOPEN_CLOEXEC = 1,
	SF_FSMOUNT_CLOEXEC = 1,
	SF_FSCONFIG_SET_FLAG = 0,
	SF_FSCONFIG_SET_STRING = 1,
	SF_FSCONFIG_CMD_CREATE = 6,
	SF_MOUNT_ATTR_RDONLY = 0x1,
	SF_MOUNT_ATTR_NOSUID = 0x2,
	SF_MOUNT_ATTR_NODEV = 0x4,
	SF_MOUNT_ATTR_NOEXEC = 0x8,
	SF_MOUNT_ATTR_IDMAP = 0x100000,
	SF_RESOLVE_NO_MAGICLINKS = 0x2,
	SF_RESOLVE_NO_SYMLINKS = 0x4,
	SF_CLOSE_RANGE_UNSHARE = 2,
	SF_CLOSE_RANGE_CLOEXEC = 4,
	SF_AT_EMPTY_PATH = 0x1000,
	SF_AT_RECURSIVE = 0x8000,
	SF_P_PIDFD = 3,
};

#define SF_CLONE_PIDFD 0x1000ull
#define SF_CLONE_CLEAR_SIGHAND 0x100000000ull
#define SF_CLONE_INTO_CGROUP 0x200000000ull
#define SF_CLONE_NEWCGROUP 0x02000000

struct sf_clone_args {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
	uint64_t set_tid, set_tid_size, cgroup;
};

struct sf_mount_attr {
	uint64_t attr_set, attr_clr, propagation, userns_fd;
};

struct sf_open_how {
	uint64_t flags, mode, resolve;
};

static inline pid_t sys_clone3(struct sf_clone_args *args)
{
	return (pid_t)syscall(SF_NR_CLONE3, args, sizeof(*args));
}

static inline int sys_pidfd_kill(int pidfd, int signal)
{
	return (int)syscall(SF_NR_PIDFD_SEND_SIGNAL, pidfd, signal, NULL, 0);
}

static inline int sys_open_tree(int dir, const char *path, unsigned int flags)
{
	return (int)syscall(SF_NR_OPEN_TREE, dir, path, flags | O_CLOEXEC);
}

static inline int sys_move_mount(int from, int to, const char *path)
{
	return (int)syscall(SF_NR_MOVE_MOUNT, from, "", to, path, SF_MOVE_MOUNT_F_EMPTY_PATH);
}

static inline int sys_fsopen(const char *type)
{
	return (int)syscall(SF_NR_FSOPEN, type, SF_FSOPEN_CLOEXEC);
}

static inline int sys_fsconfig(int fs, unsigned int command, const char *key, const void *value)
{
	return (int)syscall(SF_NR_FSCONFIG, fs, command, key, value, 0);
}

static inline int sys_fsmount(int fs, unsigned int attributes)
{
	return (int)syscall(SF_NR_FSMOUNT, fs, SF_FSMOUNT_CLOEXEC, attributes);
}

static inline int sys_mount_setattr(int dir, const char *path, unsigned int flags,
				    struct sf_mount_attr *attr)
{
	return (int)syscall(SF_NR_MOUNT_SETATTR, dir, path, flags, attr, sizeof(*attr));
}

static inline int sys_openat2(int dir, const char *path, int flags, mode_t mode, uint64_t resolve)
{
	struct sf_open_how how = { .flags = (uint64_t)(unsigned int)flags | O_CLOEXEC,
				   .mode = mode,
				   .resolve = resolve };

	return (int)syscall(SF_NR_OPENAT2, dir, path, &how, sizeof(how));
}

static inline int sys_close_range(unsigned int first, unsigned int last, unsigned int flags)
{
	return (int)syscall(SF_NR_CLOSE_RANGE, first, last, flags);
}

static inline int sys_pivot_root(const char *root, const char *old)
{
	return (int)syscall(SYS_pivot_root, root, old);
}

#endif

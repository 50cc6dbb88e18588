/*
 * What is refused, and how. Starting points are the calls that well-known container defaults
 * refuse, then whatever reaches the kernel's rarely tested parts, other processes' memory or the
 * layout of files on a shared disk.
 *
 * EPERM is the usual answer. ENOSYS and EOPNOTSUPP are given where programs then take another
 * way: cp and install, for example, try to share extents before they copy.
 */
#include "launch/seccomp.h"

#include <errno.h>
#include <sys/syscall.h>

#define REFUSE(name)                                                                               \
	{                                                                                          \
		SYS_##name, EPERM, CHECK_NONE                                                      \
	}
#define REFUSE_NR(number)                                                                          \
	{                                                                                          \
		number, EPERM, CHECK_NONE                                                          \
	}

/* Too new for some C libraries; the numbers are the same on x86-64 and arm64. */
enum {
	NR_IO_URING_SETUP = 425,
	NR_IO_URING_ENTER = 426,
	NR_IO_URING_REGISTER = 427,
	NR_OPEN_TREE = 428,
	NR_MOVE_MOUNT = 429,
	NR_FSOPEN = 430,
	NR_FSCONFIG = 431,
	NR_FSMOUNT = 432,
	NR_FSPICK = 433,
	NR_PIDFD_GETFD = 438,
	NR_PROCESS_MADVISE = 440,
	NR_MOUNT_SETATTR = 442,
	NR_QUOTACTL_FD = 443,
	NR_MEMFD_SECRET = 447,
	NR_SET_MEMPOLICY_HOME_NODE = 450,
	NR_LSM_SET_SELF_ATTR = 460,
	NR_OPEN_TREE_ATTR = 467,
	NR_FILE_SETATTR = 469,
};

const uint32_t seccomp_last_known = NR_FILE_SETATTR;

const struct seccomp_rule seccomp_rules[] = {
	{ SYS_clone, EPERM, CHECK_CLONE },
	{ SYS_socket, EAFNOSUPPORT, CHECK_SOCKET },
	{ SYS_ioctl, EPERM, CHECK_IOCTL },
	{ SYS_personality, EPERM, CHECK_PERSONALITY },

	/* mounts and namespaces */
	REFUSE(mount),
	REFUSE(umount2),
	REFUSE(pivot_root),
	REFUSE(setns),
	REFUSE(unshare),
	REFUSE_NR(NR_OPEN_TREE),
	REFUSE_NR(NR_OPEN_TREE_ATTR),
	REFUSE_NR(NR_MOVE_MOUNT),
	REFUSE_NR(NR_FSOPEN),
	REFUSE_NR(NR_FSCONFIG),
	REFUSE_NR(NR_FSMOUNT),
	REFUSE_NR(NR_FSPICK),
	REFUSE_NR(NR_MOUNT_SETATTR),

	/* other processes' memory and descriptors */
	REFUSE(ptrace),
	REFUSE(process_vm_readv),
	REFUSE(process_vm_writev),
	REFUSE(kcmp),
	REFUSE_NR(NR_PIDFD_GETFD),
	REFUSE_NR(NR_PROCESS_MADVISE),

	/* large kernel parts with a history */
	REFUSE(bpf),
	REFUSE(perf_event_open),
	REFUSE(userfaultfd),
	REFUSE(add_key),
	REFUSE(request_key),
	REFUSE(keyctl),
	REFUSE(fanotify_init),
	REFUSE_NR(NR_IO_URING_SETUP),
	REFUSE_NR(NR_IO_URING_ENTER),
	REFUSE_NR(NR_IO_URING_REGISTER),
	REFUSE_NR(NR_MEMFD_SECRET),
	REFUSE_NR(NR_LSM_SET_SELF_ATTR),

	/* the host itself */
	REFUSE(init_module),
	REFUSE(finit_module),
	REFUSE(delete_module),
	REFUSE(kexec_load),
	REFUSE(reboot),
	REFUSE(swapon),
	REFUSE(swapoff),
	REFUSE(acct),
	REFUSE(syslog),
	REFUSE(vhangup),
	REFUSE(quotactl),
	REFUSE_NR(NR_QUOTACTL_FD),
	REFUSE(settimeofday),
	REFUSE(clock_settime),
	REFUSE(sethostname),
	REFUSE(setdomainname),
	REFUSE(lookup_dcookie),
	REFUSE(nfsservctl),

	/* files past their paths, and their layout */
	REFUSE(open_by_handle_at),
	REFUSE_NR(NR_FILE_SETATTR),

	/* placement of memory on the host */
	REFUSE(mbind),
	REFUSE(set_mempolicy),
	REFUSE(migrate_pages),
	REFUSE(move_pages),
	REFUSE_NR(NR_SET_MEMPOLICY_HOME_NODE),

#ifdef SYS_kexec_file_load
	REFUSE(kexec_file_load),
#endif
#ifdef __x86_64__
	REFUSE(iopl),
	REFUSE(ioperm),
	REFUSE(modify_ldt),
	REFUSE(uselib),
	REFUSE(ustat),
	REFUSE(sysfs),
	REFUSE(_sysctl),
	REFUSE(create_module),
	REFUSE(get_kernel_syms),
	REFUSE(query_module),
#endif
};

const size_t seccomp_rule_count = sizeof(seccomp_rules) / sizeof(seccomp_rules[0]);

/*
 * Who: a program that tests run inside a sandbox. What it may do: what any user of a sandbox may.
 * Each argument names one attempt to get out; it prints "open" when the attempt worked, or the
 * errno. Nothing is changed if it does work, or only inside the sandbox.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static long try_mount(void)
{
	return mount("x", "/tmp", "tmpfs", 0, NULL);
}

static long try_unmount(void)
{
	return umount2("/proc/sys", MNT_DETACH);
}

static long try_remount(void)
{
	return mount(NULL, "/proc/sys", NULL, MS_BIND | MS_REMOUNT, NULL);
}

static long try_fsopen(void)
{
	return syscall(430, "tmpfs", 0);
}

static long try_open_tree(void)
{
	return syscall(428, AT_FDCWD, "/", 1);
}

static long try_unshare_user(void)
{
	return unshare(CLONE_NEWUSER);
}

static long try_clone_user(void)
{
	long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);

	if (pid == 0)
		_exit(0);
	return pid;
}

static long try_clone3_user(void)
{
	uint64_t args[11] = { CLONE_NEWUSER, [4] = SIGCHLD };
	long pid = syscall(435, args, sizeof(args));

	if (pid == 0)
		_exit(0);
	return pid;
}

static long try_setns(void)
{
	int fd = open("/proc/self/ns/net", O_RDONLY);

	return fd < 0 ? fd : setns(fd, 0);
}

static long try_ptrace_agent(void)
{
	return ptrace(PTRACE_ATTACH, 1, NULL, NULL);
}

static long try_ptrace_child(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	long result = ptrace(PTRACE_ATTACH, pid, NULL, NULL);
	int error = errno;

	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	errno = error;
	return result;
}

static long try_agent_memory(void)
{
	return open("/proc/1/mem", O_RDWR);
}

static long try_agent_environment(void)
{
	return open("/proc/1/environ", O_RDONLY);
}

static long try_agent_maps(void)
{
	char byte;
	int fd = open("/proc/1/maps", O_RDONLY);
	ssize_t size = fd < 0 ? -1 : read(fd, &byte, 1);

	if (size == 0)
		errno = ENODATA;
	return size > 0 ? 0 : -1;
}

static long try_agent_fds(void)
{
	return open("/proc/1/fd", O_RDONLY | O_DIRECTORY);
}

static long try_agent_program(void)
{
	char path[256];

	return readlink("/proc/1/exe", path, sizeof(path));
}

static long try_agent_root(void)
{
	return open("/proc/1/root/", O_RDONLY);
}

static long try_agent_vm_read(void)
{
	char byte;
	struct iovec here = { &byte, 1 }, there = { (void *)0x400000, 1 };

	return process_vm_readv(1, &here, 1, &there, 1, 0);
}

static long try_pidfd_getfd(void)
{
	int fd = (int)syscall(434, 1, 0);

	return fd < 0 ? fd : syscall(438, fd, 3, 0);
}

/* pid 1 has no handlers: the kernel drops what comes from inside. Told by looking afterwards. */
static long try_kill_agent(void)
{
	char text[256], state = '?';
	FILE *file;

	kill(1, SIGKILL);
	kill(1, SIGSTOP);
	usleep(50000);
	file = fopen("/proc/1/stat", "r");
	if (file == NULL)
		return 0;
	if (fgets(text, sizeof(text), file) != NULL && strrchr(text, ')') != NULL)
		state = strrchr(text, ')')[2];
	fclose(file);
	errno = EPERM;
	return state == 'S' || state == 'R' ? -1 : 0;
}

static long try_mknod(void)
{
	return mknod("/tmp/sda", S_IFBLK | 0600, makedev(8, 0));
}

static long try_vsock(void)
{
	return socket(40, SOCK_STREAM, 0);
}

static long try_packet(void)
{
	return socket(17, SOCK_RAW, 0);
}

static long try_raw(void)
{
	return socket(AF_INET, SOCK_RAW, 1);
}

static long try_netfilter(void)
{
	return socket(16, SOCK_RAW, 12);
}

static long try_io_uring(void)
{
	return syscall(425, 1, NULL);
}

static long try_bpf(void)
{
	return syscall(SYS_bpf, 0, NULL, 0);
}

static long try_keyctl(void)
{
	return syscall(SYS_keyctl, 0, -3, 0);
}

static long try_userfaultfd(void)
{
	return syscall(SYS_userfaultfd, 0);
}

static long try_perf(void)
{
	return syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0);
}

static long try_module(void)
{
	return syscall(SYS_init_module, NULL, 0, "");
}

static long try_tiocsti(void)
{
	return ioctl(0, TIOCSTI, "x");
}

static long try_core_pattern(void)
{
	return open("/proc/sys/kernel/core_pattern", O_WRONLY);
}

static long try_sysrq(void)
{
	int fd = open("/proc/sysrq-trigger", O_WRONLY);
	struct stat stat;

	/* Covered by /dev/null: it opens, and leads nowhere. */
	if (fd >= 0 && fstat(fd, &stat) == 0 && stat.st_rdev == makedev(1, 3)) {
		errno = ENODEV;
		return -1;
	}
	return fd;
}

static long try_drop_caps_bound(void)
{
	return prctl(PR_CAPBSET_READ, 21, 0, 0, 0) == 1 ? 0 : (errno = EPERM, -1);
}

static long try_x32(void)
{
	return syscall(0x40000000 | 39);
}

static long try_host_id(void)
{
	return setuid(65536);
}

static long try_replace_dev(void)
{
	return rename("/dev/null", "/dev/gone") == 0 ? 0
						     : open("/dev/new", O_CREAT | O_WRONLY, 0600);
}

/* Up and out of a chroot: past the sandbox's own root there must be nothing. */
static long try_chroot(void)
{
	struct stat before, after;

	if (stat("/", &before) || mkdir("/tmp/jail", 0700) || chroot("/tmp/jail"))
		return -1;
	for (int i = 0; i < 64; i++)
		if (chdir(".."))
			return -1;
	if (stat(".", &after))
		return -1;
	if (after.st_ino == before.st_ino && after.st_dev == before.st_dev) {
		errno = EPERM;
		return -1;
	}
	return 0;
}

#ifdef __x86_64__
/* getpid by the door for 32-bit programs, where the filter must not be blind. */
static long try_int80(void)
{
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
	if (result > 0)
		return 0;
	errno = (int)-result;
	return -1;
}
#endif

static const struct {
	const char *name;
	long (*attempt)(void);
} attempts[] = {
	{ "mount", try_mount },
	{ "unmount", try_unmount },
	{ "remount", try_remount },
	{ "fsopen", try_fsopen },
	{ "open_tree", try_open_tree },
	{ "unshare-user", try_unshare_user },
	{ "clone-user", try_clone_user },
	{ "clone3-user", try_clone3_user },
	{ "setns", try_setns },
	{ "ptrace-agent", try_ptrace_agent },
	{ "ptrace-child", try_ptrace_child },
	{ "agent-memory", try_agent_memory },
	{ "agent-environment", try_agent_environment },
	{ "agent-maps", try_agent_maps },
	{ "agent-fds", try_agent_fds },
	{ "agent-program", try_agent_program },
	{ "agent-root", try_agent_root },
	{ "agent-vm-read", try_agent_vm_read },
	{ "pidfd-getfd", try_pidfd_getfd },
	{ "kill-agent", try_kill_agent },
	{ "mknod", try_mknod },
	{ "vsock", try_vsock },
	{ "packet-socket", try_packet },
	{ "raw-socket", try_raw },
	{ "netfilter", try_netfilter },
	{ "io_uring", try_io_uring },
	{ "bpf", try_bpf },
	{ "keyctl", try_keyctl },
	{ "userfaultfd", try_userfaultfd },
	{ "perf", try_perf },
	{ "module", try_module },
	{ "tiocsti", try_tiocsti },
	{ "core-pattern", try_core_pattern },
	{ "sysrq", try_sysrq },
	{ "sys-admin-bound", try_drop_caps_bound },
	{ "x32", try_x32 },
	{ "host-id", try_host_id },
	{ "replace-dev", try_replace_dev },
	{ "chroot", try_chroot },
#ifdef __x86_64__
	{ "int80", try_int80 },
#endif
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++) {
		if (argc < 2) {
			puts(attempts[i].name);
		} else if (strcmp(argv[1], attempts[i].name) == 0) {
			errno = 0;
			puts(attempts[i].attempt() >= 0 ? "open" : strerror(errno));
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}

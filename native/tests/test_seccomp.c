/* Runs the filter on a small interpreter, and once for real in a child. */
#include "launch/seccomp.h"
#include "tests/tap.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__
enum { ARCH = AUDIT_ARCH_X86_64 };
#else
enum { ARCH = AUDIT_ARCH_AARCH64 };
#endif

static struct sock_filter program[SECCOMP_PROGRAM_MAX];
static size_t length;

/* Returns the errno that the filter gives, 0 if it allows, -1 if the program is not sound. */
static int judge(uint32_t arch, int number, const uint64_t *args)
{
	struct seccomp_data data = { .nr = number, .arch = arch };
	uint32_t a = 0;

	if (args != NULL)
		memcpy(data.args, args, sizeof(data.args));
	for (size_t pc = 0; pc < length; pc++) {
		const struct sock_filter *f = &program[pc];

		switch (f->code) {
		case BPF_LD | BPF_W | BPF_ABS:
			if (f->k > sizeof(data) - 4)
				return -1;
			memcpy(&a, (char *)&data + f->k, 4);
			break;
		case BPF_JMP | BPF_JA:
			pc += f->k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			pc += a == f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			pc += a >= f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JGT | BPF_K:
			pc += a > f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			pc += a & f->k ? f->jt : f->jf;
			break;
		case BPF_RET | BPF_K:
			if (f->k == SECCOMP_RET_ALLOW)
				return 0;
			return (f->k & SECCOMP_RET_ACTION_FULL) == SECCOMP_RET_ERRNO
				   ? (int)(f->k & SECCOMP_RET_DATA)
				   : -1;
		default:
			return -1;
		}
	}
	return -1;
}

static int ask(int number, uint64_t arg0, uint64_t arg1, uint64_t arg2)
{
	uint64_t args[6] = { arg0, arg1, arg2 };

	return judge(ARCH, number, args);
}

/* What the rules say, by looking at them one after the other. */
static int by_rules(int number)
{
	for (size_t i = 0; i < seccomp_rule_count; i++)
		if (seccomp_rules[i].number == (uint32_t)number)
			return seccomp_rules[i].check == CHECK_NONE ? seccomp_rules[i].error : -2;
	return (uint32_t)number > seccomp_last_known ? ENOSYS : 0;
}

static void numbers(void)
{
	bool agrees = true;

	for (int number = 0; number < 1000; number++) {
		int wanted = by_rules(number);

		if (wanted != -2)
			agrees = agrees && ask(number, 0, 0, 0) == wanted;
	}
	CHECK("the program says for every number what the rules say", agrees);
	CHECK("x32 numbers do not exist", ask(0x40000000 | 39, 0, 0, 0) == ENOSYS);
	CHECK("calls of another architecture do not exist",
	      judge(AUDIT_ARCH_I386, 20, NULL) == ENOSYS);
	CHECK("negative numbers do not exist", ask(-1, 0, 0, 0) == ENOSYS);
}

static void arguments(void)
{
	CHECK("fork is allowed", ask(SYS_clone, 17, 0, 0) == 0);
	CHECK("threads are allowed", ask(SYS_clone, 0x3d0f00, 0, 0) == 0);
	CHECK("clone with a user namespace is refused",
	      ask(SYS_clone, 0x10000000 | 17, 0, 0) == EPERM);
	CHECK("clone with a mount namespace is refused",
	      ask(SYS_clone, 0x20000 | 17, 0, 0) == EPERM);
	CHECK("clone3 is the second filter's business", ask(435, 0, 0, 0) == 0);
	CHECK("tcp sockets are allowed", ask(SYS_socket, 2, 1, 0) == 0);
	CHECK("vsock is refused", ask(SYS_socket, 40, 1, 0) == EAFNOSUPPORT);
	CHECK("kernel crypto sockets are refused", ask(SYS_socket, 38, 5, 0) == EAFNOSUPPORT);
	CHECK("raw packets are refused", ask(SYS_socket, 17, 3, 0) == EAFNOSUPPORT);
	CHECK("routes may be asked for", ask(SYS_socket, 16, 3, 0) == 0);
	CHECK("netfilter may not", ask(SYS_socket, 16, 3, 12) == EPROTONOSUPPORT);
	CHECK("the high half of an argument does not hide the low",
	      ask(SYS_socket, 40 | 1ull << 32, 1, 0) == EAFNOSUPPORT);
	CHECK("window sizes may be asked for", ask(SYS_ioctl, 0, 0x5413, 0) == 0);
	CHECK("typing into a terminal is refused", ask(SYS_ioctl, 0, 0x5412, 0) == EPERM);
	CHECK("and so it is with high bits set",
	      ask(SYS_ioctl, 0, 0x5412 | 1ull << 40, 0) == EPERM);
	CHECK("reflinks say that they are not supported",
	      ask(SYS_ioctl, 1, 0x40049409, 0) == EOPNOTSUPP);
	CHECK("swapping extents is refused", ask(SYS_ioctl, 1, 0xc0c0586d, 0) == EPERM);
	CHECK("asking for the personality is allowed", ask(SYS_personality, 0xffffffff, 0, 0) == 0);
	CHECK("other personalities are refused", ask(SYS_personality, 0x0400000, 0, 0) == EPERM);
}

static bool is_refused(long result, int error)
{
	return result == -1 && errno == error;
}

static int child(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || seccomp_install() || seccomp_hide_clone3())
		return 1;
	if (!is_refused(syscall(SYS_unshare, 0), EPERM))
		return 2;
	if (!is_refused(socket(AF_VSOCK, SOCK_STREAM, 0), EAFNOSUPPORT))
		return 3;
	if (!is_refused(syscall(435, NULL, 0), ENOSYS))
		return 4;
	return getpid() > 0 ? 0 : 5;
}

int main(void)
{
	int status;

	length = seccomp_generate(program, SECCOMP_PROGRAM_MAX);
	CHECK("the program fits", length > 0);
	CHECK("a program that does not fit is not given", seccomp_generate(program, 50) == 0);
	length = seccomp_generate(program, SECCOMP_PROGRAM_MAX);
	numbers();
	arguments();
	pid_t pid = fork();

	if (pid == 0)
		_exit(child());
	CHECK("the kernel accepts both filters and obeys them",
	      waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return tap_end();
}

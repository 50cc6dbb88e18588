/*
 * Turns the rules into a program for the kernel's classic BPF machine. The numbers form a binary
 * search: short paths matter less for each call, since the kernel remembers what is always
 * allowed, than for installing, where it runs the program once for every number there is.
 */
#include "launch/seccomp.h"

#include "common/base.h"
#include "launch/sandbox.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "the system call filter knows x86-64 and arm64"
#endif

#define X32_BIT 0x40000000u
#define NAMESPACE_FLAGS 0x7e020000u /* every CLONE_NEW* that clone can be told */

enum { FAMILY_UNIX = 1, FAMILY_INET = 2, FAMILY_INET6 = 10, FAMILY_NETLINK = 16 };

struct emitter {
	struct sock_filter *program;
	size_t used, room;
	bool full;
};

static size_t emit(struct emitter *e, uint16_t code, uint32_t k, uint8_t jt, uint8_t jf)
{
	if (e->used == e->room) {
		e->full = true;
		return 0;
	}
	e->program[e->used] = (struct sock_filter){ code, jt, jf, k };
	return e->used++;
}

static void load(struct emitter *e, size_t offset)
{
	emit(e, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void load_low_argument(struct emitter *e, int index)
{
	load(e, offsetof(struct seccomp_data, args) + (size_t)index * 8);
}

static void allow(struct emitter *e)
{
	emit(e, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

static void refuse(struct emitter *e, int error)
{
	emit(e, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error, 0, 0);
}

/* "If the loaded word is `value`, answer with `error`" (0: allow), else go on. */
static void answer_if(struct emitter *e, uint32_t value, int error)
{
	emit(e, BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
	if (error == 0)
		allow(e);
	else
		refuse(e, error);
}

static void check_clone(struct emitter *e, int error)
{
	load_low_argument(e, 0);
	emit(e, BPF_JMP | BPF_JSET | BPF_K, NAMESPACE_FLAGS, 0, 1);
	refuse(e, error);
	allow(e);
}

static void check_socket(struct emitter *e, int error)
{
	load_low_argument(e, 0);
	answer_if(e, FAMILY_UNIX, 0);
	answer_if(e, FAMILY_INET, 0);
	answer_if(e, FAMILY_INET6, 0);
	emit(e, BPF_JMP | BPF_JEQ | BPF_K, FAMILY_NETLINK, 1, 0);
	refuse(e, error);
	load_low_argument(e, 2);
	answer_if(e, 0, 0); /* NETLINK_ROUTE */
	/* Programs that know kernels without auditing go on after this, as useradd does. */
	refuse(e, EPROTONOSUPPORT);
}

static void check_ioctl(struct emitter *e, int error)
{
	static const struct {
		uint32_t command;
		int error; /* 0: as the rule says */
	} refused[] = {
		{ 0x5412, 0 },		    /* TIOCSTI: types into a terminal */
		{ 0x541c, 0 },		    /* TIOCLINUX */
		{ 0x40049409, EOPNOTSUPP }, /* FICLONE */
		{ 0x4020940d, EOPNOTSUPP }, /* FICLONERANGE */
		{ 0xc0189436, EOPNOTSUPP }, /* FIDEDUPERANGE */
		{ 0x401c5820, 0 },	    /* FS_IOC_FSSETXATTR: leaves a project quota */
		{ 0xc0c0586d, 0 },	    /* XFS_IOC_SWAPEXT */
		{ 0x40285881, 0 },	    /* XFS_IOC_EXCHANGE_RANGE */
		{ 0x80405882, 0 },	    /* XFS_IOC_START_COMMIT */
		{ 0x40585883, 0 },	    /* XFS_IOC_COMMIT_RANGE */
		{ 0xc028660f, 0 },	    /* EXT4_IOC_MOVE_EXT */
		{ 0x6611, 0 },		    /* EXT4_IOC_SWAP_BOOT */
		{ 0x40086607, 0 },	    /* EXT4_IOC_GROUP_EXTEND */
		{ 0x8004587d, 0 },	    /* FS_IOC_SHUTDOWN */
		{ 0xc0045877, 0 },	    /* FIFREEZE */
		{ 0xc0045878, 0 },	    /* FITHAW */
		{ 0xc0185879, 0 },	    /* FITRIM */
	};

	load_low_argument(e, 1);
	for (size_t i = 0; i < COUNT(refused); i++)
		answer_if(e, refused[i].command, refused[i].error ? refused[i].error : error);
	allow(e);
}

static void check_personality(struct emitter *e, int error)
{
	/* Linux, asking, uname26, no randomisation, both. */
	static const uint32_t harmless[] = { 0, 0xffffffff, 0x20000, 0x40000, 0x8, 0x20008 };

	load_low_argument(e, 0);
	for (size_t i = 0; i < COUNT(harmless); i++)
		answer_if(e, harmless[i], 0);
	refuse(e, error);
}

static void check(struct emitter *e, const struct seccomp_rule *rule)
{
	switch (rule->check) {
	case CHECK_NONE:
		refuse(e, rule->error);
		break;
	case CHECK_CLONE:
		check_clone(e, rule->error);
		break;
	case CHECK_SOCKET:
		check_socket(e, rule->error);
		break;
	case CHECK_IOCTL:
		check_ioctl(e, rule->error);
		break;
	case CHECK_PERSONALITY:
		check_personality(e, rule->error);
		break;
	}
}

/* Neighbouring numbers that get the same plain answer. */
struct range {
	uint32_t low, high;
	const struct seccomp_rule *rule;
};

static size_t merge(const struct seccomp_rule *rules, size_t count, struct range *ranges)
{
	size_t used = 0;

	for (size_t i = 0; i < count; i++) {
		const struct seccomp_rule *rule = &rules[i];
		struct range *last = used > 0 ? &ranges[used - 1] : NULL;

		if (last != NULL && rule->number <= last->high + 1 && rule->check == CHECK_NONE &&
		    last->rule->check == CHECK_NONE && last->rule->error == rule->error)
			last->high = rule->number;
		else
			ranges[used++] = (struct range){ rule->number, rule->number, rule };
	}
	return used;
}

/* Every path through here ends in an answer. Depth is the logarithm. */
static void search(struct emitter *e, const struct range *ranges, size_t count)
{
	if (count == 1) {
		bool is_wide = ranges->low != ranges->high;

		if (is_wide)
			emit(e, BPF_JMP | BPF_JGT | BPF_K, ranges->high, 1, 0);
		emit(e, BPF_JMP | (is_wide ? BPF_JGE : BPF_JEQ) | BPF_K, ranges->low, 1, 0);
		allow(e);
		check(e, ranges->rule);
		return;
	}
	size_t half = count / 2;

	emit(e, BPF_JMP | BPF_JGE | BPF_K, ranges[half].low, 0, 1);
	size_t jump = emit(e, BPF_JMP | BPF_JA, 0, 0, 0);

	search(e, ranges, half);
	if (!e->full)
		e->program[jump].k = (uint32_t)(e->used - jump - 1);
	search(e, ranges + half, count - half);
}

static int by_number(const void *a, const void *b)
{
	const struct seccomp_rule *x = a, *y = b;

	return x->number < y->number ? -1 : x->number > y->number;
}

size_t seccomp_generate(struct sock_filter *program, size_t room)
{
	struct emitter e = { .program = program, .room = room };
	struct seccomp_rule sorted[seccomp_rule_count];
	struct range ranges[seccomp_rule_count];

	memcpy(sorted, seccomp_rules, sizeof(sorted));
	qsort(sorted, seccomp_rule_count, sizeof(sorted[0]), by_number);
	/* Another architecture's calls (int 0x80 among them) have other numbers and arguments. */
	load(&e, offsetof(struct seccomp_data, arch));
	emit(&e, BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCH, 1, 0);
	refuse(&e, ENOSYS);
	load(&e, offsetof(struct seccomp_data, nr));
	/* x32, and calls that this list has never heard of. */
	emit(&e, BPF_JMP | BPF_JGT | BPF_K, seccomp_last_known, 0, 1);
	refuse(&e, ENOSYS);
	_Static_assert(X32_BIT > 4096, "x32 numbers lie above all others");
	search(&e, ranges, merge(sorted, seccomp_rule_count, ranges));
	return e.full ? 0 : e.used;
}

static int install(struct sock_filter *program, size_t length)
{
	struct sock_fprog code = { .len = (unsigned short)length, .filter = program };

	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &code) ? -errno : 0;
}

int seccomp_install(void)
{
	struct sock_filter program[SECCOMP_PROGRAM_MAX];
	size_t length = seccomp_generate(program, COUNT(program));

	return length == 0 ? -E2BIG : install(program, length);
}

int seccomp_hide_clone3(void)
{
	struct sock_filter program[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 435 /* clone3 */, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return install(program, COUNT(program));
}

int step_seccomp(struct plan *plan)
{
	(void)plan;
	return seccomp_install();
}

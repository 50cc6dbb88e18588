/*
 * The system call filter of a sandbox.
 *
 * Filter A is installed once, before the agent starts, and binds it and everything after it.
 * Filter B is added to each command before exec: it hides clone3, whose flags no filter can see.
 * The agent itself needs clone3 to start a command inside its cgroup.
 */
#ifndef SF_SECCOMP_H
#define SF_SECCOMP_H

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

enum { SECCOMP_PROGRAM_MAX = 1024 };

/* What a rule looks at beside the number; see seccomp_rules.c for what each refuses. */
enum seccomp_check {
	CHECK_NONE,
	CHECK_CLONE,  /* flags for new namespaces */
	CHECK_SOCKET, /* family, and protocol of netlink */
	CHECK_IOCTL,  /* the low 32 bits of the command, which are all the kernel looks at */
	CHECK_PERSONALITY,
};

struct seccomp_rule {
	uint32_t number;
	int error; /* what the caller sees */
	enum seccomp_check check;
};

/* The rules, in no order. */
extern const struct seccomp_rule seccomp_rules[];
extern const size_t seccomp_rule_count;

/* The highest system call number that has been looked at; newer ones do not exist inside. */
extern const uint32_t seccomp_last_known;

/* Writes filter A to `program`; returns its length, 0 if it does not fit. */
size_t seccomp_generate(struct sock_filter *program, size_t room);

/* Both install on the calling process, which has no-new-privileges set. 0 or -errno. */
int seccomp_install(void);
int seccomp_hide_clone3(void);

#endif

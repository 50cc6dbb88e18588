/*
 * Which system calls are reported, by x86-64 number, and how.
 *
 * Not urgent are calls that ordinary programs make often or that a refusal settles: an attacker
 * can fill the ring they share with program starts, not the one that carries the rest.
 */
#ifndef SF_WATCHED_H
#define SF_WATCHED_H

enum {
	WATCHED = 1 << 0,
	URGENT = 1 << 1,
	PID_FIRST = 1 << 2,   /* args[0] is a pid; pid 1 makes it urgent */
	PID_SECOND = 1 << 3,  /* args[1] is */
	NAMESPACES = 1 << 4,  /* only with a CLONE_NEW* flag in args[0] */
	FLAGS_IN_USER = 1 << 5, /* args[0] points to them */
	FAMILIES = 1 << 6,    /* not for the address families that everybody uses */
	NOT_IN_CHILD = 1 << 7, /* returns twice; the child's return is no second call */
};

enum { WATCHED_MAX = 512 }; /* a power of two above every number */

/* CLONE_NEWTIME NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET */
#define NAMESPACE_FLAGS 0x7e020080UL

#define COMMON_FAMILIES (1UL << 1 | 1UL << 2 | 1UL << 10 | 1UL << 16) /* UNIX INET INET6 NETLINK */

static const unsigned char watched_calls[WATCHED_MAX] = {
	[41] = WATCHED | FAMILIES,                                    /* socket */
	[56] = WATCHED | NAMESPACES | NOT_IN_CHILD,                   /* clone */
	[101] = WATCHED | PID_SECOND,                                 /* ptrace */
	[155] = WATCHED | URGENT,                                     /* pivot_root */
	[165] = WATCHED | URGENT,                                     /* mount */
	[166] = WATCHED | URGENT,                                     /* umount2 */
	[175] = WATCHED | URGENT,                                     /* init_module */
	[176] = WATCHED | URGENT,                                     /* delete_module */
	[248] = WATCHED | URGENT,                                     /* add_key */
	[249] = WATCHED | URGENT,                                     /* request_key */
	[250] = WATCHED | URGENT,                                     /* keyctl */
	[272] = WATCHED | NAMESPACES | URGENT,                        /* unshare */
	[298] = WATCHED,                                              /* perf_event_open */
	[304] = WATCHED | URGENT,                                     /* open_by_handle_at */
	[308] = WATCHED | URGENT,                                     /* setns */
	[310] = WATCHED | PID_FIRST,                                  /* process_vm_readv */
	[311] = WATCHED | PID_FIRST,                                  /* process_vm_writev */
	[313] = WATCHED | URGENT,                                     /* finit_module */
	[321] = WATCHED | URGENT,                                     /* bpf */
	[323] = WATCHED,                                              /* userfaultfd */
	[425] = WATCHED,                                              /* io_uring_setup */
	[428] = WATCHED | URGENT,                                     /* open_tree */
	[429] = WATCHED | URGENT,                                     /* move_mount */
	[430] = WATCHED | URGENT,                                     /* fsopen */
	[431] = WATCHED | URGENT,                                     /* fsconfig */
	[432] = WATCHED | URGENT,                                     /* fsmount */
	[433] = WATCHED | URGENT,                                     /* fspick */
	[435] = WATCHED | NAMESPACES | FLAGS_IN_USER | NOT_IN_CHILD,  /* clone3 */
	[438] = WATCHED | URGENT,                                     /* pidfd_getfd */
	[442] = WATCHED | URGENT,                                     /* mount_setattr */
};

#endif

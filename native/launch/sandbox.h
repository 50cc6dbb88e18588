/* From a forked child of the launcher to pid 1 of a sandbox: the plan and its steps. */
#ifndef SF_SANDBOX_H
#define SF_SANDBOX_H

#include "launch/launcher.h"

/* Everything the child needs, as the launcher has checked it. Strings point into the request. */
struct plan {
	const char *hostname, *upper, *work, *cgroup2;
	const char *cgroups[CGROUPS_MAX];
	unsigned int cgroup_count;
	unsigned int lowers[LOWERS_MAX];
	unsigned int lower_count;
	uid_t uid; /* host id of the sandbox's root, user and group */
	unsigned long nofile;
	unsigned long fsize;	     /* bytes of the largest file that a command may write */
	int channel, status, userns; /* descriptors, at their slots */
	int spaces[SPACES];	     /* the same, or -1: the child makes its own */
	int cgroup;		     /* the sandbox's v2 directory, opened by the child, or -1 */
	int root;		     /* the overlay, not mounted anywhere until the pivot */
	int dev, empty;		     /* detached clones of what stage.c has prepared */
	void *packet;		     /* the request, unmapped before anything of the sandbox runs */
	struct failure failure;
};

/* Runs every step and then the agent. Never returns. */
__attribute__((noreturn)) void sandbox_become(struct plan *plan);

/* A step returns 0, or -errno after filling in plan->failure (else a general sentence is used). */
int step_cgroups(struct plan *plan); /* cgroups.c */
int step_layers(struct plan *plan);  /* rootfs.c */
int step_overlay(struct plan *plan);
int step_pivot(struct plan *plan);
int step_prepared(struct plan *plan); /* mounts.c: taken before the pivot, placed after it */
int step_proc(struct plan *plan);
int step_dev(struct plan *plan);
int step_sys(struct plan *plan);
int step_masks(struct plan *plan);  /* masks.c */
int step_limits(struct plan *plan); /* privileges.c */
int step_user(struct plan *plan);
int step_namespaces(struct plan *plan);
int step_files(struct plan *plan);
int step_privileges(struct plan *plan);
int step_seccomp(struct plan *plan); /* seccomp.c */

#endif

#include "agent/agent.h"

#include <sys/syscall.h>

/*
 * Only the ids that the file system looks at change. The kernel then takes the capabilities over
 * files away by itself and gives them back later; the real ids stay root's, so a process of that
 * user cannot signal the agent meanwhile. Straight to the kernel, because C libraries would look
 * for threads to tell.
 */
int act_as(struct agent *a, const struct identity *identity)
{
	if (identity->uid == 0)
		return 0;
	if (syscall(SYS_setgroups, identity->group_count, identity->groups))
		return -errno;
	a->is_acting = true;
	syscall(SYS_setfsgid, identity->gid);
	syscall(SYS_setfsuid, identity->uid);
	/* These two never fail aloud; asking with an impossible id tells what is in force. */
	if ((uid_t)syscall(SYS_setfsuid, -1) == identity->uid &&
	    (gid_t)syscall(SYS_setfsgid, -1) == identity->gid)
		return 0;
	act_as_root(a);
	return -EINVAL;
}

void act_as_root(struct agent *a)
{
	if (!a->is_acting)
		return;
	syscall(SYS_setfsuid, 0);
	syscall(SYS_setfsgid, 0);
	if (syscall(SYS_setgroups, 0, NULL))
		_exit(1);
	a->is_acting = false;
}

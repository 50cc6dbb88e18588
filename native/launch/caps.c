#include "launch/caps.h"

#include "common/base.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BIT(capability) (1ull << (capability))

/* What installing software and switching users needs, valid for the sandbox's own ids only.
 * Without NET_RAW, SYS_ADMIN, SYS_PTRACE, MKNOD and the rest there is less kernel to reach. */
static const uint64_t kept = BIT(CAP_CHOWN) | BIT(CAP_DAC_OVERRIDE) | BIT(CAP_FOWNER) |
			     BIT(CAP_FSETID) | BIT(CAP_KILL) | BIT(CAP_SETGID) | BIT(CAP_SETUID) |
			     BIT(CAP_SETPCAP) | BIT(CAP_NET_BIND_SERVICE) | BIT(CAP_SYS_CHROOT) |
			     BIT(CAP_SETFCAP);

int caps_reduce(void)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = {
		{ .effective = (uint32_t)kept, .permitted = (uint32_t)kept },
		{ .effective = (uint32_t)(kept >> 32), .permitted = (uint32_t)(kept >> 32) },
	};

	/* Up to the last one that this kernel knows, which may be newer than our headers. */
	for (int capability = 0; capability < 64; capability++) {
		if (kept & BIT(capability))
			continue;
		if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) && errno == EINVAL)
			break;
	}
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
		return -errno;
	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

/*
 * What of /proc tells about the host, or changes it, is covered. The mount namespace belongs to
 * the initial user namespace, so nobody inside can lift a cover.
 */
#include "launch/sandbox.h"

#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

/* Some of these only the host's root may read, and root of a sandbox is not; they are covered as
 * well, for such rules have had holes. */
static const char *const hidden_files[] = {
	"/proc/allocinfo",     "/proc/cmdline",	     "/proc/diskstats",	    "/proc/interrupts",
	"/proc/kallsyms",      "/proc/kcore",	     "/proc/key-users",	    "/proc/keys",
	"/proc/kmsg",	       "/proc/kpagecgroup",  "/proc/kpagecount",    "/proc/kpageflags",
	"/proc/latency_stats", "/proc/pagetypeinfo", "/proc/partitions",    "/proc/sched_debug",
	"/proc/slabinfo",      "/proc/swaps",	     "/proc/sysrq-trigger", "/proc/timer_list",
	"/proc/vmallocinfo",
};

static const char *const hidden_dirs[] = {
	"/proc/acpi", "/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/scsi",
};

static int cover(const char *path, const char *with)
{
	/* What this kernel does not have needs no cover. */
	if (mount(with, path, NULL, MS_BIND, NULL) == 0 || errno == ENOENT)
		return 0;
	return -errno;
}

static int make_read_only(const char *path)
{
	const unsigned long flags =
	    MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;

	if (mount(path, path, NULL, MS_BIND, NULL) || mount(NULL, path, NULL, flags, NULL))
		return -errno;
	return 0;
}

int step_masks(struct plan *plan)
{
	for (size_t i = 0; i < COUNT(hidden_files); i++) {
		int status = cover(hidden_files[i], "/dev/null");

		if (status < 0)
			return fail(&plan->failure, -status, "masks", "cannot hide %s: %s",
				    hidden_files[i], strerror(-status));
	}
	for (size_t i = 0; i < COUNT(hidden_dirs); i++) {
		int status = cover(hidden_dirs[i], "/sys");

		if (status < 0)
			return fail(&plan->failure, -status, "masks", "cannot hide %s: %s",
				    hidden_dirs[i], strerror(-status));
	}
	return make_read_only("/proc/sys");
}

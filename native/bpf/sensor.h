/* What the eBPF programs and the program that loads them share. */
#ifndef SF_SENSOR_H
#define SF_SENSOR_H

#include "events.h"

enum {
	SENSOR_BUCKETS = 16384,
	SENSOR_HELD_BACK = 4096,
	SENSOR_URGENT_RING_BYTES = 512 * 1024,
	SENSOR_NORMAL_RING_BYTES = 2 * 1024 * 1024,
};

enum sensor_counter {
	COUNT_REPORTED,
	COUNT_RATE_LIMITED,
	COUNT_RING_FULL,
	COUNT_UNREAD,
	COUNTERS,
};

/* One rate limit: a flood of one kind of call must not hide another kind. */
struct sensor_bucket {
	sn_u64 cgroup;
	sn_s32 nr;
	sn_u32 urgent;
};

struct sensor_held_back {
	sn_u64 count;
	char sandbox[SN_SANDBOX_MAX];
};

struct sensor_limit {
	sn_u64 interval_ns; /* between two records in the long run */
	sn_u64 burst_ns;    /* how far ahead of that a sandbox may be */
};

#endif

/*
 * sandfleet-sensor: loads the eBPF programs and writes their records to standard output.
 *
 *   sandfleet-sensor --sandboxes DIR [--calls N --calls-burst N --execs N --execs-burst N]
 *                    [--verbose]
 *
 * DIR is the directory of this node's sandboxes in cgroup v2; it may come and go. The numbers are
 * records a second, and in a burst, of one kind from one sandbox. The program runs as root (or
 * with CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE), starts no process, opens no file but DIR's
 * entry, reads nothing from standard input but its end, which it takes for its parent's.
 *
 * Exit status: 0 input ended, 1 failed while running, 2 wrong options, 3 eBPF does not load here.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/magic.h>

#include "output.h"
#include "sensor.h"
#include "sensor.skel.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_BPF = 3 };
enum { LOOK_MS = 100, BEAT_NS = 1000000000 };

struct options {
	const char *sandboxes;
	unsigned long calls, calls_burst, execs, execs_burst;
	bool is_verbose; /* show what libbpf and the verifier say */
};

struct sensor {
	struct options options;
	struct sensor_bpf *bpf;
	struct ring_buffer *rings;
	struct output out;
	sn_u64 beat_due_ns;
	int cpus;
};

__attribute__((format(printf, 2, 3), noreturn)) static void die(int status, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fputs("sandfleet-sensor: ", stderr);
	vfprintf(stderr, format, list);
	fputc('\n', stderr);
	va_end(list);
	exit(status);
}

static sn_u64 now_ns(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return (sn_u64)at.tv_sec * 1000000000U + (sn_u64)at.tv_nsec;
}

static unsigned long parse_number(const char *name, const char *text)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || end == text || *end || value < 1 || value > 1000000)
		die(EXIT_USAGE, "--%s takes a number from 1 to 1000000, not \"%s\"", name, text);
	return value;
}

static struct options parse_options(int argc, char **argv)
{
	static const struct option known[] = {
		{ "sandboxes", required_argument, NULL, 's' },
		{ "calls", required_argument, NULL, 'c' },
		{ "calls-burst", required_argument, NULL, 'C' },
		{ "execs", required_argument, NULL, 'e' },
		{ "execs-burst", required_argument, NULL, 'E' },
		{ "verbose", no_argument, NULL, 'v' },
		{ 0 },
	};
	struct options options = {
		.calls = 50, .calls_burst = 200, .execs = 500, .execs_burst = 2000
	};
	int choice, index = 0;

	while ((choice = getopt_long(argc, argv, "", known, &index)) != -1) {
		if (choice == 's')
			options.sandboxes = optarg;
		else if (choice == 'c')
			options.calls = parse_number(known[index].name, optarg);
		else if (choice == 'C')
			options.calls_burst = parse_number(known[index].name, optarg);
		else if (choice == 'e')
			options.execs = parse_number(known[index].name, optarg);
		else if (choice == 'E')
			options.execs_burst = parse_number(known[index].name, optarg);
		else if (choice == 'v')
			options.is_verbose = true;
		else
			exit(EXIT_USAGE);
	}
	if (options.sandboxes == NULL || optind != argc)
		die(EXIT_USAGE, "usage: sandfleet-sensor --sandboxes DIR [--calls N]...");
	return options;
}

static struct sensor_limit limit_of(unsigned long rate, unsigned long burst)
{
	sn_u64 interval = 1000000000U / rate;

	return (struct sensor_limit){ .interval_ns = interval, .burst_ns = interval * (burst - 1) };
}

static int be_quiet(enum libbpf_print_level level, const char *format, va_list list)
{
	(void)level;
	(void)format;
	(void)list;
	return 0;
}

static const char *why(int error)
{
	if (error == -EPERM || error == -EACCES)
		return "it needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE";
	if (error == -ESRCH || error == -ENOENT)
		return "this kernel does not show its types (CONFIG_DEBUG_INFO_BTF) or is too old";
	return strerror(-error);
}

static void load(struct sensor *sensor)
{
	const struct options *options = &sensor->options;
	int error;

	if (!options->is_verbose)
		libbpf_set_print(be_quiet);
	sensor->bpf = sensor_bpf__open();
	if (!sensor->bpf)
		die(EXIT_NO_BPF, "cannot open the eBPF programs: %s", why(-errno));
	*(struct sensor_limit *)&sensor->bpf->rodata->call_limit =
	    limit_of(options->calls, options->calls_burst);
	*(struct sensor_limit *)&sensor->bpf->rodata->exec_limit =
	    limit_of(options->execs, options->execs_burst);
	error = sensor_bpf__load(sensor->bpf);
	if (error)
		die(EXIT_NO_BPF, "the kernel does not load the eBPF programs: %s", why(error));
	error = sensor_bpf__attach(sensor->bpf);
	if (error)
		die(EXIT_NO_BPF, "the eBPF programs do not attach: %s", why(error));
}

static int on_record(void *context, void *data, size_t size)
{
	struct sensor *sensor = context;

	output_add(&sensor->out, data, size);
	return 0;
}

/* The urgent ring comes first: rings are read in the order in which they were added. */
static void open_rings(struct sensor *sensor)
{
	sensor->rings =
	    ring_buffer__new(bpf_map__fd(sensor->bpf->maps.urgent), on_record, sensor, NULL);
	if (!sensor->rings || ring_buffer__add(sensor->rings, bpf_map__fd(sensor->bpf->maps.normal),
					       on_record, sensor))
		die(EXIT_NO_BPF, "cannot map the ring buffers: %s", strerror(errno));
}

/* Follows the directory of sandboxes: the node makes it, and may make it anew. */
static void look_for_sandboxes(struct sensor *sensor)
{
	struct stat found;
	struct statfs kind;
	bool is_there = stat(sensor->options.sandboxes, &found) == 0 &&
			statfs(sensor->options.sandboxes, &kind) == 0 &&
			kind.f_type == CGROUP2_SUPER_MAGIC;
	sn_u64 root = is_there ? found.st_ino : 0;

	if (root == sensor->bpf->bss->root_id)
		return;
	sensor->bpf->bss->root_id = root;
	sensor->bpf->bss->since_ns = now_ns(CLOCK_MONOTONIC);
}

static sn_u64 total(struct sensor *sensor, enum sensor_counter which)
{
	sn_u64 values[sensor->cpus], sum = 0;
	unsigned int key = which;

	if (bpf_map_lookup_elem(bpf_map__fd(sensor->bpf->maps.counters), &key, values))
		return 0;
	for (int cpu = 0; cpu < sensor->cpus; cpu++)
		sum += values[cpu];
	return sum;
}

static void tell_held_back(struct sensor *sensor)
{
	int map = bpf_map__fd(sensor->bpf->maps.held_back);
	struct sensor_bucket key, next;
	bool more = bpf_map_get_next_key(map, NULL, &next) == 0;

	for (int left = SENSOR_HELD_BACK; more && left > 0; left--) {
		struct sensor_held_back held;
		struct sn_dropped record = { .header = { .size = sizeof(record),
							 .type = SN_DROPPED } };

		key = next;
		more = bpf_map_get_next_key(map, &key, &next) == 0;
		if (bpf_map_lookup_and_delete_elem(map, &key, &held))
			continue;
		record.header.time_ns = now_ns(CLOCK_BOOTTIME);
		record.header.cgroup = key.cgroup;
		record.header.flags = key.urgent ? SN_FLAG_URGENT : 0;
		record.nr = key.nr;
		record.count = held.count;
		memcpy(record.sandbox, held.sandbox, sizeof(record.sandbox));
		output_add(&sensor->out, &record, sizeof(record));
	}
}

static void beat(struct sensor *sensor)
{
	struct sn_beat record = {
		.header = { .size = sizeof(record),
			    .type = SN_BEAT,
			    .time_ns = now_ns(CLOCK_BOOTTIME),
			    .cgroup = sensor->bpf->bss->root_id },
		.reported = total(sensor, COUNT_REPORTED),
		.rate_limited = total(sensor, COUNT_RATE_LIMITED),
		.ring_full = total(sensor, COUNT_RING_FULL),
		.unread = total(sensor, COUNT_UNREAD),
	};

	tell_held_back(sensor);
	output_add(&sensor->out, &record, sizeof(record));
	sensor->beat_due_ns = now_ns(CLOCK_MONOTONIC) + BEAT_NS;
}

static void say_ready(struct sensor *sensor)
{
	struct sn_ready record = { .header = { .size = sizeof(record),
					       .type = SN_READY,
					       .time_ns = now_ns(CLOCK_BOOTTIME),
					       .cgroup = sensor->bpf->bss->root_id },
				   .protocol = SN_PROTOCOL };

	output_add(&sensor->out, &record, sizeof(record));
}

static bool input_has_ended(short events)
{
	char ignored[256];
	ssize_t got;

	if (!(events & (POLLIN | POLLHUP | POLLERR | POLLNVAL)))
		return false;
	got = read(STDIN_FILENO, ignored, sizeof(ignored));
	return got == 0 || (got < 0 && errno != EINTR);
}

static int run(struct sensor *sensor)
{
	struct pollfd polled[] = {
		{ .fd = STDIN_FILENO, .events = POLLIN },
		{ .fd = ring_buffer__epoll_fd(sensor->rings), .events = POLLIN },
	};

	for (;;) {
		if (poll(polled, 2, LOOK_MS) < 0 && errno != EINTR)
			return -errno;
		if (input_has_ended(polled[0].revents))
			return 0;
		look_for_sandboxes(sensor);
		if (ring_buffer__consume(sensor->rings) < 0)
			return -EIO;
		if (now_ns(CLOCK_MONOTONIC) >= sensor->beat_due_ns)
			beat(sensor);
		if (output_flush(&sensor->out))
			return sensor->out.error == -EPIPE ? 0 : sensor->out.error;
	}
}

int main(int argc, char **argv)
{
	static struct sensor sensor;
	int error;

	signal(SIGPIPE, SIG_IGN);
	sensor.options = parse_options(argc, argv);
	sensor.cpus = libbpf_num_possible_cpus();
	load(&sensor);
	look_for_sandboxes(&sensor);
	open_rings(&sensor);
	say_ready(&sensor);
	error = run(&sensor);
	ring_buffer__free(sensor.rings);
	sensor_bpf__destroy(sensor.bpf);
	if (error)
		die(EXIT_FAILED, "%s", strerror(-error));
	return 0;
}

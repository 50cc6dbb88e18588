/* One binary, two faces: the launcher, and the agent that its children become. */
#include "agent/agent.h"
#include "common/base.h"
#include "launch/launch.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_ORPHAN_SECONDS = 600 };

static int usage(void)
{
	fputs("usage: sandfleet-native launcher --run-dir DIR [--orphan-seconds N]\n"
	      "       sandfleet-native agent --fd N\n",
	      stderr);
	return 2;
}

static bool read_number(const char *text, unsigned long *value)
{
	char *end;

	errno = 0;
	*value = strtoul(text, &end, 10);
	return *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && *value < 1000000000;
}

static int run_launcher(const char *run_dir, unsigned long orphan_seconds)
{
	return run_dir == NULL ? usage() : launcher_main(run_dir, orphan_seconds);
}

/* For runtimes that build the sandbox by other means and start the agent as its pid 1. */
static int run_agent(unsigned long fd)
{
	struct agent_options options = { .channel = (int)fd, .cgroup = -1, .ready = -1 };

	if (fd < 3)
		return usage();
	agent_run(&options);
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
		{ "run-dir", required_argument, NULL, 'r' },
		{ "orphan-seconds", required_argument, NULL, 'o' },
		{ "fd", required_argument, NULL, 'f' },
		{ 0 },
	};
	const char *run_dir = NULL;
	unsigned long orphan_seconds = DEFAULT_ORPHAN_SECONDS, fd = 0;
	int option;

	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 'r')
			run_dir = optarg;
		else if (option == 'o' ? !read_number(optarg, &orphan_seconds)
				       : option != 'f' || !read_number(optarg, &fd))
			return usage();
	}
	if (optind != argc - 1)
		return usage();
	if (strcmp(argv[optind], "launcher") == 0)
		return run_launcher(run_dir, orphan_seconds);
	if (strcmp(argv[optind], "agent") == 0)
		return run_agent(fd);
	return usage();
}

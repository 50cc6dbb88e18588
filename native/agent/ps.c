/* PS: what runs in the sandbox, the agent itself left out. */
#include "agent/dirents.h"
#include "agent/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct census {
	struct job job;
	struct dirents dirents;
};

enum { CMDLINE_MAX = 4096, PROCESS_ROOM = 64 + CMDLINE_MAX };

static void census_end(struct job *job)
{
	struct census *c = CONTAINER(job, struct census, job);

	close(c->dirents.fd);
	free(c);
}

static size_t read_file(int dir, const char *name, char *out, size_t room)
{
	AUTO_CLOSE int fd = openat(dir, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	ssize_t size = fd < 0 ? 0 : RETRY(read(fd, out, room));

	return size > 0 ? (size_t)size : 0;
}

/* The command whose cgroup the process is in: the line of the v2 hierarchy says "/c<id>". */
static uint32_t command_of(struct agent *a, int dir)
{
	char text[1024];
	size_t size = read_file(dir, "cgroup", text, sizeof(text) - 1);
	unsigned int id;

	text[size] = '\0';
	const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");

	if (line == NULL)
		return 0;
	line += *line == '\n';
	if (sscanf(line, "0::/c%u", &id) != 1)
		return 0;
	return process_find(a, id) != NULL ? id : 0;
}

static bool read_stat(int dir, struct sf_process *process)
{
	char text[1024], state;
	unsigned int parent;
	unsigned long user, system, pages;
	size_t size = read_file(dir, "stat", text, sizeof(text) - 1);

	text[size] = '\0';
	/* The name in parentheses may hold anything, so count from its last one. */
	const char *at = strrchr(text, ')');

	if (at == NULL ||
	    sscanf(at + 1,
		   " %c %u %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d "
		   "%*u %*u %lu",
		   &state, &parent, &user, &system, &pages) != 5)
		return false;
	process->state = (uint8_t)state;
	process->ppid = parent;
	process->cpu_us = (user + system) * (1000000u / (unsigned long)sysconf(_SC_CLK_TCK));
	process->rss_bytes = pages * (unsigned long)sysconf(_SC_PAGESIZE);
	return true;
}

static void add_process(struct agent *a, struct builder *fields, int proc, const char *name)
{
	struct sf_process process = { 0 };
	char cmdline[CMDLINE_MAX];
	struct stat stat;
	AUTO_CLOSE int dir = openat(proc, name, O_PATH | O_DIRECTORY | O_CLOEXEC);

	process.pid = (uint32_t)strtoul(name, NULL, 10);
	if (dir < 0 || process.pid == (uint32_t)getpid() || fstat(dir, &stat) ||
	    !read_stat(dir, &process))
		return;
	process.uid = stat.st_uid;
	process.command = command_of(a, dir);
	process.cmdline_size = (uint32_t)read_file(dir, "cmdline", cmdline, sizeof(cmdline));
	struct piece pieces[] = { { &process, sizeof(process) },
				  { cmdline, process.cmdline_size } };

	build_pieces(fields, SF_TAG_PROCESS, pieces, COUNT(pieces));
}

static int census_step(struct agent *a, struct job *job)
{
	struct census *c = CONTAINER(job, struct census, job);
	struct builder fields = { .data = a->scratch, .room = SF_FRAME_DATA_MAX };
	struct dirent_entry entry;
	int status = 1;

	a->packet_is_large = true;
	while (fields.room - fields.used >= PROCESS_ROOM) {
		status = dirents_next(&c->dirents, &entry);
		if (status <= 0)
			break;
		if (entry.name[0] >= '1' && entry.name[0] <= '9')
			add_process(a, &fields, c->dirents.fd, entry.name);
	}
	reply_result(a, job->id, status > 0 ? SF_FLAG_MORE : 0, &fields);
	return status > 0;
}

void serve_ps(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	(void)request;
	if (job_is_known(a, head->id))
		return;
	struct census *c = calloc(1, sizeof(*c));
	int fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (c == NULL || fd < 0) {
		free(c);
		close_and_forget(&fd);
		reply_error(a, head->id, ENOMEM, "cannot look at processes");
		return;
	}
	c->job =
	    (struct job){ .id = head->id, .type = SF_PS, .step = census_step, .end = census_end };
	c->dirents.fd = fd;
	job_add(a, &c->job);
}

/*
 * One child cgroup for each command, "c<id>", so that everything the command has started can be
 * found and ended together, daemons in sessions of their own included.
 *
 * Where the host gave no v2 cgroup the processes of the command's session have to do, and their
 * descendants as far as parents still show them: a daemon that has left its session and lost its
 * parent escapes a TREE signal there. It ends with the sandbox.
 */
#include "agent/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int group_make(struct agent *a, uint32_t id)
{
	char name[16];

	if (a->options.cgroup < 0)
		return -1;
	snprintf(name, sizeof(name), "c%u", id);
	if (mkdirat(a->options.cgroup, name, 0755) && errno != EEXIST)
		return -1;
	return openat(a->options.cgroup, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static bool kill_group(int dir)
{
	AUTO_CLOSE int fd = openat(dir, "cgroup.kill", O_WRONLY | O_CLOEXEC);

	return fd >= 0 && write(fd, "1", 1) == 1;
}

/* Signals what is in the group now. What forks meanwhile may be missed, as with any signal. */
static bool signal_group(int dir, int signal)
{
	int fd = openat(dir, "cgroup.procs", O_RDONLY | O_CLOEXEC);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	int pid;

	if (file == NULL) {
		close_and_forget(&fd);
		return false;
	}
	while (fscanf(file, "%d", &pid) == 1)
		if (pid > 1)
			kill(pid, signal);
	fclose(file);
	return true;
}

/* From /proc/PID/stat: the parent and the session. The name may hold anything, so the fields are
 * counted from its last parenthesis. */
static bool read_kin(int proc, const char *pid, int *parent, int *session)
{
	char path[300], text[512];

	snprintf(path, sizeof(path), "%s/stat", pid);
	AUTO_CLOSE int fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (size <= 0)
		return false;
	text[size] = '\0';
	const char *at = strrchr(text, ')');

	return at != NULL && sscanf(at + 1, " %*c %d %*d %d", parent, session) == 2;
}

/* One pass over /proc: true if something new was signalled. */
static bool signal_kin(pid_t root, int signal, uint8_t *seen)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	bool found = false;

	while (proc != NULL && (entry = readdir(proc)) != NULL) {
		int pid = atoi(entry->d_name), parent, session;

		if (pid <= 1 || pid >= 1 << 22 || (seen[pid / 8] & (1 << pid % 8)) ||
		    !read_kin(dirfd(proc), entry->d_name, &parent, &session))
			continue;
		bool is_child =
		    parent > 0 && parent < 1 << 22 && (seen[parent / 8] & (1 << parent % 8));

		if (pid != root && session != root && !is_child)
			continue;
		seen[pid / 8] |= (uint8_t)(1 << pid % 8);
		kill(pid, signal);
		found = true;
	}
	if (proc != NULL)
		closedir(proc);
	return found;
}

static void signal_by_descent(pid_t root, int signal)
{
	uint8_t *seen = calloc(1, (1 << 22) / 8);

	for (int pass = 0; seen != NULL && pass < 16 && signal_kin(root, signal, seen); pass++)
		;
	free(seen);
}

void group_signal(struct agent *a, struct process *p, int signal)
{
	(void)a;
	if (p->cgroup >= 0 &&
	    (signal == SIGKILL ? kill_group(p->cgroup) : signal_group(p->cgroup, signal)))
		return;
	if (!p->is_reaped)
		kill(-p->pid, signal);
	signal_by_descent(p->pid, signal);
}

static bool try_remove(struct agent *a, uint32_t id)
{
	char name[16];

	snprintf(name, sizeof(name), "c%u", id);
	return unlinkat(a->options.cgroup, name, AT_REMOVEDIR) == 0 || errno != EBUSY;
}

void group_remove(struct agent *a, uint32_t id, int *dir)
{
	if (*dir < 0)
		return;
	close_and_forget(dir);
	if (try_remove(a, id))
		return;
	if (a->lingering_count == a->lingering_room) {
		size_t room = MAX(a->lingering_room * 2, (size_t)16);
		uint32_t *list = realloc(a->lingering, room * sizeof(*list));

		if (list == NULL)
			return; /* the node removes the whole tree in the end */
		a->lingering = list;
		a->lingering_room = room;
	}
	a->lingering[a->lingering_count++] = id;
}

/* Called when an orphan has been reaped: the last process of a group always is one. */
void groups_retry(struct agent *a)
{
	for (size_t i = 0; i < a->lingering_count;) {
		if (try_remove(a, a->lingering[i]))
			a->lingering[i] = a->lingering[--a->lingering_count];
		else
			i++;
	}
	if (a->lingering_count > 0)
		return;
	free(a->lingering);
	a->lingering = NULL;
	a->lingering_room = 0;
}

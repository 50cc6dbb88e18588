/* READ: the bytes of a regular file, a frame at a step. */
#include "agent/files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

struct reading {
	struct job job;
	int fd;
	uint64_t position, left;
};

static void reading_end(struct job *job)
{
	struct reading *r = CONTAINER(job, struct reading, job);

	close(r->fd);
	free(r);
}

/* True when the file is known to end here; files of /proc have no size to go by. */
static bool is_at_end(const struct reading *r)
{
	struct stat stat;

	return fstat(r->fd, &stat) == 0 && stat.st_size > 0 &&
	       r->position >= (uint64_t)stat.st_size;
}

static int reading_step(struct agent *a, struct job *job)
{
	struct reading *r = CONTAINER(job, struct reading, job);
	size_t want = (size_t)MIN(r->left, (uint64_t)SF_FRAME_DATA_MAX), have = 0;
	bool has_ended = false;

	a->packet_is_large = true; /* the scratch page and its neighbours */
	while (have < want) {
		ssize_t size = RETRY(
		    pread(r->fd, a->scratch + have, want - have, (off_t)(r->position + have)));

		if (size < 0) {
			reply_error(a, job->id, errno, "cannot read: %s", strerror(errno));
			return 0;
		}
		has_ended = size == 0;
		if (has_ended)
			break;
		have += (size_t)size;
	}
	uint64_t position = r->position;

	r->position += have;
	r->left -= have;
	has_ended = has_ended || is_at_end(r);
	bool has_more = !has_ended && r->left > 0;

	reply_send(a, SF_RESULT, job->id,
		   (has_more ? SF_FLAG_MORE : 0) | (has_ended ? SF_FLAG_EOF : 0), position,
		   a->scratch, have);
	return has_more;
}

/* The agent's own files under /proc would show its memory, since every process may see itself. */
static bool is_our_own(int fd)
{
	struct statfs fs;
	char link[32], path[64], ours[32];
	ssize_t size;

	if (fstatfs(fd, &fs) || fs.f_type != PROC_SUPER_MAGIC)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	size = readlink(link, path, sizeof(path) - 1);
	if (size < 0)
		return true;
	path[size] = '\0';
	snprintf(ours, sizeof(ours), "/proc/%d/", getpid());
	return strncmp(path, ours, strlen(ours)) == 0;
}

static int open_regular(const char *path)
{
	int fd = path_open(AT_FDCWD, path, O_RDONLY);
	struct stat stat;
	int error = 0;

	if (fd < 0)
		return fd;
	if (fstat(fd, &stat))
		error = errno;
	else if (S_ISDIR(stat.st_mode))
		error = EISDIR;
	else if (!S_ISREG(stat.st_mode))
		error = EINVAL;
	else if (is_our_own(fd))
		error = EACCES;
	if (error == 0)
		return fd;
	close(fd);
	return -error;
}

void serve_read(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX];
	struct identity identity;

	if (job_is_known(a, head->id) || files_begin(a, head->id, request, &identity, path) < 0)
		return;
	int fd = open_regular(path);

	act_as_root(a);
	if (fd == -EINVAL) {
		reply_error(a, head->id, EINVAL, "%.160s is not a regular file", path);
		return;
	}
	if (fd < 0) {
		files_refuse(a, head->id, "read", path, -fd);
		return;
	}
	struct reading *r = calloc(1, sizeof(*r));

	if (r == NULL || head->position > INT64_MAX) {
		free(r);
		close(fd);
		files_refuse(a, head->id, "read", path, r == NULL ? ENOMEM : EINVAL);
		return;
	}
	r->job = (struct job){
		.id = head->id, .type = SF_READ, .step = reading_step, .end = reading_end
	};
	r->fd = fd;
	r->position = head->position;
	r->left = request->has_length ? MIN(request->length, (uint64_t)INT64_MAX - r->position)
				      : (uint64_t)INT64_MAX - r->position;
	job_add(a, &r->job);
}

/* Requests for files that are done at once: STAT, MKDIR, RENAME. */
#include "agent/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

int files_begin(struct agent *a, uint32_t id, const struct request *request,
		struct identity *identity, char *path)
{
	int status = identity_find(&request->user, identity);

	if (status < 0) {
		reply_error(a, id, ENOENT, "no such user: %.*s",
			    (int)MIN(request->user.size, (size_t)64), request->user.data);
		return status;
	}
	status = path_full(&request->path, identity, path);
	if (status == 0)
		status = act_as(a, identity);
	if (status < 0)
		reply_error(a, id, -status, "cannot act as user %s: %s", identity->name,
			    strerror(-status));
	return status;
}

void files_refuse(struct agent *a, uint32_t id, const char *verb, const char *path, int error)
{
	reply_error(a, id, error, "cannot %s %.160s: %s", verb, path, strerror(error));
}

static const char *last_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

static int stat_into(struct builder *fields, const char *path, int flags)
{
	char target[SF_PATH_MAX];
	struct stat stat;
	ssize_t size = 0;
	AUTO_CLOSE int fd = path_open(AT_FDCWD, path, O_PATH | flags);

	if (fd < 0)
		return fd;
	if (fstat(fd, &stat))
		return -errno;
	if (S_ISLNK(stat.st_mode))
		size = readlinkat(fd, "", target, sizeof(target));
	entry_build(fields, last_name(path), &stat, target, (size_t)MAX(size, 0));
	return 0;
}

static void answer_entry(struct agent *a, uint32_t id, const char *verb, const char *path,
			 int flags)
{
	uint8_t space[2 * SF_PATH_MAX + 256];
	struct builder fields = { .data = space, .room = sizeof(space) };
	int status = stat_into(&fields, path, flags);

	if (status < 0)
		files_refuse(a, id, verb, path, -status);
	else
		reply_result(a, id, 0, &fields);
}

void serve_stat(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX];
	struct identity identity;

	if (files_begin(a, head->id, request, &identity, path) < 0)
		return;
	answer_entry(a, head->id, "find", path, head->flags & SF_FLAG_NOFOLLOW ? O_NOFOLLOW : 0);
	act_as_root(a);
}

static int make_directory(const char *path, mode_t mode, bool with_parents)
{
	char copy[SF_PATH_MAX];
	const char *name;

	strcpy(copy, path);
	if (with_parents)
		return path_make(copy, mode);
	AUTO_CLOSE int dir = path_parent(copy, &name);

	if (dir < 0)
		return dir;
	return mkdirat(dir, name, mode) ? -errno : 0;
}

void serve_mkdir(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX];
	struct identity identity;
	mode_t mode = request->has_mode ? request->mode & 07777 : 0755;
	int status = 0;

	if (files_begin(a, head->id, request, &identity, path) < 0)
		return;
	if (!settled_has(a, head->id, SF_MKDIR))
		status = make_directory(path, mode, head->flags & SF_FLAG_PARENTS);
	if (status < 0) {
		files_refuse(a, head->id, "make directory", path, -status);
	} else {
		settled_add(a, head->id, SF_MKDIR);
		answer_entry(a, head->id, "make directory", path, 0);
	}
	act_as_root(a);
}

static int move(const char *path, const char *target)
{
	char from[SF_PATH_MAX], to[SF_PATH_MAX];
	const char *old_name, *new_name;

	strcpy(from, path);
	strcpy(to, target);
	AUTO_CLOSE int old_dir = path_parent(from, &old_name);

	if (old_dir < 0)
		return old_dir;
	AUTO_CLOSE int new_dir = path_parent(to, &new_name);

	if (new_dir < 0)
		return new_dir;
	return renameat(old_dir, old_name, new_dir, new_name) ? -errno : 0;
}

void serve_rename(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX], target[SF_PATH_MAX];
	struct identity identity;
	int status;

	if (request->target.size == 0) {
		reply_error(a, head->id, EINVAL, "the request names no target");
		return;
	}
	if (files_begin(a, head->id, request, &identity, path) < 0)
		return;
	status = path_full(&request->target, &identity, target);
	if (status == 0 && !settled_has(a, head->id, SF_RENAME))
		status = move(path, target);
	if (status == -EXDEV) {
		/* The overlay cannot move a directory that lies in a read-only layer. */
		reply_error(a, head->id, EXDEV,
			    "cannot rename %.120s: copy it and remove it instead", path);
	} else if (status < 0) {
		files_refuse(a, head->id, "rename", path, -status);
	} else {
		settled_add(a, head->id, SF_RENAME);
		answer_entry(a, head->id, "find", target, O_NOFOLLOW);
	}
	act_as_root(a);
}

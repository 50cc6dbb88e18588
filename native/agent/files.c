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

static void answer_entry(struct agent *a, uint32_t id, const char *verb, const char *path, int flags)
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

static int make_directory(char *path, mode_t mode, bool with_parents)
{
	char copy[SF_PATH_MAX];
	const char *name;

	if (with_parents)
		return path_make(path, mode);
	strcpy(copy, path);
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

void serve_rename(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX], target[SF_PATH_MAX];
	struct identity identity;
	int error = 0;

	if (request->target.size == 0) {
		reply_error(a, head->id, EINVAL, "the request names no target");
		return;
	}
	if (files_begin(a, head->id, request, &identity, path) < 0)
		return;
	if (path_full(&request->target, &identity, target) < 0)
		error = ENAMETOOLONG;
	else if (!settled_has(a, head->id, SF_RENAME) && rename(path, target))
		error = errno;
	if (error == EXDEV) {
		/* The overlay cannot move a directory that lies in a read-only layer. */
		reply_error(a, head->id, EXDEV, "cannot rename %.120s: copy it and remove it instead",
			    path);
	} else if (error != 0) {
		files_refuse(a, head->id, "rename", path, error);
	} else {
		settled_add(a, head->id, SF_RENAME);
		answer_entry(a, head->id, "find", target, O_NOFOLLOW);
	}
	act_as_root(a);
}

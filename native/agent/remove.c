/*
 * REMOVE. A tree is taken down with one open directory at a time, whatever its depth: on the way
 * down each directory's identity is noted, on the way up ".." must be the one that was noted, or
 * somebody has moved a directory meanwhile and the work ends rather than going on elsewhere.
 * Links are removed, never followed.
 */
#include "agent/dirents.h"
#include "agent/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

enum {
	CALLS_PER_STEP = 128,
	CALLS_MAX = 1 << 25, /* somebody creates as fast as we remove */
	DEPTH_MAX = 1 << 16,
};

struct level {
	dev_t device;
	ino_t inode;
};

struct removal {
	struct job job;
	struct identity identity;
	int parent;		/* where the top lies */
	char name[256];		/* the top's name there */
	char path[200];		/* for the sentence about a failure */
	struct dirents dirents; /* of the directory being emptied; fd -1: none */
	bool has_seen_any;	/* in this pass over it */
	struct level *levels;	/* from the top down to the current one */
	size_t depth, room;
	unsigned int calls;
};

static void removal_end(struct job *job)
{
	struct removal *r = CONTAINER(job, struct removal, job);

	close_and_forget(&r->dirents.fd);
	close_and_forget(&r->parent);
	free(r->levels);
	free(r);
}

/* Removes one name. Returns 1 if it is a directory that is not empty, 0, or a negative errno. */
static int remove_name(int dir, const char *name)
{
	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	int error = errno;

	if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	if (errno == ENOTEMPTY || errno == EEXIST)
		return 1;
	return errno == ENOTDIR ? -error : -errno;
}

static void look_into(struct removal *r, int fd)
{
	close_and_forget(&r->dirents.fd);
	r->dirents.fd = fd;
	r->dirents.at = r->dirents.filled = 0;
	r->has_seen_any = false;
}

static int descend(struct removal *r, int dir, const char *name)
{
	struct stat stat;
	int fd = path_open(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	if (r->depth == r->room) {
		size_t room = MAX(r->room * 2, (size_t)16);
		struct level *levels =
		    room > DEPTH_MAX ? NULL : realloc(r->levels, room * sizeof(*levels));

		if (levels == NULL) {
			close(fd);
			return -ELOOP;
		}
		r->levels = levels;
		r->room = room;
	}
	if (fstat(fd, &stat)) {
		close(fd);
		return -EIO;
	}
	r->levels[r->depth++] = (struct level){ stat.st_dev, stat.st_ino };
	look_into(r, fd);
	return 0;
}

/* The current directory is empty: back to the one above, which then removes it by name. */
static int ascend(struct removal *r)
{
	struct stat stat;

	if (--r->depth == 0) {
		look_into(r, -1);
		return 0;
	}
	int fd = path_open(r->dirents.fd, "..", O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		return fd;
	const struct level *above = &r->levels[r->depth - 1];

	if (fstat(fd, &stat) || stat.st_dev != above->device || stat.st_ino != above->inode) {
		close(fd);
		return -ESTALE;
	}
	look_into(r, fd);
	return 0;
}

/* Returns 1 to go on, 0 when the top is gone, or a negative errno. */
static int remove_next(struct removal *r)
{
	struct dirent_entry entry;
	int status;

	if (r->dirents.fd < 0) {
		status = remove_name(r->parent, r->name);
		if (status <= 0)
			return status;
		status = descend(r, r->parent, r->name);
		return status < 0 ? status : 1;
	}
	status = dirents_next(&r->dirents, &entry);
	if (status < 0)
		return status;
	if (status > 0) {
		r->has_seen_any = true;
		status = remove_name(r->dirents.fd, entry.name);
		if (status > 0)
			status = descend(r, r->dirents.fd, entry.name);
	} else if (r->has_seen_any) {
		/* File systems may pass over names while others go: look once more. */
		r->has_seen_any = false;
		r->dirents.at = r->dirents.filled = 0;
		status = lseek(r->dirents.fd, 0, SEEK_SET) < 0 ? -errno : 0;
	} else {
		status = ascend(r);
	}
	return status < 0 ? status : 1;
}

static int removal_step(struct agent *a, struct job *job)
{
	struct removal *r = CONTAINER(job, struct removal, job);
	int status = act_as(a, &r->identity);

	status = status < 0 ? status : 1;
	for (int i = 0; i < CALLS_PER_STEP && status > 0; i++)
		status = ++r->calls > CALLS_MAX ? -EBUSY : remove_next(r);
	act_as_root(a);
	if (status > 0)
		return 1;
	if (status < 0) {
		files_refuse(a, job->id, "remove", r->path, -status);
	} else {
		settled_add(a, job->id, SF_REMOVE);
		reply_result(a, job->id, 0, NULL);
	}
	return 0;
}

static void remove_one(struct agent *a, uint32_t id, int dir, const char *name, const char *path)
{
	struct stat stat;
	int status = -ENOENT;

	if (fstatat(dir, name, &stat, AT_SYMLINK_NOFOLLOW) == 0)
		status = remove_name(dir, name);
	if (status == 0) {
		settled_add(a, id, SF_REMOVE);
		reply_result(a, id, 0, NULL);
	} else {
		files_refuse(a, id, "remove", path, status > 0 ? ENOTEMPTY : -status);
	}
}

static void remove_tree(struct agent *a, uint32_t id, int dir, const char *name, const char *path,
			const struct identity *identity)
{
	struct removal *r = calloc(1, sizeof(*r));
	struct stat stat;
	int error = 0;

	if (r == NULL)
		error = ENOMEM;
	else if (fstatat(dir, name, &stat, AT_SYMLINK_NOFOLLOW))
		error = errno;
	if (error != 0) {
		free(r);
		files_refuse(a, id, "remove", path, error);
		return;
	}
	r->job =
	    (struct job){ .id = id, .type = SF_REMOVE, .step = removal_step, .end = removal_end };
	r->identity = *identity;
	r->parent = fcntl(dir, F_DUPFD_CLOEXEC, 0);
	r->dirents.fd = -1;
	strcpy(r->name, name);
	snprintf(r->path, sizeof(r->path), "%.199s", path);
	job_add(a, &r->job);
}

void serve_remove(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX], copy[SF_PATH_MAX];
	struct identity identity;
	const char *name;

	if (job_is_known(a, head->id))
		return;
	if (settled_has(a, head->id, SF_REMOVE)) {
		reply_result(a, head->id, 0, NULL);
		return;
	}
	if (files_begin(a, head->id, request, &identity, path) < 0)
		return;
	strcpy(copy, path);
	AUTO_CLOSE int dir = path_parent(copy, &name);

	if (dir < 0)
		files_refuse(a, head->id, "remove", path, -dir);
	else if (head->flags & SF_FLAG_RECURSIVE)
		remove_tree(a, head->id, dir, name, path, &identity);
	else
		remove_one(a, head->id, dir, name, path);
	act_as_root(a);
}

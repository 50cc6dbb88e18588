/*
 * WRITE, WRITE_DATA, WRITE_END: a file appears whole or not at all. The bytes go to a hidden file
 * in the target's directory, which takes the target's name in the end.
 *
 * The target of a link is what is replaced, as when a program writes through the link. A file
 * that is replaced hands on its mode, and its owner where the writer may give files away.
 */
#include "agent/files.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>

enum { LINKS_MAX = 16, NR_FACCESSAT2 = 439 };

struct upload {
	uint32_t id;
	struct identity identity;
	int dir, fd; /* fd -1: failed, or done before */
	char name[256], temporary[48];
	char path[200]; /* for sentences */
	bool has_old, has_mode, is_settled;
	struct stat old;
	mode_t mode;
	int error; /* told already; told again at the end */
};

static struct upload **find_slot(struct agent *a, uint32_t id)
{
	for (size_t i = 0; i < COUNT(a->uploads); i++)
		if (a->uploads[i] != NULL && a->uploads[i]->id == id)
			return &a->uploads[i];
	return NULL;
}

/* Removes the hidden file, if there is one, and closes. */
static void discard(struct agent *a, struct upload *u)
{
	if (u->fd >= 0 && u->temporary[0] != '\0' && act_as(a, &u->identity) == 0) {
		unlinkat(u->dir, u->temporary, 0);
		act_as_root(a);
	}
	u->temporary[0] = '\0';
	close_and_forget(&u->fd);
	close_and_forget(&u->dir);
}

static void drop(struct agent *a, struct upload **slot)
{
	discard(a, *slot);
	free(*slot);
	*slot = NULL;
}

/* A free place; a node that gave up on a failed upload may never have ended it. */
static struct upload **free_slot(struct agent *a)
{
	struct upload **failed = NULL;

	for (size_t i = 0; i < COUNT(a->uploads); i++) {
		if (a->uploads[i] == NULL)
			return &a->uploads[i];
		if (a->uploads[i]->fd < 0)
			failed = &a->uploads[i];
	}
	if (failed != NULL)
		drop(a, failed);
	return failed;
}

static void fail_upload(struct agent *a, struct upload *u, int error)
{
	u->error = error;
	discard(a, u);
	files_refuse(a, u->id, "write", u->path, error);
}

/* Replaces the path by what the link in its last place says. */
static int follow(int dir, const char *name, char *path)
{
	char link[SF_PATH_MAX], joined[2 * SF_PATH_MAX];
	ssize_t size = readlinkat(dir, name, link, sizeof(link) - 1);

	if (size < 0)
		return -errno;
	link[size] = '\0';
	/* path_split has cut the path before the name, so it is the directory now. */
	snprintf(joined, sizeof(joined), "%s/%s", link[0] == '/' ? "" : path, link);
	if (strlen(joined) >= SF_PATH_MAX)
		return -ENAMETOOLONG;
	strcpy(path, joined);
	return 0;
}

/* Finds the directory and name that will be replaced. */
static int locate(struct upload *u, char *path)
{
	const char *name;

	for (int i = 0; i < LINKS_MAX; i++) {
		close_and_forget(&u->dir);
		u->dir = path_parent(path, &name);
		if (u->dir < 0)
			return u->dir;
		if (fstatat(u->dir, name, &u->old, AT_SYMLINK_NOFOLLOW)) {
			strcpy(u->name, name);
			return errno == ENOENT ? 0 : -errno;
		}
		if (!S_ISLNK(u->old.st_mode)) {
			strcpy(u->name, name);
			u->has_old = true;
			return S_ISREG(u->old.st_mode)	 ? 0
			       : S_ISDIR(u->old.st_mode) ? -EISDIR
							 : -EINVAL;
		}
		int status = follow(u->dir, name, path);

		if (status < 0)
			return status;
	}
	return -ELOOP;
}

static int open_hidden(struct upload *u)
{
	uint64_t random;

	/* Replacing needs no right to the old file; writing to it would, and is what was asked. */
	if (u->has_old && syscall(NR_FACCESSAT2, u->dir, u->name, W_OK, AT_EACCESS))
		return -errno;
	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
		random = u->id;
	snprintf(u->temporary, sizeof(u->temporary), WRITE_PREFIX "%016llx",
		 (unsigned long long)random);
	u->fd = openat(u->dir, u->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
		       0600);
	return u->fd < 0 ? -errno : 0;
}

static int make_parents(const char *path)
{
	char copy[SF_PATH_MAX];
	const char *directory, *name;

	strcpy(copy, path);
	int status = path_split(copy, &directory, &name);

	return status < 0 || directory[1] == '\0' ? status : path_make(copy, 0755);
}

static int open_upload(struct upload *u, char *path, bool with_parents)
{
	int status = with_parents ? make_parents(path) : 0;

	if (status == 0)
		status = locate(u, path);
	if (status == 0 && !u->is_settled)
		status = open_hidden(u);
	return status;
}

void serve_write(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX];

	if (find_slot(a, head->id) != NULL)
		return;
	struct upload **slot = free_slot(a), *u = slot ? calloc(1, sizeof(*u)) : NULL;

	if (u == NULL) {
		reply_error(a, head->id, slot ? ENOMEM : EAGAIN, "%d files are being written",
			    SF_WRITES_MAX);
		return;
	}
	if (files_begin(a, head->id, request, &u->identity, path) < 0) {
		free(u);
		return;
	}
	u->id = head->id;
	u->dir = u->fd = -1;
	u->has_mode = request->has_mode;
	u->mode = request->mode & 07777;
	u->is_settled = settled_has(a, head->id, SF_WRITE_END);
	snprintf(u->path, sizeof(u->path), "%.199s", path);
	*slot = u;
	int status = open_upload(u, path, head->flags & SF_FLAG_PARENTS);

	act_as_root(a);
	if (status < 0)
		fail_upload(a, u, -status);
}

void serve_write_data(struct agent *a, const struct sf_frame *head, const uint8_t *data)
{
	struct upload **slot = find_slot(a, head->id);

	if (slot == NULL || (*slot)->fd < 0)
		return;
	if (head->position > (uint64_t)INT64_MAX - SF_FRAME_DATA_MAX) {
		fail_upload(a, *slot, EFBIG);
		return;
	}
	for (size_t done = 0; done < head->size;) {
		ssize_t size = RETRY(pwrite((*slot)->fd, data + done, head->size - done,
					    (off_t)(head->position + done)));

		if (size <= 0) {
			fail_upload(a, *slot, size < 0 ? errno : EIO);
			return;
		}
		done += (size_t)size;
	}
}

static int put_in_place(struct upload *u)
{
	mode_t mode = u->has_mode ? u->mode : u->has_old ? u->old.st_mode & 07777 : 0644;

	/* Owner first, for changing it clears mode bits. Only root can, and nobody minds. */
	if (u->has_old && u->identity.uid == 0 && fchown(u->fd, u->old.st_uid, u->old.st_gid) &&
	    errno != EPERM && errno != EINVAL)
		return -errno;
	if (fchmod(u->fd, mode) || renameat(u->dir, u->temporary, u->dir, u->name))
		return -errno;
	u->temporary[0] = '\0';
	return 0;
}

static void finish(struct agent *a, struct upload *u)
{
	uint8_t space[SF_PATH_MAX + 512];
	struct builder fields = { .data = space, .room = sizeof(space) };
	int status = act_as(a, &u->identity);

	if (status == 0 && !u->is_settled)
		status = put_in_place(u);
	if (status == 0)
		status = entry_at(&fields, u->dir, u->name);
	act_as_root(a);
	if (status < 0) {
		files_refuse(a, u->id, "write", u->path, -status);
		return;
	}
	settled_add(a, u->id, SF_WRITE_END);
	reply_result(a, u->id, 0, &fields);
}

void serve_write_end(struct agent *a, const struct sf_frame *head)
{
	struct upload **slot = find_slot(a, head->id);

	if (head->flags & SF_FLAG_ABORT) {
		if (slot != NULL)
			drop(a, slot);
		reply_result(a, head->id, 0, NULL);
		return;
	}
	if (slot == NULL) {
		reply_error(a, head->id, EBADF, "no file is being written by this request");
		return;
	}
	if ((*slot)->error != 0)
		files_refuse(a, head->id, "write", (*slot)->path, (*slot)->error);
	else
		finish(a, *slot);
	drop(a, slot);
}

void uploads_abort(struct agent *a)
{
	for (size_t i = 0; i < COUNT(a->uploads); i++)
		if (a->uploads[i] != NULL)
			drop(a, &a->uploads[i]);
}

#include "agent/paths.h"

#include "common/sys.h"

#include <fcntl.h>
#include <string.h>

int path_full(const struct text *path, const struct identity *identity, char *out)
{
	size_t used = 0;

	if (path->data[0] != '/') {
		used = strlen(identity->home);
		memcpy(out, identity->home, used);
		out[used++] = '/';
	}
	return text_copy(path, out + used, SF_PATH_MAX - used);
}

int path_split(char *path, const char **directory, const char **name)
{
	size_t length = strlen(path);

	while (length > 1 && path[length - 1] == '/')
		path[--length] = '\0';
	char *slash = strrchr(path, '/');

	if (slash == NULL || slash[1] == '\0' || strcmp(slash, "/.") == 0 ||
	    strcmp(slash, "/..") == 0)
		return -EINVAL;
	*slash = '\0';
	*directory = slash == path ? "/" : path;
	*name = slash + 1;
	return strlen(*name) > 255 ? -ENAMETOOLONG : 0;
}

int path_open(int dir, const char *path, int flags)
{
	int fd = sys_openat2(dir, path, flags | ((flags & O_PATH) ? 0 : O_NONBLOCK | O_NOCTTY), 0,
			     SF_RESOLVE_NO_MAGICLINKS);

	return fd < 0 ? -errno : fd;
}

int path_parent(char *path, const char **name)
{
	const char *directory;
	int status = path_split(path, &directory, name);

	return status < 0 ? status : path_open(AT_FDCWD, directory, O_PATH | O_DIRECTORY);
}

/* Makes one directory if it is missing and steps into it. */
static int make_and_enter(int *dir, const char *name, mode_t mode)
{
	if (mkdirat(*dir, name, mode) && errno != EEXIST && errno != EROFS)
		return -errno;
	int next = path_open(*dir, name, O_PATH | O_DIRECTORY);

	if (next < 0)
		return next;
	close(*dir);
	*dir = next;
	return 0;
}

int path_make(char *path, mode_t mode)
{
	AUTO_CLOSE int dir = path_open(AT_FDCWD, "/", O_PATH | O_DIRECTORY);
	int status = dir < 0 ? dir : 0;
	char *rest = path;
	const char *name;

	/* Component by component, for the same rules about links as everywhere else. */
	while (status == 0 && (name = strsep(&rest, "/")) != NULL) {
		bool is_last = rest == NULL || rest[strspn(rest, "/")] == '\0';

		if (*name != '\0')
			status = make_and_enter(&dir, name, is_last ? mode : 0755);
	}
	return status;
}

void entry_build(struct builder *fields, const char *name, const struct stat *stat,
		 const char *target, size_t target_size)
{
	struct sf_entry entry = {
		.size = (uint64_t)stat->st_size,
		.mtime_ns =
		    (uint64_t)stat->st_mtim.tv_sec * 1000000000u + (uint64_t)stat->st_mtim.tv_nsec,
		.mode = stat->st_mode,
		.uid = stat->st_uid,
		.gid = stat->st_gid,
		.name_size = (uint32_t)strlen(name),
		.target_size = (uint32_t)target_size,
	};
	struct piece pieces[] = { { &entry, sizeof(entry) },
				  { name, strlen(name) },
				  { target, target_size } };

	build_pieces(fields, SF_TAG_ENTRY, pieces, COUNT(pieces));
}

int entry_at(struct builder *fields, int dir, const char *name)
{
	char target[SF_PATH_MAX];
	struct stat stat;
	ssize_t size = 0;

	if (fstatat(dir, name, &stat, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (S_ISLNK(stat.st_mode))
		size = readlinkat(dir, name, target, sizeof(target));
	entry_build(fields, name, &stat, target, (size_t)MAX(size, 0));
	return 0;
}

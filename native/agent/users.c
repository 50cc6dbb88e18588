#include "agent/users.h"

#include "common/sys.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { USERS_FILE_MAX = 1 << 20, LINE_MAX_SIZE = 4096, FIELDS_MAX = 8 };

struct part {
	const char *data;
	size_t size;
};

bool id_number(const char *text, size_t size, uint32_t *id)
{
	uint64_t value = 0;

	if (size == 0 || size > 10)
		return false;
	for (size_t i = 0; i < size; i++) {
		if (text[i] < '0' || text[i] > '9')
			return false;
		value = value * 10 + (uint64_t)(text[i] - '0');
	}
	*id = (uint32_t)value;
	return value < UINT32_MAX; /* the last one means "no id" */
}

static size_t split(const char *line, size_t size, struct part *parts)
{
	size_t count = 0;
	const char *end = line + size;

	while (count < FIELDS_MAX) {
		const char *colon = memchr(line, ':', (size_t)(end - line));
		const char *stop = colon ? colon : end;

		parts[count++] = (struct part){ line, (size_t)(stop - line) };
		if (colon == NULL)
			break;
		line = colon + 1;
	}
	return count;
}

static bool is(const struct part *part, const char *text)
{
	return part->size == strlen(text) && memcmp(part->data, text, part->size) == 0;
}

static bool copy(const struct part *part, char *out, size_t room)
{
	if (part->size >= room || memchr(part->data, 0, part->size) != NULL)
		return false;
	memcpy(out, part->data, part->size);
	out[part->size] = '\0';
	return true;
}

/* name:password:uid:gid:comment:home:shell */
bool passwd_line(const char *line, size_t size, const char *user, struct identity *identity)
{
	struct part parts[FIELDS_MAX];
	uint32_t uid, gid, wanted = 0;

	if (split(line, size, parts) < 7 || !id_number(parts[2].data, parts[2].size, &uid) ||
	    !id_number(parts[3].data, parts[3].size, &gid))
		return false;
	bool is_number = id_number(user, strlen(user), &wanted);

	if (!is(&parts[0], user) && !(is_number && wanted == uid))
		return false;
	if (!copy(&parts[0], identity->name, sizeof(identity->name)))
		return false;
	identity->uid = uid;
	identity->gid = gid;
	if (parts[5].size == 0 || parts[5].data[0] != '/' ||
	    !copy(&parts[5], identity->home, sizeof(identity->home)))
		strcpy(identity->home, "/");
	if (parts[6].size == 0 || !copy(&parts[6], identity->shell, sizeof(identity->shell)))
		strcpy(identity->shell, "/bin/sh");
	return true;
}

static void add_group(struct identity *identity, gid_t gid)
{
	for (size_t i = 0; i < identity->group_count; i++)
		if (identity->groups[i] == gid)
			return;
	if (identity->group_count < GROUPS_MAX)
		identity->groups[identity->group_count++] = gid;
}

/* name:password:gid:member,member */
void group_line(const char *line, size_t size, struct identity *identity)
{
	struct part parts[FIELDS_MAX];
	uint32_t gid;

	if (split(line, size, parts) < 4 || !id_number(parts[2].data, parts[2].size, &gid))
		return;
	const char *at = parts[3].data, *end = at + parts[3].size;

	while (at < end) {
		const char *comma = memchr(at, ',', (size_t)(end - at));
		const char *stop = comma ? comma : end;
		struct part member = { at, (size_t)(stop - at) };

		if (is(&member, identity->name)) {
			add_group(identity, gid);
			return;
		}
		at = stop + 1;
	}
}

typedef bool take_line(const char *line, size_t size, void *context);

/* Gives every line of a regular file of sane size to `take` until it returns true. A line that
 * is too long is passed over; so is everything if the file is not what it should be. */
static bool each_line(const char *path, take_line *take, void *context)
{
	AUTO_CLOSE int fd = sys_openat2(AT_FDCWD, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0,
					SF_RESOLVE_NO_MAGICLINKS);
	struct stat stat;
	char buffer[LINE_MAX_SIZE];
	size_t used = 0, total = 0;
	bool is_skipping = false;

	if (fd < 0 || fstat(fd, &stat) || !S_ISREG(stat.st_mode))
		return false;
	while (total < USERS_FILE_MAX) {
		ssize_t size = read(fd, buffer + used, sizeof(buffer) - used);
		size_t filled = used + (size_t)MAX(size, 0), at = 0;
		char *newline;

		while ((newline = memchr(buffer + at, '\n', filled - at)) != NULL) {
			size_t length = (size_t)(newline - buffer) - at;

			if (!is_skipping && take(buffer + at, length, context))
				return true;
			is_skipping = false;
			at += length + 1;
		}
		if (size <= 0)
			return filled > at && !is_skipping &&
			       take(buffer + at, filled - at, context);
		used = filled - at;
		memmove(buffer, buffer + at, used);
		if (used == sizeof(buffer)) {
			used = 0;
			is_skipping = true;
		}
		total += (size_t)size;
	}
	return false;
}

struct lookup {
	const char *user;
	struct identity *identity;
};

static bool take_passwd(const char *line, size_t size, void *context)
{
	struct lookup *lookup = context;

	return passwd_line(line, size, lookup->user, lookup->identity);
}

static bool take_group(const char *line, size_t size, void *context)
{
	group_line(line, size, context);
	return false;
}

int identity_find(const struct text *user, struct identity *identity)
{
	char name[sizeof(identity->name)] = "root";
	struct lookup lookup = { name, identity };
	uint32_t uid;

	memset(identity, 0, offsetof(struct identity, groups));
	identity->group_count = 0;
	if (user->data != NULL && (user->size == 0 || text_copy(user, name, sizeof(name)) < 0))
		return -ENOENT;
	strcpy(identity->home, "/");
	strcpy(identity->shell, "/bin/sh");
	strcpy(identity->name, name);
	bool is_known = each_line("/etc/passwd", take_passwd, &lookup);

	if (!is_known && strcmp(name, "root") == 0) {
		strcpy(identity->home, "/root"); /* root needs no entry to exist */
	} else if (!is_known) {
		if (!id_number(name, strlen(name), &uid))
			return -ENOENT;
		identity->uid = uid;
		identity->gid = uid; /* not 0: nobody has given this user root's group */
	}
	add_group(identity, identity->gid);
	if (is_known)
		each_line("/etc/group", take_group, identity);
	return 0;
}

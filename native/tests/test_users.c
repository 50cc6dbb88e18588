#include "agent/paths.h"
#include "agent/users.h"
#include "tests/tap.h"

#include <string.h>

/* A heap copy without a NUL, so that the sanitizer sees a read past the end. */
static bool passwd(const char *line, const char *user, struct identity *identity)
{
	char *copy = malloc(strlen(line) + 1);

	memset(identity, 0, sizeof(*identity));
	memcpy(copy, line, strlen(line));
	bool found = passwd_line(copy, strlen(line), user, identity);

	free(copy);
	return found;
}

static void group(const char *line, struct identity *identity)
{
	char *copy = malloc(strlen(line) + 1);

	memcpy(copy, line, strlen(line));
	group_line(copy, strlen(line), identity);
	free(copy);
}

static void users(void)
{
	struct identity i;

	CHECK("a user is found by name",
	      passwd("ann:x:1000:100:A:/home/ann:/bin/bash", "ann", &i) && i.uid == 1000 &&
		  i.gid == 100 && strcmp(i.home, "/home/ann") == 0);
	CHECK("a user is found by number",
	      passwd("ann:x:1000:100::/h:/s", "1000", &i) && strcmp(i.name, "ann") == 0);
	CHECK("another user is not", !passwd("anna:x:1000:100::/h:/s", "ann", &i));
	CHECK("a line with too few fields is passed over", !passwd("ann:x:1000:100", "ann", &i));
	CHECK("an empty line is passed over", !passwd("", "ann", &i));
	CHECK("a negative id is passed over", !passwd("ann:x:-1:100::/h:/s", "ann", &i));
	CHECK("an id that means none is passed over",
	      !passwd("ann:x:4294967295:1::/h:/s", "ann", &i));
	CHECK("an id that is too large is passed over",
	      !passwd("ann:x:99999999999:1::/h:/s", "ann", &i));
	CHECK("an empty id is passed over", !passwd("ann:x::1::/h:/s", "ann", &i));
	CHECK("a home that is not absolute becomes the root",
	      passwd("ann:x:1:1::etc:/s", "ann", &i) && strcmp(i.home, "/") == 0);
	char line[600] = "ann:x:1:1::/";

	memset(line + 12, 'h', 400);
	strcpy(line + 412, ":/s");
	CHECK("a home that is too long becomes the root",
	      passwd(line, "ann", &i) && strcmp(i.home, "/") == 0);
	CHECK("no shell becomes /bin/sh",
	      passwd("ann:x:1:1::/h:", "ann", &i) && strcmp(i.shell, "/bin/sh") == 0);
}

static void groups(void)
{
	struct identity i = { .name = "ann" };
	char line[32];

	group("dev:x:20:bob,ann", &i);
	group("dev:x:20:ann", &i);
	group("adm:x:21:anna,joann,an", &i);
	group("odd:x:22:", &i);
	group("odd:x:x:ann", &i);
	group(":::", &i);
	CHECK("a member gets each group once, and no others",
	      i.group_count == 1 && i.groups[0] == 20);
	for (int n = 0; n < 500; n++) {
		snprintf(line, sizeof(line), "g:x:%d:ann", 1000 + n);
		group(line, &i);
	}
	CHECK("the number of groups is limited", i.group_count == GROUPS_MAX);
}

static bool splits(const char *path, const char *directory, const char *name)
{
	char copy[512];
	const char *d, *n;

	strcpy(copy, path);
	int status = path_split(copy, &d, &n);

	if (directory == NULL)
		return status < 0;
	return status == 0 && strcmp(d, directory) == 0 && strcmp(n, name) == 0;
}

static void paths(void)
{
	struct identity i = { .home = "/home/ann" };
	char out[SF_PATH_MAX], deep[SF_PATH_MAX];

	CHECK("a path is split at its last slash", splits("/a/b", "/a", "b"));
	CHECK("slashes at the end do not count", splits("/a/b//", "/a", "b"));
	CHECK("a name in the root is split", splits("/a", "/", "a"));
	CHECK("the root cannot be split", splits("/", NULL, NULL));
	CHECK("a path that ends in a dot is refused", splits("/a/.", NULL, NULL));
	CHECK("a path that ends in two dots is refused", splits("/a/..", NULL, NULL));
	memset(deep, 'n', 300);
	deep[0] = '/';
	deep[300] = '\0';
	CHECK("a name that is too long is refused", splits(deep, NULL, NULL));
	CHECK("a relative path starts at home",
	      path_full(&(struct text){ "x/y", 3 }, &i, out) == 0 &&
		  strcmp(out, "/home/ann/x/y") == 0);
	memset(deep, 'n', sizeof(deep));
	CHECK("a path that is too long with its home is refused",
	      path_full(&(struct text){ deep, SF_PATH_MAX - 5 }, &i, out) == -ENAMETOOLONG);
}

int main(void)
{
	users();
	groups();
	paths();
	return tap_end();
}

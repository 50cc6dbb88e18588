#include "agent/watch.h"
#include "tests/tap.h"

#include <string.h>

static int dropped_sum;

static void note_dropped(struct watch *w, int wd)
{
	(void)w;
	dropped_sum += wd;
}

static struct watch *new_watch(void)
{
	struct watch *w = calloc(1, sizeof(*w));

	w->all = calloc(8, sizeof(*w->all));
	w->room = 8;
	w->count = 1;
	w->all[0].wd = -1;
	return w;
}

static void free_watch(struct watch *w)
{
	for (uint32_t i = 1; i < w->count; i++)
		free(w->all[i].name);
	free(w->all);
	free(w);
}

static void limits(void)
{
	struct watch *w = new_watch();
	char name[256];
	int added = 0;

	memset(name, 'n', sizeof(name) - 1);
	name[255] = '\0';
	while (watched_add(w, 0, name, false) > 0)
		added++;
	CHECK("long names fill a watch before short ones", added == WATCHED_NAMES_MAX / 256);
	free_watch(w);
	w = new_watch();
	for (added = 1; watched_add(w, (uint32_t)added - 1, "d", false) > 0; added++)
		;
	CHECK("a watch covers a limited number of directories", added == WATCHED_MAX);
	char small[64];

	CHECK("a path that is too long is not given",
	      !watched_path(w, WATCHED_MAX - 1, "f", small, sizeof(small)));
	free_watch(w);
}

int main(void)
{
	struct watch *w = new_watch();
	char path[64];
	int a = watched_add(w, 0, "a", false), b = watched_add(w, (uint32_t)a, "b", false);
	int c = watched_add(w, 0, "c", false);

	watched_set_wd(w, 0, 1);
	watched_set_wd(w, (uint32_t)a, 2);
	watched_set_wd(w, (uint32_t)b, 4 + WATCHED_BUCKETS); /* the bucket of another */
	watched_set_wd(w, (uint32_t)c, 4);
	CHECK("a path is put together",
	      watched_path(w, (uint32_t)b, "f", path, sizeof(path)) && strcmp(path, "a/b/f") == 0);
	CHECK("the watched path itself is empty",
	      watched_path(w, 0, "", path, sizeof(path)) && path[0] == '\0');
	CHECK("a directory's own path has no name after it",
	      watched_path(w, (uint32_t)b, "", path, sizeof(path)) && strcmp(path, "a/b") == 0);
	CHECK("a directory is found by its wd", watched_find(w, 4) == &w->all[c]);
	CHECK("a child is found by name", watched_child(w, (uint32_t)a, "b") == b);
	watched_drop(w, (uint32_t)a, note_dropped);
	CHECK("dropping takes all below along", dropped_sum == 2 + 4 + WATCHED_BUCKETS);
	CHECK("and leaves the rest", watched_find(w, 4) != NULL && watched_child(w, 0, "a") < 0);
	CHECK("its place is used again", watched_add(w, 0, "d", false) == a);
	watched_drop(w, 0, note_dropped);
	CHECK("dropping the top drops everything",
	      watched_find(w, 4) == NULL && w->name_bytes == 0);
	free_watch(w);
	limits();
	return tap_end();
}

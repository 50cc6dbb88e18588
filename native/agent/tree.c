#include "agent/watch.h"

#include <string.h>

static bool is_used(const struct watch *w, uint32_t number)
{
	return number == 0 || w->all[number].name != NULL;
}

static uint32_t *bucket(struct watch *w, int wd)
{
	return &w->buckets[(unsigned int)wd % WATCHED_BUCKETS];
}

struct watched *watched_find(struct watch *w, int wd)
{
	for (uint32_t at = *bucket(w, wd); at != 0; at = w->all[at - 1].next)
		if (w->all[at - 1].wd == wd)
			return &w->all[at - 1];
	return NULL;
}

static int claim(struct watch *w)
{
	for (uint32_t i = 1; i < w->count; i++)
		if (w->all[i].name == NULL)
			return (int)i;
	if (w->count == WATCHED_MAX)
		return -ENOSPC;
	if (w->count == w->room) {
		uint32_t room = MAX(w->room * 2, 8u);
		struct watched *all = realloc(w->all, room * sizeof(*all));

		if (all == NULL)
			return -ENOSPC;
		w->all = all;
		w->room = room;
	}
	return (int)w->count++;
}

int watched_add(struct watch *w, uint32_t parent, const char *name, bool is_new)
{
	size_t size = strlen(name) + 1;

	if (w->name_bytes + size > WATCHED_NAMES_MAX)
		return -ENOSPC;
	char *copy = strdup(name);
	int number = copy == NULL ? -ENOSPC : claim(w);

	if (number < 0) {
		free(copy);
		return number;
	}
	w->name_bytes += size;
	w->all[number] =
	    (struct watched){ .wd = -1, .parent = parent, .name = copy, .is_new = is_new };
	return number;
}

void watched_set_wd(struct watch *w, uint32_t number, int wd)
{
	struct watched *one = &w->all[number];
	uint32_t *head = bucket(w, wd);

	one->wd = wd;
	one->next = *head;
	*head = number + 1;
}

static void unlink_wd(struct watch *w, uint32_t number)
{
	uint32_t *at = bucket(w, w->all[number].wd);

	while (*at != 0 && *at != number + 1)
		at = &w->all[*at - 1].next;
	if (*at != 0)
		*at = w->all[number].next;
	w->all[number].wd = -1;
}

int watched_child(const struct watch *w, uint32_t parent, const char *name)
{
	for (uint32_t i = 1; i < w->count; i++)
		if (w->all[i].name != NULL && w->all[i].parent == parent &&
		    strcmp(w->all[i].name, name) == 0)
			return (int)i;
	return -1;
}

static bool is_below(const struct watch *w, uint32_t number, uint32_t top)
{
	for (uint32_t steps = 0; number != 0 && steps < w->count; steps++) {
		if (number == top)
			return true;
		number = w->all[number].parent;
	}
	return number == top;
}

void watched_drop(struct watch *w, uint32_t number, void (*dropped)(struct watch *, int wd))
{
	/* First all that lies below becomes a direct child, so that the order does not matter. */
	for (uint32_t i = w->count; i-- > 1;) {
		if (i == number || w->all[i].name == NULL || !is_below(w, i, number))
			continue;
		w->all[i].parent = number;
	}
	for (uint32_t i = w->count; i-- > 0;) {
		bool is_gone =
		    i == number || (i > 0 && is_used(w, i) && w->all[i].parent == number);

		if (!is_gone || !is_used(w, i))
			continue;
		if (w->all[i].wd >= 0) {
			int wd = w->all[i].wd;

			unlink_wd(w, i);
			dropped(w, wd);
		}
		if (i == 0)
			continue;
		w->name_bytes -= strlen(w->all[i].name) + 1;
		free(w->all[i].name);
		w->all[i].name = NULL;
	}
}

bool watched_path(const struct watch *w, uint32_t number, const char *name, char *out, size_t room)
{
	size_t at = room - 1, size = strlen(name);

	out[at] = '\0';
	for (uint32_t steps = 0; steps <= w->count; steps++) {
		if (size > 0) {
			bool has_more = out[at] != '\0';

			if (at < size + has_more)
				return false;
			if (has_more)
				out[--at] = '/';
			at -= size;
			memcpy(out + at, name, size);
		}
		if (number == 0) {
			memmove(out, out + at, room - at);
			return true;
		}
		if (!is_used(w, number))
			return false;
		name = w->all[number].name;
		size = strlen(name);
		number = w->all[number].parent;
	}
	return false;
}

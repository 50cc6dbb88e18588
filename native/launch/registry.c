/* Finding sandboxes by id: a hash table inside the launcher's own memory region. */
#include "launch/launcher.h"

#include <string.h>

static uint32_t *bucket(struct launcher *l, const char *id)
{
	uint32_t hash = 2166136261u;

	for (; *id != '\0'; id++)
		hash = (hash ^ (uint8_t)*id) * 16777619u;
	return &l->buckets[hash % SANDBOX_BUCKETS];
}

struct sandbox *registry_find(struct launcher *l, const char *id)
{
	for (uint32_t at = *bucket(l, id); at != 0; at = l->sandboxes[at - 1].next)
		if (strcmp(l->sandboxes[at - 1].id, id) == 0)
			return &l->sandboxes[at - 1];
	return NULL;
}

struct sandbox *registry_add(struct launcher *l, const char *id)
{
	uint32_t at = l->first_free;

	if (at != 0)
		l->first_free = l->sandboxes[at - 1].next;
	else if (l->sandbox_top < SANDBOXES_MAX)
		at = ++l->sandbox_top;
	else
		return NULL;
	struct sandbox *sandbox = &l->sandboxes[at - 1];
	uint32_t *head = bucket(l, id);

	memset(sandbox, 0, sizeof(*sandbox));
	strcpy(sandbox->id, id);
	sandbox->channel = -1;
	sandbox->slot = -1;
	sandbox->child.fd = -1;
	sandbox->progress.fd = -1;
	sandbox->child.owner = sandbox->progress.owner = l;
	sandbox->next = *head;
	*head = at;
	l->sandbox_count++;
	return sandbox;
}

void registry_remove(struct launcher *l, struct sandbox *sandbox)
{
	uint32_t self = (uint32_t)(sandbox - l->sandboxes) + 1;
	uint32_t *at = bucket(l, sandbox->id);

	while (*at != self)
		at = &l->sandboxes[*at - 1].next;
	*at = sandbox->next;
	sandbox->state = SANDBOX_FREE;
	sandbox->next = l->first_free;
	l->first_free = self;
	l->sandbox_count--;
}

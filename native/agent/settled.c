/*
 * A node that lost its link may send a request again without knowing whether the first one was
 * heard. Changes to files that succeeded are remembered for a while, the latest ones only: a
 * node repeats at once or never.
 */
#include "agent/agent.h"

bool settled_has(const struct agent *a, uint32_t id, uint16_t type)
{
	for (unsigned int i = 0; i < SETTLED_MAX; i++)
		if (a->settled[i].type == type && a->settled[i].id == id)
			return true;
	return false;
}

void settled_add(struct agent *a, uint32_t id, uint16_t type)
{
	a->settled[a->settled_next] = (struct settled){ id, type };
	a->settled_next = (a->settled_next + 1) % SETTLED_MAX;
}

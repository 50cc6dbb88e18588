/* Reading /etc/passwd and /etc/group, which belong to the sandbox and may say anything. */
#ifndef SF_USERS_H
#define SF_USERS_H

#include "agent/agent.h"

/* Looks at one line (no newline). True if it is about this user, and fills the identity in. */
bool passwd_line(const char *line, size_t size, const char *user, struct identity *identity);

/* Adds the group of this line if it lists the user as a member. */
void group_line(const char *line, size_t size, struct identity *identity);

/* A decimal number that fits an id, of all the characters. */
bool id_number(const char *text, size_t size, uint32_t *id);

#endif

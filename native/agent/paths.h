/*
 * Paths inside the sandbox. They are resolved by the kernel below the agent's own root, which is
 * the sandbox's; no link leads further. Links of /proc that lead to open files are refused, for
 * they would be the agent's own.
 */
#ifndef SF_PATHS_H
#define SF_PATHS_H

#include "agent/agent.h"

#include <sys/stat.h>

/* Makes a path absolute: relative ones start at the user's home. `out` has SF_PATH_MAX bytes. */
int path_full(const struct text *path, const struct identity *identity, char *out);

/* Cuts an absolute path in two, in place: the directory, and the name in it, which is never
 * empty, "." or "..". Returns -EINVAL for the root and for paths that end in such a name. */
int path_split(char *path, const char **directory, const char **name);

/* open with the rules above; O_CLOEXEC and O_NONBLOCK are added. A negative errno on failure. */
int path_open(int dir, const char *path, int flags);

/* A directory for *at calls, and the last name. A negative errno on failure. */
int path_parent(char *path, const char **name);

/* mkdir of every missing directory of the path, the last one included. Takes the path apart. */
int path_make(char *path, mode_t mode);

/* What is written into a RESULT about one file. */
void entry_build(struct builder *fields, const char *name, const struct stat *stat,
		 const char *target, size_t target_size);

/* The same for a name in an open directory, not following a link. */
int entry_at(struct builder *fields, int dir, const char *name);

#endif

/* What the modules that serve requests for files share. */
#ifndef SF_FILES_H
#define SF_FILES_H

/* A file being written has such a name until it is whole. */
#define WRITE_PREFIX ".sandfleet-"

#include "agent/paths.h"

/* The beginning of every such request: the user is looked up, the path made absolute and the
 * user's rights taken on. On failure the request has been answered. Ends with act_as_root. */
int files_begin(struct agent *a, uint32_t id, const struct request *request,
		struct identity *identity, char *path);

/* Answers with a sentence about the path. */
void files_refuse(struct agent *a, uint32_t id, const char *verb, const char *path, int error);

#endif

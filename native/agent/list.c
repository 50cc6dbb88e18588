/* LIST: what a directory holds, a frame at a step. */
#include "agent/dirents.h"
#include "agent/files.h"

#include <fcntl.h>
#include <string.h>

struct listing {
	struct job job;
	struct identity identity;
	struct dirents dirents;
};

/* Room that any entry may need: a name and a link target of the greatest length. */
enum { ENTRY_ROOM = sizeof(struct sf_field) + sizeof(struct sf_entry) + 256 + SF_PATH_MAX };

static void listing_end(struct job *job)
{
	struct listing *l = CONTAINER(job, struct listing, job);

	close(l->dirents.fd);
	free(l);
}

static int listing_step(struct agent *a, struct job *job)
{
	struct listing *l = CONTAINER(job, struct listing, job);
	struct builder fields = { .data = a->scratch, .room = SF_FRAME_DATA_MAX };
	struct dirent_entry entry;
	int status = act_as(a, &l->identity);

	a->packet_is_large = true;
	while (status >= 0 && fields.room - fields.used >= ENTRY_ROOM) {
		status = dirents_next(&l->dirents, &entry);
		if (status <= 0)
			break;
		entry_at(&fields, l->dirents.fd, entry.name); /* gone meanwhile: not listed */
	}
	act_as_root(a);
	if (status < 0)
		reply_error(a, job->id, -status, "cannot list: %s", strerror(-status));
	else
		reply_result(a, job->id, status > 0 ? SF_FLAG_MORE : 0, &fields);
	return status > 0;
}

void serve_list(struct agent *a, const struct sf_frame *head, const struct request *request)
{
	char path[SF_PATH_MAX];

	if (job_is_known(a, head->id))
		return;
	struct listing *l = calloc(1, sizeof(*l));

	if (l == NULL) {
		reply_error(a, head->id, ENOMEM, "cannot list: %s", strerror(ENOMEM));
		return;
	}
	if (files_begin(a, head->id, request, &l->identity, path) < 0) {
		free(l);
		return;
	}
	l->dirents.fd = path_open(AT_FDCWD, path, O_RDONLY | O_DIRECTORY);
	act_as_root(a);
	if (l->dirents.fd < 0) {
		files_refuse(a, head->id, "list", path, -l->dirents.fd);
		free(l);
		return;
	}
	l->job = (struct job){
		.id = head->id, .type = SF_LIST, .step = listing_step, .end = listing_end
	};
	job_add(a, &l->job);
}

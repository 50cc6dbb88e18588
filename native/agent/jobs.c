/* Long work on files in small steps, so that no directory and no tree can hold up the agent. */
#include "agent/agent.h"

int job_add(struct agent *a, struct job *job)
{
	struct job **at = &a->jobs;

	if (a->job_count >= JOBS_MAX) {
		reply_error(a, job->id, EAGAIN, "%d requests for files are being served", JOBS_MAX);
		job->end(job);
		return -EAGAIN;
	}
	while (*at != NULL)
		at = &(*at)->next;
	job->next = NULL;
	*at = job;
	a->job_count++;
	return 0;
}

bool jobs_can_go_on(const struct agent *a)
{
	return a->jobs != NULL && replies_have_room(a);
}

/* One step of the job that has waited longest. */
void jobs_step(struct agent *a)
{
	struct job *job = a->jobs;

	if (!jobs_can_go_on(a))
		return;
	a->jobs = job->next;
	a->job_count--;
	if (job->step(a, job) > 0)
		job_add(a, job);
	else
		job->end(job);
}

bool job_is_known(const struct agent *a, uint32_t id)
{
	for (const struct job *job = a->jobs; job != NULL; job = job->next)
		if (job->id == id)
			return true;
	return false;
}

/* A new node service will ask again for what it still wants to read. */
void jobs_drop_readers(struct agent *a)
{
	struct job **at = &a->jobs;

	while (*at != NULL) {
		struct job *job = *at;

		if (job->type == SF_REMOVE || job->type == SF_WATCH) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		a->job_count--;
		job->end(job);
	}
}

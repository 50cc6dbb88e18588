/* Time limits of commands: one timer, there only while some command has a limit.
 *
 * A sandbox that is paused is frozen with its agent, and the clock runs on. So the node says
 * before that limits stand still, and afterwards that they count: the pause is added to each. */
#include "agent/process.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

static uint64_t nearest(const struct agent *a)
{
	uint64_t nearest_ms = 0;

	if (a->held_ms != 0)
		return 0;
	for (unsigned int i = 0; i < PROCESS_BUCKETS; i++)
		for (struct process *p = a->living[i]; p != NULL; p = p->next_living)
			if (p->deadline_ms != 0 && (nearest_ms == 0 || p->deadline_ms < nearest_ms))
				nearest_ms = p->deadline_ms;
	return nearest_ms;
}

void deadlines_set(struct agent *a)
{
	uint64_t due_ms = nearest(a);
	struct itimerspec when = { .it_value = { .tv_sec = (time_t)(due_ms / 1000),
						 .tv_nsec = (long)(due_ms % 1000) * 1000000 } };

	if (due_ms == a->armed_ms)
		return;
	a->armed_ms = due_ms;
	if (due_ms == 0) {
		source_close(a->epoll, &a->timer);
		return;
	}
	if (a->timer.fd < 0)
		source_add(a->epoll, &a->timer,
			   timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), EPOLLIN);
	timerfd_settime(a->timer.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void deadlines_hold(struct agent *a)
{
	if (a->held_ms == 0)
		a->held_ms = agent_now_ms();
	deadlines_set(a);
}

void deadlines_go(struct agent *a)
{
	if (a->held_ms == 0)
		return;
	uint64_t held_for = agent_now_ms() - a->held_ms;

	a->held_ms = 0;
	for (unsigned int i = 0; i < PROCESS_BUCKETS; i++)
		for (struct process *p = a->living[i]; p != NULL; p = p->next_living)
			if (p->deadline_ms != 0)
				p->deadline_ms += held_for;
	deadlines_set(a);
}

void on_deadline(struct source *source, uint32_t events)
{
	struct agent *a = source->owner;
	uint64_t expirations, now = agent_now_ms();

	(void)events;
	if (read(source->fd, &expirations, sizeof(expirations)) < 0)
		return;
	for (unsigned int i = 0; i < PROCESS_BUCKETS; i++) {
		for (struct process *p = a->living[i]; p != NULL; p = p->next_living) {
			if (p->deadline_ms == 0 || p->deadline_ms > now)
				continue;
			p->deadline_ms = 0;
			p->has_timed_out = true;
			group_signal(a, p, SIGKILL);
		}
	}
	a->armed_ms = 0;
	deadlines_set(a);
}

/* Test programs print TAP; a check that fails says where it stands. */
#ifndef SF_TAP_H
#define SF_TAP_H

#include <stdbool.h>
#include <stdio.h>

static int tap_count, tap_failed;

/* CHECK("a sentence about the subject", condition) */
#define CHECK(sentence, condition) tap_check(sentence, condition, __FILE__, __LINE__)

static inline bool tap_check(const char *sentence, bool is_true, const char *file, int line)
{
	tap_count++;
	tap_failed += !is_true;
	printf("%s %d - %s\n", is_true ? "ok" : "not ok", tap_count, sentence);
	if (!is_true)
		printf("# at %s:%d\n", file, line);
	return is_true;
}

static inline int tap_end(void)
{
	printf("1..%d\n", tap_count);
	return tap_failed > 0;
}

#endif

#include "common/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void die(const char *format, ...)
{
	int error = errno;
	va_list list;

	fputs("sandfleet-native: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(1);
}

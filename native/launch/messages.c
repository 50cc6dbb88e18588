#include "launch/messages.h"

#include "common/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool message_is_sound(const struct message *message)
{
	if (message->size == 0 || message->data[message->size - 1] != '\0')
		return false;
	for (size_t at = 0; at < message->size; at += strlen(message->data + at) + 1) {
		const char *equals = strchr(message->data + at, '=');

		if (equals == NULL || equals == message->data + at)
			return false;
	}
	return true;
}

const char *message_next(const struct message *message, const char *key, const char *previous)
{
	const char *at = message->data, *end = message->data + message->size;
	size_t length = strlen(key);

	if (previous != NULL)
		at = previous + strlen(previous) + 1;
	for (; at < end; at += strlen(at) + 1)
		if (strncmp(at, key, length) == 0 && at[length] == '=')
			return at + length + 1;
	return NULL;
}

const char *message_get(const struct message *message, const char *key)
{
	return message_next(message, key, NULL);
}

int message_number(const struct message *message, const char *key, unsigned long low,
		   unsigned long high, unsigned long *value)
{
	const char *text = message_get(message, key);
	char *end;

	if (text == NULL || *text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	*value = strtoul(text, &end, 10);
	return errno == 0 && *end == '\0' && *value >= low && *value <= high ? 0 : -EINVAL;
}

void message_add(struct message *message, const char *key, const char *format, ...)
{
	size_t left = message->room - message->size;
	char *at = message->data + message->size;
	int head = snprintf(at, left, "%s=", key);
	va_list list;

	if (head < 0 || (size_t)head >= left)
		return;
	va_start(list, format);
	int body = vsnprintf(at + head, left - (size_t)head, format, list);

	va_end(list);
	if (body < 0 || (size_t)(head + body) >= left)
		return;
	message->size += (size_t)(head + body) + 1;
}

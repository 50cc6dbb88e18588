#include "common/request.h"

#include <errno.h>
#include <string.h>

static int take_text(const struct field *field, struct text *text)
{
	if (memchr(field->data, 0, field->size) != NULL)
		return -EINVAL;
	if (field->size >= SF_PATH_MAX)
		return -ENAMETOOLONG;
	text->data = (const char *)field->data;
	text->size = field->size;
	return 0;
}

static int take_string(const struct field *field, struct request *request, bool is_env)
{
	if (memchr(field->data, 0, field->size) != NULL)
		return -EINVAL;
	if (is_env && (field->size == 0 || memchr(field->data, '=', field->size) == NULL))
		return -EINVAL;
	if (is_env)
		request->envs++;
	else
		request->args++;
	request->text_bytes += field->size + 1;
	return 0;
}

static int take_number(const struct field *field, struct request *request)
{
	switch (field->tag) {
	case SF_TAG_VERSION:
		return field_u32(field, &request->version);
	case SF_TAG_ROWS:
		return field_u32(field, &request->rows);
	case SF_TAG_COLS:
		return field_u32(field, &request->cols);
	case SF_TAG_SIGNAL:
		return field_u32(field, &request->signal);
	case SF_TAG_MODE:
		request->has_mode = true;
		return field_u32(field, &request->mode);
	case SF_TAG_TIMEOUT_MS:
		return field_u64(field, &request->timeout_ms);
	case SF_TAG_LIMIT:
		request->has_limit = true;
		return field_u64(field, &request->limit);
	case SF_TAG_LENGTH:
		request->has_length = true;
		return field_u64(field, &request->length);
	default:
		return 0;
	}
}

static int take(const struct field *field, struct request *request)
{
	switch (field->tag) {
	case SF_TAG_ARG:
		return take_string(field, request, false);
	case SF_TAG_ENV:
		return take_string(field, request, true);
	case SF_TAG_PATH:
		return take_text(field, &request->path);
	case SF_TAG_TARGET:
		return take_text(field, &request->target);
	case SF_TAG_CWD:
		return take_text(field, &request->cwd);
	case SF_TAG_USER:
		return take_text(field, &request->user);
	default:
		return take_number(field, request);
	}
}

int request_parse(const void *payload, size_t size, struct request *request)
{
	struct fields fields = { payload, (const uint8_t *)payload + size };
	struct field field;
	int status;

	memset(request, 0, sizeof(*request));
	while ((status = fields_next(&fields, &field)) > 0) {
		status = take(&field, request);
		if (status < 0)
			return status;
	}
	return status;
}

size_t request_texts(const void *payload, size_t size, uint16_t tag, char **slots, char *space)
{
	struct fields fields = { payload, (const uint8_t *)payload + size };
	struct field field;
	size_t used = 0;

	while (fields_next(&fields, &field) > 0) {
		if (field.tag != tag)
			continue;
		*slots++ = space + used;
		memcpy(space + used, field.data, field.size);
		space[used + field.size] = '\0';
		used += field.size + 1;
	}
	*slots = NULL;
	return used;
}

int text_copy(const struct text *text, char *out, size_t room)
{
	if (text->size >= room)
		return -ENAMETOOLONG;
	if (text->size > 0)
		memcpy(out, text->data, text->size);
	out[text->size] = '\0';
	return 0;
}

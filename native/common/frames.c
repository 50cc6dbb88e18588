#include "common/frames.h"

#include <errno.h>
#include <string.h>

_Static_assert(sizeof(struct sf_frame) == 24, "the frame header has no padding");
_Static_assert(sizeof(struct sf_field) == 8, "the field header has no padding");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little-endian, as we are");

int frame_open(const void *packet, size_t size, struct sf_frame *head)
{
	if (size < sizeof(*head))
		return -EBADMSG;
	memcpy(head, packet, sizeof(*head));
	if (head->reserved != 0 || head->size > SF_FRAME_DATA_MAX)
		return -EBADMSG;
	return head->size == size - sizeof(*head) ? 0 : -EBADMSG;
}

int fields_next(struct fields *fields, struct field *field)
{
	struct sf_field head;
	size_t left = (size_t)(fields->end - fields->at);

	if (left == 0)
		return 0;
	if (left < sizeof(head))
		return -EBADMSG;
	memcpy(&head, fields->at, sizeof(head));
	if (head.reserved != 0 || head.size > left - sizeof(head))
		return -EBADMSG;
	field->tag = head.tag;
	field->size = head.size;
	field->data = fields->at + sizeof(head);
	fields->at = field->data + head.size;
	return 1;
}

int field_u32(const struct field *field, uint32_t *value)
{
	if (field->size != sizeof(*value))
		return -EBADMSG;
	memcpy(value, field->data, sizeof(*value));
	return 0;
}

int field_u64(const struct field *field, uint64_t *value)
{
	if (field->size != sizeof(*value))
		return -EBADMSG;
	memcpy(value, field->data, sizeof(*value));
	return 0;
}

void build_pieces(struct builder *builder, uint16_t tag, const struct piece *pieces, size_t count)
{
	struct sf_field head = { .tag = tag };
	size_t size = 0;

	for (size_t i = 0; i < count; i++)
		size += pieces[i].size;
	if (builder->full || builder->room - builder->used < sizeof(head) + size) {
		builder->full = true;
		return;
	}
	head.size = (uint32_t)size;
	memcpy(builder->data + builder->used, &head, sizeof(head));
	builder->used += sizeof(head);
	for (size_t i = 0; i < count; i++) {
		if (pieces[i].size > 0)
			memcpy(builder->data + builder->used, pieces[i].data, pieces[i].size);
		builder->used += pieces[i].size;
	}
}

void build_bytes(struct builder *builder, uint16_t tag, const void *data, size_t size)
{
	struct piece piece = { data, size };

	build_pieces(builder, tag, &piece, 1);
}

void build_u32(struct builder *builder, uint16_t tag, uint32_t value)
{
	build_bytes(builder, tag, &value, sizeof(value));
}

void build_u64(struct builder *builder, uint16_t tag, uint64_t value)
{
	build_bytes(builder, tag, &value, sizeof(value));
}

#include "agent/dirents.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct kernel_dirent {
	uint64_t inode;
	int64_t offset;
	unsigned short size;
	unsigned char type;
	char name[];
};

int dirents_next(struct dirents *dirents, struct dirent_entry *entry)
{
	for (;;) {
		if (dirents->at >= dirents->filled) {
			long size = syscall(SYS_getdents64, dirents->fd, dirents->buffer,
					    sizeof(dirents->buffer));

			if (size <= 0)
				return size < 0 ? -errno : 0;
			dirents->filled = (size_t)size;
			dirents->at = 0;
		}
		const struct kernel_dirent *found =
		    (const struct kernel_dirent *)(dirents->buffer + dirents->at);

		dirents->at += found->size;
		entry->name = found->name;
		entry->type = found->type;
		if (strcmp(found->name, ".") != 0 && strcmp(found->name, "..") != 0)
			return 1;
	}
}

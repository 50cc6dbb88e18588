/*
 * Runs inside a sandbox and tries to take more disk than it may, in ways a shell has no word for.
 * Prints what came of it, one "name result" a line; the result is 0 or an errno.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#define STEP 65536
#define BTRFS(direction, number, size) _IOC(direction, 0x94, number, size)

static volatile size_t touched;

static void on_bus(int number)
{
	(void)number;
	dprintf(1, "touched %zu\n", touched);
	_exit(0);
}

/* Writes until it fails or `bytes` are written. */
static void fill(int fd, size_t bytes)
{
	char *buffer = aligned_alloc(4096, STEP);
	size_t written = 0;
	ssize_t size = 0;

	memset(buffer, 'x', STEP);
	while (written < bytes && (size = write(fd, buffer, STEP)) > 0)
		written += (size_t)size;
	printf("written %zu\nerror %d\n", written, size < 0 ? errno : 0);
}

static int map(const char *path, size_t bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	if (fd < 0 || ftruncate(fd, (off_t)bytes))
		return 1;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return 1;
	signal(SIGBUS, on_bus);
	for (; touched < bytes; touched += 4096)
		memory[touched] = 'x';
	printf("touched %zu\n", touched);
	return 0;
}

static void tell(const char *name, int result)
{
	printf("%s %d\n", name, result < 0 ? errno : 0);
}

/* Every request to btrfs that makes, removes, shares, bounds or moves something. */
static int requests(const char *directory)
{
	static const struct {
		const char *name;
		unsigned long request;
	} all[] = {
		{ "subvol_create", BTRFS(_IOC_WRITE, 14, 4096) },
		{ "subvol_create_v2", BTRFS(_IOC_WRITE, 24, 4096) },
		{ "snap_create", BTRFS(_IOC_WRITE, 1, 4096) },
		{ "snap_create_v2", BTRFS(_IOC_WRITE, 23, 4096) },
		{ "snap_destroy", BTRFS(_IOC_WRITE, 15, 4096) },
		{ "default_subvol", BTRFS(_IOC_WRITE, 19, 8) },
		{ "resize", BTRFS(_IOC_WRITE, 3, 4096) },
		{ "defrag", BTRFS(_IOC_WRITE, 2, 4096) },
		{ "defrag_range", BTRFS(_IOC_WRITE, 16, 48) },
		{ "quota_ctl", BTRFS(_IOC_READ | _IOC_WRITE, 40, 16) },
		{ "qgroup_create", BTRFS(_IOC_WRITE, 42, 16) },
		{ "qgroup_limit", BTRFS(_IOC_READ, 43, 48) },
		{ "qgroup_assign", BTRFS(_IOC_WRITE, 41, 24) },
		{ "tree_search", BTRFS(_IOC_READ | _IOC_WRITE, 17, 4096) },
		{ "ino_lookup", BTRFS(_IOC_READ | _IOC_WRITE, 18, 4096) },
		{ "subvol_setflags", BTRFS(_IOC_WRITE, 26, 8) },
		{ "set_received", BTRFS(_IOC_READ | _IOC_WRITE, 37, 200) },
		{ "balance", BTRFS(_IOC_READ | _IOC_WRITE, 32, 1024) },
		{ "scrub", BTRFS(_IOC_READ | _IOC_WRITE, 27, 1024) },
		{ "add_device", BTRFS(_IOC_WRITE, 10, 4096) },
		{ "remove_device", BTRFS(_IOC_WRITE, 11, 4096) },
	};
	static uint64_t argument[1024];
	char path[256];
	int fd = open(directory, O_RDONLY | O_DIRECTORY);

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		memset(argument, 0, sizeof(argument));
		strcpy((char *)&argument[1], "made");
		tell(all[i].name, ioctl(fd, all[i].request, argument));
	}
	snprintf(path, sizeof(path), "%s/from", directory);
	int from = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	fill(from, STEP);
	snprintf(path, sizeof(path), "%s/to", directory);
	int to = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);

	tell("clone", ioctl(to, FICLONE, from));
	unsigned int flags = FS_IMMUTABLE_FL | FS_COMPR_FL;

	tell("set_flags", ioctl(to, FS_IOC_SETFLAGS, &flags));
	tell("compress", setxattr(path, "btrfs.compression", "zlib", 4, 0));
	return 0;
}

/* What programs expect of any file system. */
static int features(const char *directory)
{
	/* struct vfs_cap_data, revision 2: cap_net_raw permitted and effective */
	static const unsigned char capability[20] = { 1, 0, 0, 2, 0, 0x20 };
	int dir = open(directory, O_RDONLY | O_DIRECTORY);
	int nameless = open(directory, O_TMPFILE | O_RDWR, 0644);
	char path[64];

	tell("tmpfile", nameless);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", nameless);
	tell("named_later", linkat(AT_FDCWD, path, dir, "named", AT_SYMLINK_FOLLOW));
	tell("link", linkat(dir, "named", dir, "linked", 0));
	close(openat(dir, "other", O_CREAT | O_WRONLY, 0644));
	tell("exchange", syscall(SYS_renameat2, dir, "named", dir, "other", RENAME_EXCHANGE));
	tell("no_replace", syscall(SYS_renameat2, dir, "other", dir, "third", RENAME_NOREPLACE));
	tell("user_xattr", fsetxattr(nameless, "user.note", "x", 1, 0));
	tell("capability", fsetxattr(nameless, "security.capability", capability, 20, 0));
	tell("punch", fallocate(nameless, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	tell("fsync", fsync(nameless));
	tell("fifo", mkfifoat(dir, "fifo", 0644));
	return 0;
}

int main(int argc, char **argv)
{
	size_t bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "map") == 0)
		return map(argv[2], bytes);
	if (strcmp(argv[1], "features") == 0)
		return features(argv[2]);
	if (strcmp(argv[1], "requests") == 0)
		return requests(argv[2]);
	int direct = strcmp(argv[1], "direct") == 0 ? O_DIRECT : 0;
	int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | direct, 0644);

	if (fd < 0)
		return 1;
	if (strcmp(argv[1], "unlinked") == 0)
		unlink(argv[2]);
	if (strcmp(argv[1], "allocate") == 0)
		tell("allocated", fallocate(fd, 0, 0, (off_t)bytes));
	else
		fill(fd, bytes);
	fflush(stdout);
	if (argc > 4) /* keeps it open */
		pause();
	return 0;
}

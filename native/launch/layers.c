/*
 * Read-only layers, mounted only in the launcher's mount namespace at layers/<index>. A sandbox
 * gets its own clone of the mount, so a layer that is dropped goes on existing for it; the count
 * of users is there to refuse dropping by mistake.
 */
#include "launch/launcher.h"

#include "common/sys.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>

static bool is_digest(const char *text)
{
	size_t length =
	    strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:._-");

	return length > 0 && length < DIGEST_SIZE && text[length] == '\0';
}

int layer_find(const struct launcher *l, const char *digest)
{
	for (unsigned int i = 0; i < l->layer_top; i++)
		if (l->layers[i].digest[0] != '\0' && strcmp(l->layers[i].digest, digest) == 0)
			return (int)i;
	return -1;
}

/* Gives back the descriptor of a detached, read-only erofs mount; `device` may hold what its files
 * hold, or be NULL. */
static int erofs_mount(const char *source, const char *device)
{
	AUTO_CLOSE int fs = sys_fsopen("erofs");

	if (fs < 0)
		return -errno;
	if (sys_fsconfig(fs, SF_FSCONFIG_SET_STRING, "source", source) ||
	    (device && sys_fsconfig(fs, SF_FSCONFIG_SET_STRING, "device", device)) ||
	    sys_fsconfig(fs, SF_FSCONFIG_SET_FLAG, "ro", NULL) ||
	    sys_fsconfig(fs, SF_FSCONFIG_CMD_CREATE, NULL, NULL))
		return -errno;
	int mount = sys_fsmount(fs, SF_MOUNT_ATTR_RDONLY | SF_MOUNT_ATTR_NODEV);

	return mount < 0 ? -errno : mount;
}

static int loop_open(const char *image, char *path, size_t room)
{
	AUTO_CLOSE int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	AUTO_CLOSE int file = open(image, O_RDONLY | O_CLOEXEC);

	if (control < 0 || file < 0)
		return -errno;
	for (int attempt = 0; attempt < 64; attempt++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		if (number < 0)
			return -errno;
		snprintf(path, room, "/dev/loop%d", number);
		AUTO_CLOSE int loop = open(path, O_RDONLY | O_CLOEXEC);

		if (loop < 0)
			return -errno;
		struct loop_config config = {
			.fd = (uint32_t)file,
			.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR,
		};
		if (ioctl(loop, LOOP_CONFIGURE, &config) == 0) {
			int result = loop;

			loop = -1;
			return result;
		}
		if (errno != EBUSY) /* somebody else took this one first */
			return -errno;
	}
	return -EBUSY;
}

static int erofs_mount_by_loop(const char *image, const char *device)
{
	char path[32], device_path[32];
	/* Held until the mount holds them, or autoclear would end them at once. */
	AUTO_CLOSE int loop = loop_open(image, path, sizeof(path));

	if (loop < 0)
		return loop;
	if (device == NULL)
		return erofs_mount(path, NULL);
	AUTO_CLOSE int second = loop_open(device, device_path, sizeof(device_path));

	return second < 0 ? second : erofs_mount(path, device_path);
}

static int open_layer(const char *fs, const char *path, const char *device)
{
	if (strcmp(fs, "dir") == 0) {
		int tree = sys_open_tree(AT_FDCWD, path, SF_OPEN_TREE_CLONE);

		if (tree < 0)
			return -errno;
		struct sf_mount_attr attr = { .attr_set =
						  SF_MOUNT_ATTR_RDONLY | SF_MOUNT_ATTR_NODEV };

		if (sys_mount_setattr(tree, "", SF_AT_EMPTY_PATH, &attr) == 0)
			return tree;
		int error = -errno;

		close(tree);
		return error;
	}
	int mount = erofs_mount(path, device);

	/* Before 6.12, erofs wants a block device. */
	return mount == -ENOTBLK || mount == -EINVAL ? erofs_mount_by_loop(path, device) : mount;
}

static int claim(struct launcher *l)
{
	for (unsigned int i = 0; i < l->layer_top; i++)
		if (l->layers[i].digest[0] == '\0')
			return (int)i;
	return l->layer_top < LAYERS_MAX ? (int)l->layer_top++ : -ENOSPC;
}

int layer_add(struct launcher *l, const struct message *message, struct failure *failure)
{
	const char *digest = message_get(message, "digest"), *path = message_get(message, "path");
	const char *fs = message_get(message, "fs"), *device = message_get(message, "device");
	char place[32];

	if (digest == NULL || !is_digest(digest) || path == NULL || path[0] != '/' || fs == NULL ||
	    (strcmp(fs, "erofs") != 0 && strcmp(fs, "dir") != 0))
		return fail(failure, EINVAL, "request",
			    "a layer needs digest=, an absolute path= and fs=erofs or fs=dir");
	if (layer_find(l, digest) >= 0)
		return 0;
	AUTO_CLOSE int mount = open_layer(fs, path, device);

	if (mount < 0)
		return fail(failure, -mount, "mount", "cannot mount %.150s: %s", path,
			    strerror(-mount));
	int index = claim(l);

	if (index < 0)
		return fail(failure, ENOSPC, "mount", "%d layers are mounted already", LAYERS_MAX);
	snprintf(place, sizeof(place), "layers/%d", index);
	if (mkdir(place, 0700) && errno != EEXIST)
		return fail(failure, errno, "mount", "cannot make a place for the layer");
	if (sys_move_mount(mount, AT_FDCWD, place))
		return fail(failure, errno, "mount", "cannot attach the layer: %s",
			    strerror(errno));
	strcpy(l->layers[index].digest, digest);
	l->layers[index].users = 0;
	return 0;
}

int layer_remove(struct launcher *l, const char *digest, struct failure *failure)
{
	int index = digest == NULL ? -1 : layer_find(l, digest);
	char place[32];

	if (index < 0)
		return fail(failure, ENOENT, "request", "this layer is not mounted");
	if (l->layers[index].users > 0)
		return fail(failure, EBUSY, "unmount", "%u sandboxes use this layer",
			    l->layers[index].users);
	snprintf(place, sizeof(place), "layers/%d", index);
	if (umount2(place, MNT_DETACH))
		return fail(failure, errno, "unmount", "cannot unmount the layer: %s",
			    strerror(errno));
	l->layers[index].digest[0] = '\0';
	return 0;
}

void layers_unmount(struct launcher *l)
{
	char place[32];

	for (unsigned int i = 0; i < l->layer_top; i++) {
		if (l->layers[i].digest[0] == '\0')
			continue;
		snprintf(place, sizeof(place), "layers/%u", i);
		umount2(place, MNT_DETACH);
	}
}

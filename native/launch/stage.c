/*
 * What the launcher prepares once for all sandboxes: its own mount namespace, mount points for
 * the children, an empty directory for /sys, and /dev as every sandbox sees it.
 */
#include "launch/launcher.h"

#include "common/sys.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

void stage_own_mounts(void)
{
	if (unshare(CLONE_NEWNS))
		die("cannot make a mount namespace");
	/* Slave, not private: what the host mounts later (a store of layers, say) appears here, and
	 * what it unmounts goes; nothing that happens here is seen by the host. */
	if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL))
		die("cannot set the propagation of mounts");
}

static void make_directories(void)
{
	static const char *const names[] = { "layers", "stage", "empty", "dev" };
	char path[32];

	for (size_t i = 0; i < COUNT(names); i++)
		if (mkdir(names[i], 0755))
			die("cannot prepare %s", names[i]);
	for (int i = 0; i < LOWERS_MAX; i++) {
		snprintf(path, sizeof(path), "stage/l%d", i);
		if (mkdir(path, 0755))
			die("cannot prepare the stage");
	}
}

static void make_device(const char *name)
{
	char from[32], to[32];

	snprintf(from, sizeof(from), "/dev/%s", name);
	snprintf(to, sizeof(to), "dev/%s", name);
	int fd = open(to, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);

	if (fd < 0 || mount(from, to, NULL, MS_BIND, NULL))
		die("this host has no %s", from);
	close(fd);
}

/*
 * One read-only /dev serves all sandboxes, each of which adds its own terminals and shared
 * memory. Nobody inside can put a file in the place of /dev/null.
 */
static void make_dev(void)
{
	static const char *const devices[] = { "null", "zero", "full", "random", "urandom", "tty" };
	static const char *const links[][2] = {
		{ "/proc/self/fd", "dev/fd" },	     { "/proc/self/fd/0", "dev/stdin" },
		{ "/proc/self/fd/1", "dev/stdout" }, { "/proc/self/fd/2", "dev/stderr" },
		{ "pts/ptmx", "dev/ptmx" },
	};
	/* Not MS_NODEV, for the devices; mknod needs a capability that nobody inside has. */
	const unsigned long flags = MS_NOSUID | MS_NOEXEC;

	if (mount("dev", "dev", "tmpfs", flags, "size=64k,nr_inodes=32,mode=0755"))
		die("cannot mount a place for devices");
	for (size_t i = 0; i < COUNT(devices); i++)
		make_device(devices[i]);
	for (size_t i = 0; i < COUNT(links); i++)
		if (symlink(links[i][0], links[i][1]))
			die("cannot make %s", links[i][1]);
	if (mkdir("dev/pts", 0755) || mkdir("dev/shm", 0755) ||
	    mount(NULL, "dev", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL))
		die("cannot finish the place for devices");
}

/* The launcher's tmpfs becomes its working directory; children find it as theirs. */
void stage_make(int run_dir)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d/mounts", run_dir);
	if (mkdirat(run_dir, "mounts", 0700) && errno != EEXIST)
		die("cannot make the directory mounts");
	if (mount("sandfleet", path, "tmpfs", MS_NOSUID, "mode=0700") || chdir(path))
		die("cannot mount a tmpfs");
	make_directories();
	if (mount("sys", "empty", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  "size=4k,nr_inodes=1,mode=0555"))
		die("cannot mount an empty directory");
	make_dev();
}

/* In a child: leaves every mount behind but the empty directory, which becomes the root. */
__attribute__((noreturn)) static void stand_on_empty(int ready)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    chdir("empty") || sys_pivot_root(".", ".") || umount2(".", MNT_DETACH) ||
	    write(ready, "", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

/*
 * A mount namespace that holds an empty, read-only directory and nothing else. A sandbox's own
 * begins as its copy and gets the sandbox's root on top. Not by pivot_root, which looks at every
 * process of the machine: that would cost each creation more the more sandboxes there are.
 */
void stage_make_ground(void)
{
	char path[64], byte;
	int pipes[2];

	if (pipe2(pipes, O_CLOEXEC))
		die("cannot make a pipe");
	pid_t pid = fork();

	if (pid == 0) {
		close(pipes[0]);
		stand_on_empty(pipes[1]);
	}
	close(pipes[1]);
	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
	AUTO_CLOSE int ground = -1;

	if (pid < 0 || RETRY(read(pipes[0], &byte, 1)) != 1 ||
	    (ground = open(path, O_RDONLY | O_CLOEXEC)) < 0 ||
	    dup3(ground, GROUND_FD, O_CLOEXEC) < 0)
		die("cannot prepare a mount namespace");
	close(pipes[0]);
	kill(pid, SIGKILL);
	RETRY(waitpid(pid, NULL, 0));
}

"""One process of a call: what it may use, watching it, and ending all that it started."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import time

from .frames import STEP, TIMED_OUT

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_OPEN = 434
_SPARE_BYTES = 32 * 1024 * 1024
_OPEN_FILES = 1024
_LIBC = ctypes.CDLL(None, use_errno=True)
_scratch = memoryview(bytearray(65536))


class Limits:
    """Caps of one process; `of` takes them in the order of the list that a request holds."""

    __slots__ = ("cpu_seconds", "file_bytes", "memory_bytes", "output_bytes", "processes", "wall")

    def __init__(self, values: list[float]) -> None:
        self.wall = values[0]
        self.cpu_seconds = int(values[1])
        self.memory_bytes = int(values[2])
        self.processes = int(values[3])
        self.output_bytes = int(values[4])
        self.file_bytes = int(values[5])


class Stream:
    """One pipe that a process writes to. What is beyond `cap` is read, counted and dropped."""

    __slots__ = ("buffer", "cap", "dropped", "fd", "size")

    def __init__(self, fd: int, buffer: memoryview, cap: int) -> None:
        self.fd = fd
        self.buffer = buffer
        self.cap = min(cap, len(buffer))
        self.size = 0
        self.dropped = 0

    def read(self) -> bool:
        """Read once; return False at the end."""
        try:
            if self.size < self.cap:
                count = os.readv(self.fd, [self.buffer[self.size : self.cap]])
                self.size += count
            else:
                count = os.readv(self.fd, [_scratch])
                self.dropped += count
        except BlockingIOError:
            return True
        return count > 0

    def data(self) -> memoryview:
        """Return what was kept."""
        return self.buffer[: self.size]

    def wipe(self) -> None:
        """Forget it: the next call is forked from this memory."""
        self.buffer[: self.size] = bytes(self.size)


class Ended:
    """How a step ended."""

    __slots__ = ("cpu_us", "had_more", "peak_kib", "status", "timed_out", "wall_us")

    def __init__(self) -> None:
        self.status = 0
        self.timed_out = False
        self.had_more = False
        """Processes outlived the first one."""
        self.wall_us = 0
        self.cpu_us = 0
        self.peak_kib = 0

    def count(self, usage: resource.struct_rusage) -> None:
        """Add what a process used."""
        self.cpu_us += int((usage.ru_utime + usage.ru_stime) * 1e6)
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)

    def pack(self, out: Stream, err: Stream) -> bytes:
        """Return the head of its part of the answer."""
        signalled = os.WIFSIGNALED(self.status)
        return STEP.pack(
            -1 if signalled else os.WEXITSTATUS(self.status),
            os.WTERMSIG(self.status) if signalled else -1,
            TIMED_OUT if self.timed_out else 0,
            out.size,
            err.size,
            out.dropped + err.dropped,
            self.wall_us,
            self.cpu_us,
            self.peak_kib,
        )


def become_reaper() -> None:
    """Make orphans of this process's descendants its children."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def raise_oom_score() -> None:
    """Be the first to go when memory runs out: the zygote shall live."""
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(fd, b"1000")
    os.close(fd)


def own_size() -> int:
    """Return the bytes of this process's address space."""
    fd = os.open("/proc/self/statm", os.O_RDONLY)
    pages = int(os.read(fd, 64).split()[0])
    os.close(fd)
    return pages * os.sysconf("SC_PAGE_SIZE")


def drop(uid: int) -> None:
    """Become the user of one call, for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self would be closed to itself


def limit(limits: Limits, base_bytes: int, *, maps_much: bool = False) -> None:
    """Take on the caps; what was mapped before, `base_bytes`, is not counted against them.

    `maps_much`: the program reserves address space that it does not use, so what it
    may write to is counted instead.
    """
    put = resource.setrlimit
    most = limits.memory_bytes + base_bytes
    # A little more is left for saying that memory ran out.
    put(
        resource.RLIMIT_DATA if maps_much else resource.RLIMIT_AS,
        (most, most + _SPARE_BYTES),
    )
    if limits.cpu_seconds:
        put(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 1))
    put(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
    put(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    put(resource.RLIMIT_MSGQUEUE, (0, 0))
    files = min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    put(resource.RLIMIT_NOFILE, (files, files))
    put(resource.RLIMIT_CORE, (0, 0))


def use_spare_memory() -> None:
    """Let a process that ran out of memory say so."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def open_pid(pid: int) -> int:
    """Return a descriptor that can be read when a child has ended."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _LIBC.syscall(_PIDFD_OPEN, pid, 0)


def watch(pid: int, uid: int, streams: list[Stream], wall: float) -> Ended:
    """Watch a call's process until it ends or its time is over; then nothing of it is left.

    `wall` is in seconds. The streams are read to their end and closed.
    """
    ended = Ended()
    began = time.monotonic()
    handle = open_pid(pid)
    ended.timed_out = not _listen(handle, streams, began + wall)
    os.close(handle)
    if ended.timed_out:
        _kill_all(uid)
    _, ended.status, usage = os.wait4(pid, 0)
    ended.wall_us = int((time.monotonic() - began) * 1e6)
    ended.count(usage)
    ended.had_more = _reap(uid, ended)
    for stream in streams:
        while stream.read():
            pass
        os.close(stream.fd)
    return ended


def _listen(handle: int, streams: list[Stream], deadline: float) -> bool:
    """Read until the process ends; return False if the time is over first."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    by_fd = {}
    for stream in streams:
        poll.register(stream.fd, select.POLLIN)
        by_fd[stream.fd] = stream
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd == handle:
                return True
            if not by_fd[fd].read():
                poll.unregister(fd)


def _reap(uid: int, ended: Ended) -> bool:
    """End what outlived a call's first process. Return whether anything did.

    All its descendants are children of this process by now, so that no children means
    that nothing is left.
    """
    is_killed = ended.timed_out
    had_more = False
    while True:
        try:
            pid, _, usage = os.wait4(-1, 0 if is_killed else os.WNOHANG)
        except ChildProcessError:
            return had_more and not ended.timed_out
        if pid:
            ended.count(usage)
            continue
        had_more = is_killed = True
        _kill_all(uid)


def _kill_all(uid: int) -> None:
    """Kill all processes of a user: they are signalled at once, and none can fork any more."""
    killer = os.fork()
    if killer == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)

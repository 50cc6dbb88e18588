"""One process of a call: what it may use, watching it, and ending all that it started."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import time

from .frames import DONE, DONE_MARK, STEP, TIMED_OUT

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_OPEN = 434
_SPARE_BYTES = 32 * 1024 * 1024
_OPEN_FILES = 1024
_PIPE_BYTES = 2 * 1024 * 1024
"""More than any pipe holds."""
_LINGER_MS = 1000
"""What a process may take to end once it has said that it will."""
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

    def read(self) -> int:
        """Read once; return how many bytes came, 0 at the end, -1 when there is nothing now."""
        try:
            if self.size < self.cap:
                count = os.readv(self.fd, [self.buffer[self.size : self.cap]])
                self.size += count
            else:
                count = os.readv(self.fd, [_scratch])
                self.dropped += count
        except BlockingIOError:
            return -1
        return count

    def drain(self) -> None:
        """Read what is there now, also while somebody goes on writing."""
        left = _PIPE_BYTES
        while left > 0:
            count = self.read()
            if count <= 0:
                return
            left -= count

    def data(self) -> memoryview:
        """Return what was kept."""
        return self.buffer[: self.size]

    def is_done(self) -> bool:
        """Return whether it is a note that says that the code has run to its end."""
        return bytes(self.data()[-DONE.size :])[: len(DONE_MARK)] == DONE_MARK

    def wipe(self) -> None:
        """Forget it: the next call is forked from this memory."""
        self.buffer[: self.size] = bytes(self.size)


class Ended:
    """How a step ended."""

    def __init__(self, pid: int, uid: int, streams: list[Stream]) -> None:
        self.uid = uid
        self.handle = -1
        self.status = 0
        """As wait() gives it."""
        self.timed_out = False
        self.had_more = False
        """Processes outlived the first one."""
        self.wall_us = 0
        self.cpu_us = 0
        self.peak_kib = 0
        self._pid = pid
        self._streams = streams

    def count(self, usage: resource.struct_rusage) -> None:
        """Add what a process used."""
        self.cpu_us += int((usage.ru_utime + usage.ru_stime) * 1e6)
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)

    def take_done(self, note: Stream) -> None:
        """Believe what the process says of its own end."""
        _, status, self.cpu_us, self.peak_kib = DONE.unpack(note.data()[-DONE.size :])
        note.size -= DONE.size
        self.status = (status & 0xFF) << 8

    def collect(self) -> None:
        """Wait for the process, which has ended or has to now, and for all that it started.

        The streams are read to their end and closed. A second time does nothing.
        """
        if self.handle < 0:
            return
        if self.timed_out:
            _kill_all(self.uid)
        _, self.status, usage = os.wait4(self._pid, 0)
        self.count(usage)
        self.had_more = _reap(self)
        self._close()
        note = self._streams[2]
        if note.is_done():  # it was gone before its last word was read
            note.size -= DONE.size

    def settle(self) -> None:
        """Let a process that said that it has done end, and look for what outlives it."""
        if self.handle < 0:
            return
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        lingers = not poll.poll(_LINGER_MS)
        if lingers:
            _kill_all(self.uid)
        os.wait4(self._pid, 0)
        self.had_more = _reap(self) or lingers
        self._close()

    def _close(self) -> None:
        os.close(self.handle)
        self.handle = -1
        for stream in self._streams:
            stream.drain()
            os.close(stream.fd)

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
    return int(_LIBC.syscall(_PIDFD_OPEN, pid, 0))


def watch(pid: int, uid: int, streams: list[Stream], wall: float) -> Ended:
    """Watch a call's process until it has ended, is about to, or its time is over.

    Args:
        pid: the process.
        uid: of the call.
        streams: its stdout, stderr and note.
        wall: its time in seconds.
    """
    ended = Ended(pid, uid, streams)
    began = time.monotonic()
    ended.handle = open_pid(pid)
    outcome = _listen(ended.handle, streams, began + wall)
    if outcome == _SAID_DONE:
        for stream in streams[:2]:
            stream.drain()
        ended.take_done(streams[2])
    else:
        ended.timed_out = outcome == _OVER
        ended.collect()
    ended.wall_us = int((time.monotonic() - began) * 1e6)
    return ended


_EXITED, _SAID_DONE, _OVER = range(3)


def _listen(handle: int, streams: list[Stream], deadline: float) -> int:
    """Read until the process ends, says that it will, or the time is over; return which."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    by_fd = {}
    for stream in streams:
        poll.register(stream.fd, select.POLLIN)
        by_fd[stream.fd] = stream
    note = streams[2]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return _OVER
        for fd, _ in poll.poll(left * 1000 + 1):
            if fd == handle:
                return _EXITED
            if by_fd[fd].read() == 0:
                poll.unregister(fd)
            elif fd == note.fd and note.is_done():
                return _SAID_DONE


def _reap(ended: Ended) -> bool:
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
        _kill_all(ended.uid)


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

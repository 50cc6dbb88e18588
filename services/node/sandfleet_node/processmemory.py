"""The memory of one process: its ranges, and advice to the kernel on what to do with them."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROCESS_MADVISE = 440
"""Number of the system call, the same on every architecture."""
_WILLNEED = 3
_PAGEOUT = 21
_SLICE_BYTES = 8 * 1024**2
"""One call's worth: about 10 ms when it has to be written to a disk."""
_PASSED_OVER = frozenset({errno.EINVAL, errno.EPERM, errno.ENOMEM, errno.EAGAIN, errno.EIO})
"""Answers that are about one range: it is pinned, it is no memory, it has just gone."""
_SPECIAL = frozenset({"[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"})

_libc = ctypes.CDLL(None, use_errno=True)

Stopped = Callable[[], bool]
"""Says whether to leave off: whoever asked has changed their mind."""


@dataclass(frozen=True, slots=True)
class Range:
    """One mapping; amounts in bytes."""

    start: int
    end: int
    is_anonymous: bool
    """No file is mapped there."""
    resident: int = 0
    referenced: int = 0
    """Touched since `forget_references`."""
    swapped: int = 0

    @property
    def size(self) -> int:
        """How long it is."""
        return self.end - self.start


def parse_maps(text: str) -> list[Range]:
    """Return the ranges of a /proc/PID/maps, or of a smaps with their amounts."""
    found: list[Range] = []
    head: tuple[int, int, bool] | None = None
    amounts: dict[str, int] = {}

    def close() -> None:
        if head is not None:
            found.append(
                Range(
                    *head,
                    amounts.get("Rss", 0),
                    amounts.get("Referenced", 0),
                    amounts.get("Swap", 0),
                )
            )

    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0].endswith(":"):
            if words[-1] == "kB":
                amounts[words[0][:-1]] = int(words[1]) * 1024
            continue
        close()
        amounts = {}
        start, _, end = words[0].partition("-")
        name = words[5] if len(words) > 5 else ""
        is_plain = name == "" or name.startswith(("[heap]", "[stack]", "[anon"))
        head = None if name in _SPECIAL else (int(start, 16), int(end, 16), is_plain)
    close()
    return found


def ranges(pid: int, *, with_amounts: bool) -> list[Range]:
    """Return the mappings of a process; none when it has gone.

    Amounts cost a walk through its page tables.
    """
    name = "smaps" if with_amounts else "maps"
    try:
        return parse_maps(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
    except (OSError, ValueError):
        return []


def swapped_out(pid: int) -> int:
    """Return how many bytes of a process are in swap; 0 when it has gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return 0
    _, _, rest = text.partition("\nVmSwap:")
    words = rest.split(maxsplit=1)
    return int(words[0]) * 1024 if words else 0


def forget_references(pid: int) -> None:
    """Let `Range.referenced` count from now. A process that has gone is no error."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("1")
    except OSError:
        return


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_size_t), ("length", ctypes.c_size_t))


def _advise(pidfd: int, start: int, length: int, advice: int) -> None:
    vector = _Iovec(start, length)
    done = _libc.syscall(
        ctypes.c_long(_PROCESS_MADVISE),
        ctypes.c_int(pidfd),
        ctypes.byref(vector),
        ctypes.c_size_t(1),
        ctypes.c_int(advice),
        ctypes.c_uint(0),
    )
    if done < 0:
        number = ctypes.get_errno()
        if number not in _PASSED_OVER:
            raise OSError(number, os.strerror(number))


@contextmanager
def _opened(pid: int) -> Generator[int]:
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)


def _advise_all(pid: int, wanted: Iterable[Range], advice: int, stopped: Stopped) -> None:
    try:
        with _opened(pid) as pidfd:
            for each in wanted:
                for start in range(each.start, each.end, _SLICE_BYTES):
                    if stopped():
                        return
                    _advise(pidfd, start, min(_SLICE_BYTES, each.end - start), advice)
    except OSError:
        return  # the process has gone, or this kernel does not know the call


def page_out(pid: int, wanted: Iterable[Range], stopped: Stopped) -> None:
    """Write these ranges to swap, or drop them if they are a file's and nobody else maps them.

    Takes about a second for a GiB: to be called in a thread.
    """
    _advise_all(pid, wanted, _PAGEOUT, stopped)


def fetch(pid: int, wanted: Iterable[Range], stopped: Stopped) -> None:
    """Begin to read from swap what of these ranges is there. To be called in a thread."""
    _advise_all(pid, wanted, _WILLNEED, stopped)

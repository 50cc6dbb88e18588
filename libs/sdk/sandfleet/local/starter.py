"""Start a program that outlives its caller; run as a script, it needs nothing but Python.

    python -I -S starter.py RECORD LOG PROGRAM ARGUMENT...

The program gets a session of its own, no input, and LOG for its output. RECORD says
which process it is before it runs its first instruction, so that it can always be
found again. The standard output is closed once the program runs, or says why not.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def record_of(pid: int) -> str:
    """Return what tells process `pid` from any other, before and after."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    started = int(stat.rpartition(")")[2].split()[19])
    boot = BOOT_ID.read_text().strip()
    return json.dumps({"pid": pid, "started": started, "boot": boot})


def run(record: str, log: str, argv: list[str]) -> None:
    """Become the program."""
    report = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        Path(f"{record}.new").write_text(record_of(os.getpid()))
        Path(f"{record}.new").rename(record)
        # A shell's background job, for one, ignores interrupts; what it starts should not.
        for number in signal.valid_signals():
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as problem:
        os.write(report, str(problem).encode())
    os._exit(127)


if __name__ == "__main__":
    if os.fork() == 0:
        run(sys.argv[1], sys.argv[2], sys.argv[3:])
    os._exit(0)  # the program has no parent that would have to wait for it

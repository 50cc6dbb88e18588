"""Running a program that may take long, from a thread, so that it ends when the node does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_LOOK_SECONDS = 0.1
_SAID_MAX = 2000


class Stopped(OSError):
    """The node is stopping, and has ended the program."""


def run(
    argv: Sequence[str],
    seconds: float,
    is_stopping: Callable[[], bool],
    *,
    began: Callable[[int], None] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> tuple[int, str]:
    """Run a program that is killed with the thread that started it; blocks.

    Args:
        argv: the program.
        seconds: it may take.
        is_stopping: looked at again and again.
        began: called with its process id.
        cwd: its working directory.
        env: its environment; None: ours.
        pass_fds: descriptors that it gets beside the standard ones.

    Returns:
        Its exit status, negative after a signal, and the end of what it said as errors.

    Raises:
        TimeoutError: it took longer, and was killed.
        Stopped: the node is stopping.
        OSError: it cannot be run.
    """
    until = time.monotonic() + seconds
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        cwd=cwd, env=env, pass_fds=pass_fds,
    ) as child:  # fmt: skip
        if began is not None:
            began(child.pid)
        while True:
            try:
                _, said = child.communicate(timeout=_LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                is_late = time.monotonic() > until
                if is_late or is_stopping():
                    child.kill()
                    problem = f"{argv[0]} took longer than {seconds:g} s"
                    raise (TimeoutError(problem) if is_late else Stopped("stopping")) from None
    return child.returncode, said[-_SAID_MAX:].decode(errors="replace")

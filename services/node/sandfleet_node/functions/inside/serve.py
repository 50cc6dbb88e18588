"""The zygote: it imports, then forks a worker for each call, watches it and answers."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

from . import languages, leftovers, steps
from .frames import CALL_BYTES, HELLO, NOTE_BYTES, SETTLED
from .speaking import send, send_answer
from .working import TOLD, Job

ROOT = "/run/sandfleet-calls"
_FIRST_UID = 20_000
_LEFT_PROCESSES = 10
_IMPORTS = (
    "abc argparse array ast base64 bisect collections collections.abc contextlib copy csv "
    "dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools "
    "json math numbers operator pathlib pprint queue random re statistics string struct "
    "subprocess tempfile textwrap threading time traceback types typing unittest uuid warnings"
)


def main(settings: dict[str, Any]) -> None:
    """Serve calls until the channel closes or as many as were agreed on.

    `settings` holds `calls`, how many; `imports`, the names of modules; and `places`, what
    everybody may write to in this environment, or null where nobody has looked yet.
    """
    imported = _import_all([*_IMPORTS.split(), *settings["imports"]])
    paths = settings["places"]
    if paths is None:
        paths = leftovers.find_places()
    os.makedirs(ROOT, mode=0o711, exist_ok=True)  # noqa: PTH103
    zygote = Zygote(languages.find_all(), leftovers.Places(paths))
    steps.become_reaper()
    hello = {
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "languages": sorted(zygote.programs),
        "imports": imported,
        "places": paths,
    }
    gc.collect()
    gc.disable()
    gc.freeze()
    job = zygote.prepare(0)
    send(HELLO, json.dumps(hello).encode())
    for number in range(1, settings["calls"] + 1):
        zygote.serve(job)
        problem = zygote.clean(job)
        if not problem and number == settings["calls"]:
            problem = "calls"
        if not problem:
            job = zygote.prepare(number)
        send(SETTLED, problem.encode("utf-8", "replace")[:500])
        if problem:
            return


def _import_all(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # it is not in this environment, or broken there
        found.append(name)
    return found


class Zygote:
    """Forks workers and watches them. Of what they do nothing stays in its memory."""

    def __init__(self, programs: dict[str, str], places: leftovers.Places) -> None:
        self.programs = programs
        self._places = places
        sizes = (CALL_BYTES, CALL_BYTES, NOTE_BYTES)
        self._buffers = [memoryview(bytearray(size)) for size in sizes]

    def prepare(self, number: int) -> Job:
        """Fork the worker of the next call: it waits for its request."""
        job = Job(f"{ROOT}/{number}", _FIRST_UID + number, self.programs)
        job.fork()
        return job

    def serve(self, job: Job) -> None:
        """Wait for a request, watch what it starts, answer, and see to it that all has ended."""
        told = os.read(job.told_fd, TOLD.size)
        if len(told) < TOLD.size:
            os._exit(0)  # the channel is closed, or the worker is gone: so is this sandbox
        is_own, wall, output_bytes = TOLD.unpack(told)
        if is_own:
            self._wait(job)
            return
        caps = (output_bytes, output_bytes, NOTE_BYTES)
        streams = [
            steps.Stream(job.streams[index], self._buffers[index], cap)
            for index, cap in enumerate(caps)
        ]
        ended = steps.watch(job.pid, job.uid, streams, wall)
        send_answer([(ended, streams)], [])
        ended.settle()
        job.had_more = ended.had_more
        for stream in streams:
            stream.wipe()

    def _wait(self, job: Job) -> None:
        """Wait for a worker that watches the steps of its call and answers by itself."""
        _, status = os.waitpid(job.pid, 0)
        for fd in job.streams:
            os.close(fd)
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, _LEFT_PROCESSES):
            os._exit(1)
        job.had_more = os.WEXITSTATUS(status) == _LEFT_PROCESSES

    def clean(self, job: Job) -> str:
        """Remove what a call was given; return what it left beyond that, if anything."""
        os.close(job.told_fd)
        if not leftovers.remove(job.path):
            return "its directory could not be removed"
        if job.had_more:
            return "processes outlived it"
        return self._places.found()

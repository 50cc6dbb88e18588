"""The zygote: it imports, then forks a worker for each call, watches it and answers."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time

from . import frames, languages, leftovers, steps
from .frames import ANSWER, CALL_BYTES, FRAME, HELLO, RESULT, SETTLED, SIZE
from .working import TOLD, Job, work

ROOT = "/run/sandfleet-calls"
_FIRST_UID = 20_000
_IMPORTS = (
    "abc argparse array ast base64 bisect collections collections.abc contextlib copy csv "
    "dataclasses datetime decimal enum fractions functools hashlib heapq inspect io itertools "
    "json math numbers operator pathlib pprint queue random re statistics string struct "
    "subprocess tempfile textwrap threading time traceback types typing unittest uuid warnings"
)


def main(settings: dict) -> None:
    """Serve calls until the channel closes or as many as were agreed on."""
    began = time.monotonic()
    imported = _import_all(_IMPORTS.split() + list(settings["imports"]))
    programs = languages.find_all()
    places = leftovers.Places()
    os.makedirs(ROOT, mode=0o711, exist_ok=True)  # noqa: PTH103
    steps.become_reaper()
    hello = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "languages": sorted(programs),
        "imports": imported,
        "places": len(places),
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "start_ms": int((time.monotonic() - began) * 1000),
    }
    zygote = Zygote(programs, places)
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


def send(kind: int, payload: bytes) -> None:
    """Say something to the node."""
    write_all([FRAME.pack(kind, len(payload)), payload])


def write_all(parts: list) -> None:
    """Write to the channel until all is written."""
    views = [memoryview(part) for part in parts if len(part)]
    while views:
        count = os.writev(1, views[:512])
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]


def _import_all(names: list) -> list:
    found = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # it is not in this environment, or broken there
        found.append(name)
    return found


class Zygote:
    """Forks workers and watches them. Of what they do nothing stays in its memory."""

    def __init__(self, programs: dict, places: leftovers.Places) -> None:
        self._programs = programs
        self._places = places
        self._buffers = [memoryview(bytearray(CALL_BYTES + 1)) for _ in range(3)]

    def prepare(self, number: int) -> Job:
        """Fork the worker of the next call: it waits for its request."""
        job = Job("%s/%d" % (ROOT, number), _FIRST_UID + number, self._programs, send_answer)
        job.fork()
        return job

    def serve(self, job: Job) -> None:
        """Wait for a request, watch what it starts, and answer."""
        told = os.read(job.told_fd, TOLD.size)
        if len(told) < TOLD.size:
            os._exit(0)  # the channel is closed, or the worker is gone: so is this sandbox
        is_own, wall, output_bytes = TOLD.unpack(told)
        if is_own:
            self._wait(job)
            return
        caps = (output_bytes, output_bytes, CALL_BYTES + 1)
        streams = [
            steps.Stream(fd, buffer, cap)
            for fd, buffer, cap in zip(job.streams, self._buffers, caps)  # noqa: B905
        ]
        ended = steps.watch(job.pid, job.uid, streams, wall)
        job.had_more = ended.had_more
        send_answer([(ended, streams[0], streams[1])], streams[2].data(), [])
        for stream in streams:
            stream.wipe()

    def _wait(self, job: Job) -> None:
        """Wait for a worker that watches the steps of its call and answers by itself."""
        _, status = os.waitpid(job.pid, 0)
        for fd in job.streams:
            os.close(fd)
        if not os.WIFEXITED(status) or os.WEXITSTATUS(status) not in (0, 10):
            os._exit(1)
        job.had_more = os.WEXITSTATUS(status) == 10

    def clean(self, job: Job) -> str:
        """Remove what a call was given; return what it left beyond that, if anything."""
        os.close(job.told_fd)
        if not leftovers.remove(job.path):
            return "its directory could not be removed"
        if job.had_more:
            return "processes outlived it"
        if len(self._places) > leftovers.PLACES_MAX:
            return "too much of the environment can be written by everybody"
        return self._places.found()


def send_answer(done: list, note: memoryview, files: list) -> None:
    """Send how a call ended: its steps, with their streams, its note and its files."""
    parts = [ANSWER.pack(len(done), len(files), len(note))]
    parts += [ended.pack(out, err) for ended, out, err in done]
    parts += [frames.FILE.pack(-1 if data is None else len(data)) for data in files]
    for _, out, err in done:
        parts += [out.data(), err.data()]
    parts.append(note)
    parts += [data for data in files if data is not None]
    write_all([FRAME.pack(RESULT, sum(map(len, parts))), *parts])


__all__ = ["SIZE", "main"]

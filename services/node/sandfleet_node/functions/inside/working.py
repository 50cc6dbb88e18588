"""The worker: forked ahead of its call, it waits for the request and carries it out.

It is root until it has read the request and laid out the files; then it becomes a user
of its own and, for Python, the code itself. Where a call takes more than one step, or
files are to be given back, it stays root, watches the steps and answers.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import traceback
from typing import Any

from . import languages, leftovers, running, steps
from .frames import CALL_BYTES, NOTE_BYTES, SIZE
from .speaking import send_answer

TOLD = struct.Struct("<BxxxxxxxdQ")
"""What a worker tells the zygote: whether it answers itself; wall seconds, output bytes."""
_NOTE_FD = 3
_FDS_MAX = 256
_LEFT_PROCESSES = 10


class Request:
    """What is asked for; the bytes come from the node and are sound."""

    def __init__(self, about: dict[str, Any], body: bytes) -> None:
        self.about = about
        self.language: str = about["language"]
        self.limits = steps.Limits(about["limits"])
        self.fetch: list[str] = about["fetch"]
        code_bytes: int = about["code"]
        at = code_bytes + int(about["stdin"])
        self.code = body[:code_bytes]
        self.stdin = body[code_bytes:at]
        self.files: list[tuple[str, bytes]] = []
        for name, size in about["files"]:
            self.files.append((name, body[at : at + size]))
            at += size


def take(fd: int, count: int) -> bytes:
    """Read exactly so many bytes; the process ends when there are no more."""
    parts: list[bytes] = []
    while count:
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_request() -> Request:
    """Wait for a request on the channel."""
    total = SIZE.unpack(take(0, SIZE.size))[0]
    data = take(0, total)
    end = SIZE.size + SIZE.unpack_from(data)[0]
    return Request(json.loads(data[SIZE.size : end]), data[end:])


class Job:
    """One call: its directory, its user, its worker and the pipes between."""

    def __init__(self, path: str, uid: int, programs: dict[str, str]) -> None:
        self.path = path
        self.uid = uid
        self.programs = programs
        self.pid = 0
        self.streams: list[int] = []
        """Read ends: stdout, stderr, note."""
        self.told_fd = -1
        self.had_more = False

    def fork(self) -> None:
        """Start the worker."""
        self.told_fd, told = os.pipe()
        self.streams, theirs = open_pipes()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work(self, told, theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(127)
        for fd in (told, *theirs):
            os.close(fd)


def open_pipes() -> tuple[list[int], list[int]]:
    """Return the read ends, which never block, and the write ends of three pipes."""
    ours: list[int] = []
    theirs: list[int] = []
    for _ in range(3):
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        ours.append(reader)
        theirs.append(writer)
    return ours, theirs


def work(job: Job, told: int, theirs: list[int]) -> None:
    """Be the worker of a call. Does not return."""
    os.setsid()
    steps.raise_oom_score()
    os.mkdir(job.path, 0o700)  # noqa: PTH102
    os.chown(job.path, job.uid, job.uid)
    os.chdir(job.path)
    base_bytes = steps.own_size()
    request = read_request()
    is_own = languages.is_compiled(request.language) or bool(request.fetch)
    limits = request.limits
    os.write(told, TOLD.pack(is_own, limits.wall, limits.output_bytes))
    lay_out(job, request)
    if is_own:
        os._exit(work_in_steps(job, request, base_bytes))
    become(job, request, limits, theirs, base_bytes, run_command(job, request))


def run_command(job: Job, request: Request) -> list[str]:
    """Return the arguments of the program that runs a call; none: this one does."""
    if request.language == "python":
        return []
    program = job.programs.get(request.language, "")
    return languages.run_command(request.language, program, request.limits.memory_bytes)


def lay_out(job: Job, request: Request) -> None:
    """Write code and files into the call's directory."""
    if request.language != "python" or running.wants_file(request.code):
        put(job, languages.file_of(request.language), request.code)
    for name, data in request.files:
        made = ""
        for part in name.split("/")[:-1]:
            made += part + "/"
            try:
                os.mkdir(made, 0o755)  # noqa: PTH102
                os.chown(made, job.uid, job.uid)
            except FileExistsError:
                continue
        put(job, name, data)


def put(job: Job, name: str, data: bytes) -> None:
    """Write one file that belongs to the call."""
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    write_all(fd, data)
    os.fchown(fd, job.uid, job.uid)
    os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def become(
    job: Job,
    request: Request,
    limits: steps.Limits,
    theirs: list[int],
    base_bytes: int,
    command: list[str],
) -> None:
    """Turn this process into a step of the call. Does not return."""
    open_stdin(request.stdin)
    os.dup2(theirs[0], 1)
    os.dup2(theirs[1], 2)
    if theirs[2] != _NOTE_FD:
        os.dup2(theirs[2], _NOTE_FD, inheritable=False)
    os.closerange(_NOTE_FD + 1, _FDS_MAX)
    set_environment(job, request.about["env"])
    if command:
        become_program(job, limits, command, languages.maps_much(request.language))
    source, asked = request.code.decode(), request.about
    steps.limit(limits, base_bytes)
    steps.drop(job.uid)
    running.run(source, job.path + "/" + languages.file_of("python"), asked, _NOTE_FD)


def become_program(job: Job, limits: steps.Limits, command: list[str], maps_much: bool) -> None:
    """Turn into another program. Does not return."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    steps.drop(job.uid)
    steps.limit(limits, 0, maps_much=maps_much)
    try:
        os.execve(command[0], command, os.environ)
    except OSError as problem:
        os.write(2, f"{command[0]}: {problem.strerror}\n".encode())
    os._exit(126)


def open_stdin(data: bytes) -> None:
    """Make `data` the standard input; a file in memory needs nobody to feed it."""
    if data:
        fd = os.memfd_create("stdin")
        write_all(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
    else:
        fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(fd, 0)
    os.close(fd)


def set_environment(job: Job, env: dict[str, str]) -> None:
    """Give the call its environment variables; its own come last."""
    own = {"HOME": job.path, "TMPDIR": job.path, "PWD": job.path}
    own["USER"] = own["LOGNAME"] = "call"
    own.update(env)
    for name, value in own.items():
        os.environ[name] = value


def work_in_steps(job: Job, request: Request, base_bytes: int) -> int:
    """Run the steps of a call one after another and answer; return this process's status."""
    steps.become_reaper()
    done: list[tuple[steps.Ended, list[steps.Stream]]] = []
    if languages.is_compiled(request.language):
        limits = steps.Limits(request.about["compile"] or request.about["limits"])
        program = job.programs.get(request.language, "")
        command = languages.compile_command(request.language, program)
        stdin, request.stdin = request.stdin, b""
        done.append(step(job, request, limits, base_bytes, command))
        request.stdin = stdin
    if not done or (done[0][0].status == 0 and not done[0][0].timed_out):
        command = run_command(job, request)
        done.append(step(job, request, request.limits, base_bytes, command))
    last = done[-1][0]
    last.settle()
    send_answer(done, fetch_all(job, request.fetch))
    return _LEFT_PROCESSES if last.had_more else 0


def step(
    job: Job,
    request: Request,
    limits: steps.Limits,
    base_bytes: int,
    command: list[str],
) -> tuple[steps.Ended, list[steps.Stream]]:
    """Run one step and watch it; return how it ended, with its stdout, stderr and note."""
    ours, theirs = open_pipes()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            become(job, request, limits, theirs, base_bytes, command)
        finally:
            os._exit(127)
    for fd in theirs:
        os.close(fd)
    caps = (limits.output_bytes, limits.output_bytes, NOTE_BYTES)
    streams = [
        steps.Stream(ours[index], memoryview(bytearray(cap)), cap) for index, cap in enumerate(caps)
    ]
    return steps.watch(pid, job.uid, streams, limits.wall), streams


def fetch_all(job: Job, names: list[str]) -> list[bytes | None]:
    """Return the files that were asked for, as many as fit."""
    room = CALL_BYTES
    found: list[bytes | None] = []
    for name in names:
        data = leftovers.fetch(job.path, name, room)
        found.append(data)
        room -= len(data or b"")
    return found

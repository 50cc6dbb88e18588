"""A small synchronous node: starts the real launcher and talks to real agents."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet_common import wire
from sandfleet_common.wire import Frame, FrameFlag, FrameType, Tag

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = REPOSITORY / "native" / "build" / "sandfleet-native"
IDS = 65536
FIRST_UID = 1_000_000_000


def cgroup_roots() -> tuple[Path, list[Path]]:
    """Return the v2 hierarchy and the v1 hierarchies worth joining, as this host has them."""
    unified: Path | None = None
    others: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        kind, options = right.split()[0], right.split()[2]
        if kind == "cgroup2":
            unified = Path(left.split()[4])
        elif kind == "cgroup" and {"memory", "pids"} & set(options.split(",")):
            others.append(Path(left.split()[4]))
    assert unified is not None, "this host has no cgroup v2"
    return unified, others


@dataclass
class Outcome:
    """What became of a command."""

    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    signal: int | None = None
    dropped: int = 0
    timed_out: bool = False
    position: int = 0
    stdin_taken: int = 0
    stdin_over: bool = False
    pid: int = 0


Event = tuple[dict[str, str], int]
"""A message of the launcher and the descriptor beside it, or -1."""


class AgentError(Exception):
    """The agent answered a request with SF_ERROR."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.errno = number


class Agent:
    """The node's end of one sandbox's channel."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.channel = channel
        self.pid = pid
        self.waiting: list[Frame] = []
        self._last_id = int(time.time() * 1000) & 0x3FFFFFFF

    def close(self) -> None:
        self.channel.close()

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def send(
        self,
        kind: FrameType,
        id: int = 0,
        flags: FrameFlag = FrameFlag.NONE,
        position: int = 0,
        payload: bytes = b"",
    ) -> None:
        self.channel.sendall(wire.pack_frame(kind, id, flags, position, payload))

    def receive(self, timeout: float = 10) -> Frame:
        if not is_readable(self.channel, timeout):
            raise TimeoutError("the agent says nothing")
        packet = self.channel.recv(wire.PACKET_MAX_BYTES)
        if not packet:
            raise EOFError("the channel has closed")
        return wire.unpack_frame(packet)

    def receive_for(self, id: int, timeout: float = 10) -> Frame:
        """Return the next frame about `id`, keeping others for later."""
        for index, frame in enumerate(self.waiting):
            if frame.id == id:
                return self.waiting.pop(index)
        deadline = time.monotonic() + timeout
        while True:
            frame = self.receive(max(0.0, deadline - time.monotonic()))
            if frame.id == id:
                return frame
            self.waiting.append(frame)

    def hello(self) -> list[Frame]:
        """Return what the agent tells about itself, WELCOME and READY included."""
        self.send(FrameType.HELLO, 0, payload=wire.pack_fields([(Tag.VERSION, wire.PROTOCOL)]))
        frames: list[Frame] = []
        while True:
            frames.append(self.receive())
            if frames[-1].type is FrameType.READY:
                return frames

    def start(
        self,
        *args: str | bytes,
        env: Iterable[str] = (),
        cwd: str | None = None,
        user: str | None = None,
        timeout_ms: int | None = None,
        limit: int | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        id: int | None = None,
    ) -> int:
        fields: list[tuple[Tag, bytes | int | str]] = [(Tag.ARG, arg) for arg in args]
        fields += [(Tag.ENV, item) for item in env]
        optional = ((Tag.CWD, cwd), (Tag.USER, user), (Tag.TIMEOUT_MS, timeout_ms))
        fields += [
            (tag, value) for tag, value in (*optional, (Tag.LIMIT, limit)) if value is not None
        ]
        flags = FrameFlag.STDIN if stdin else FrameFlag.NONE
        if pty is not None:
            flags |= FrameFlag.PTY
            fields += [(Tag.ROWS, pty[0]), (Tag.COLS, pty[1])]
        id = self.new_id() if id is None else id
        self.send(FrameType.EXEC, id, flags, payload=wire.pack_fields(fields))
        return id

    def finish(
        self, id: int, timeout: float = 20, ack: bool = True, forget: bool = True
    ) -> Outcome:
        """Collect a command's frames until its end."""
        outcome = Outcome()
        deadline = time.monotonic() + timeout
        while True:
            frame = self.receive_for(id, max(0.0, deadline - time.monotonic()))
            self.absorb(outcome, frame, ack)
            if frame.type is FrameType.EXIT:
                if forget:
                    self.send(FrameType.FORGET, id)
                return outcome

    def absorb(self, outcome: Outcome, frame: Frame, ack: bool = True) -> None:
        if frame.type is FrameType.ERROR:
            raise as_error(frame)
        if frame.type is FrameType.STARTED:
            outcome.pid = numbers(frame)[Tag.PID]
        elif frame.type is FrameType.OUTPUT:
            assert frame.position == outcome.position, "output has a gap or comes twice"
            outcome.position += len(frame.payload)
            if frame.flags & FrameFlag.STDERR:
                outcome.stderr += frame.payload
            else:
                outcome.stdout += frame.payload
            if ack:
                self.send(FrameType.ACK, frame.id, position=outcome.position)
        elif frame.type is FrameType.STDIN_ACK:
            outcome.stdin_taken = frame.position
            outcome.stdin_over = bool(frame.flags & FrameFlag.EOF)
        elif frame.type is FrameType.EXIT:
            said = numbers(frame)
            assert frame.position == outcome.position, "some output is missing"
            outcome.code, outcome.signal = said.get(Tag.CODE), said.get(Tag.SIGNAL)
            outcome.dropped = said.get(Tag.DROPPED, 0)
            outcome.timed_out = bool(frame.flags & FrameFlag.TIMED_OUT)

    def run(self, *args: str | bytes, **options: object) -> Outcome:
        return self.finish(self.start(*args, **options))  # type: ignore[arg-type]

    def sh(self, script: str, **options: object) -> Outcome:
        return self.run("/bin/sh", "-c", script, **options)

    def ask(
        self,
        kind: FrameType,
        fields: Iterable[tuple[Tag, bytes | int | str]],
        flags: FrameFlag = FrameFlag.NONE,
        position: int = 0,
        id: int | None = None,
    ) -> list[Frame]:
        """Send a request and return the frames of its answer."""
        id = self.new_id() if id is None else id
        self.send(kind, id, flags, position, wire.pack_fields(fields))
        return self.answer(id)

    def answer(self, id: int) -> list[Frame]:
        frames: list[Frame] = []
        while True:
            frame = self.receive_for(id)
            if frame.type is FrameType.ERROR:
                raise as_error(frame)
            frames.append(frame)
            if not frame.flags & FrameFlag.MORE:
                return frames

    def write(self, path: str, data: bytes, **options: object) -> wire.Entry:
        id = self.begin_write(path, **options)  # type: ignore[arg-type]
        for at in range(0, len(data), wire.FRAME_DATA_MAX_BYTES):
            part = data[at : at + wire.FRAME_DATA_MAX_BYTES]
            self.send(FrameType.WRITE_DATA, id, position=at, payload=part)
        self.send(FrameType.WRITE_END, id)
        return entries(self.answer(id))[0]

    def begin_write(
        self, path: str, user: str | None = None, mode: int | None = None, parents: bool = False
    ) -> int:
        fields: list[tuple[Tag, bytes | int | str]] = [(Tag.PATH, path)]
        if user is not None:
            fields.append((Tag.USER, user))
        if mode is not None:
            fields.append((Tag.MODE, mode))
        id = self.new_id()
        flags = FrameFlag.PARENTS if parents else FrameFlag.NONE
        self.send(FrameType.WRITE, id, flags, payload=wire.pack_fields(fields))
        return id

    def read(self, path: str, position: int = 0, length: int | None = None, **more: str) -> bytes:
        fields: list[tuple[Tag, bytes | int | str]] = [(Tag.PATH, path)]
        if length is not None:
            fields.append((Tag.LENGTH, length))
        fields += [(Tag[name.upper()], value) for name, value in more.items()]
        frames = self.ask(FrameType.READ, fields, position=position)
        return b"".join(frame.payload for frame in frames)

    def stat(self, path: str, flags: FrameFlag = FrameFlag.NONE) -> wire.Entry:
        return entries(self.ask(FrameType.STAT, [(Tag.PATH, path)], flags))[0]

    def list(self, path: str) -> list[wire.Entry]:
        return entries(self.ask(FrameType.LIST, [(Tag.PATH, path)]))


def is_readable(link: socket.socket, timeout: float) -> bool:
    """Wait for a packet; unlike select, for descriptors of any number."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(timeout * 1000))


def numbers(frame: Frame) -> dict[Tag, int]:
    fields = wire.unpack_fields(frame.payload)
    return {tag: value for tag, value in fields if isinstance(value, int)}


def entries(frames: Iterable[Frame]) -> list[wire.Entry]:
    fields = [item for frame in frames for item in wire.unpack_fields(frame.payload)]
    return [value for _, value in fields if isinstance(value, wire.Entry)]


def as_error(frame: Frame) -> AgentError:
    fields = dict(wire.unpack_fields(frame.payload))
    number, message = fields[Tag.ERRNO], fields[Tag.MESSAGE]
    assert isinstance(number, int) and isinstance(message, bytes)
    return AgentError(number, message.decode())


class Refused(Exception):
    """The launcher answered ok=0."""

    def __init__(self, answer: dict[str, str]) -> None:
        super().__init__(answer.get("message"))
        self.errno = int(answer["errno"])
        self.step = answer["step"]


@dataclass
class Launcher:
    """One launcher process and the node's connection to it."""

    directory: Path
    orphan_seconds: int = 60
    process: subprocess.Popen[bytes] = field(init=False)
    link: socket.socket = field(init=False)
    events: list[tuple[dict[str, str], int]] = field(
        default_factory=list[tuple[dict[str, str], int]]
    )
    agents: list[Agent] = field(default_factory=list[Agent])
    _sequence: int = 0
    _made: list[Path] = field(default_factory=list[Path])
    _uid: int = FIRST_UID

    def __post_init__(self) -> None:
        self.run_dir = self.directory / "run"
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [
                BINARY,
                "launcher",
                "--run-dir",
                self.run_dir,
                "--orphan-seconds",
                str(self.orphan_seconds),
            ]
        )
        self.connect()

    def connect(self) -> None:
        """Connect anew, as a node service that has just started."""
        path = self.run_dir / "launcher.sock"
        deadline = time.monotonic() + 10
        while True:
            self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                self.link.connect(os.fspath(path))
                return
            except (FileNotFoundError, ConnectionRefusedError):
                self.link.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def receive(self, timeout: float = 10) -> tuple[dict[str, str], int]:
        if not is_readable(self.link, timeout):
            raise TimeoutError("the launcher says nothing")
        packet, fds, _, _ = socket.recv_fds(self.link, wire.LAUNCHER_MAX_BYTES, 1)
        if not packet:
            raise EOFError("the launcher has closed the connection")
        return dict(wire.unpack_message(packet)), fds[0] if fds else -1

    def send(self, pairs: list[tuple[str, str | int]]) -> str:
        self._sequence += 1
        self.link.sendall(wire.pack_message([*pairs, ("seq", self._sequence)]))
        return str(self._sequence)

    def answer(self, seq: str) -> tuple[dict[str, str], int]:
        while True:
            message, fd = self.receive()
            if message.get("seq") != seq:
                self.events.append((message, fd))
                continue
            if message["ok"] != "1":
                raise Refused(message)
            return message, fd

    def ask(self, op: str, *pairs: tuple[str, str | int]) -> dict[str, str]:
        return self.answer(self.send([("op", op), *pairs]))[0]

    def hello(self) -> tuple[dict[str, str], dict[str, Agent]]:
        answer = self.ask("hello")
        agents: dict[str, Agent] = {}
        for _ in range(int(answer["sandboxes"])):
            message, fd = self.receive()
            assert message["event"] == "sandbox"
            agents[message["id"]] = self._adopt(fd, message["pid"])
        return answer, agents

    def event(self, name: str, timeout: float = 10) -> dict[str, str]:
        """Return the next event of this name."""
        for index, (message, _) in enumerate(self.events):
            if message.get("event") == name:
                del self.events[index]
                return message
        deadline = time.monotonic() + timeout
        while True:
            message, fd = self.receive(max(0.0, deadline - time.monotonic()))
            if message.get("event") == name:
                return message
            self.events.append((message, fd))

    def create_request(
        self,
        id: str,
        lowers: Iterable[str],
        limits: dict[str, str] | None = None,
        uid: int | None = None,
    ) -> list[tuple[str, str | int]]:
        """Make directories and cgroups for a sandbox; return the request that uses them."""
        unified, others = cgroup_roots()
        name = f"sandfleet-test-{os.getpid()}"
        if uid is None:
            uid = self._uid
            self._uid += IDS
        pairs: list[tuple[str, str | int]] = [
            ("op", "create"),
            ("id", id),
            ("uid", uid),
            ("ids", IDS),
        ]
        pairs += [("lower", lower) for lower in lowers]
        state = self.directory / "state" / id
        state.mkdir(parents=True, exist_ok=True)
        pairs += [("upper", f"{state}/upper"), ("work", f"{state}/work"), ("hostname", id[:60])]
        for root in (unified, *others):
            group = root / name / id
            group.mkdir(parents=True, exist_ok=True)
            if root == unified:
                pass_controllers_on(root, group.parent)
            self._made += [group]
            pairs.append(("cgroup2" if root == unified else "cgroup", os.fspath(group)))
            for file, value in (limits or {}).items():
                with suppress(OSError):
                    (group / file).write_text(value)
        return pairs

    def create(self, id: str, lowers: Iterable[str], **options: object) -> Agent:
        return self.started(self.create_request(id, lowers, **options))  # type: ignore[arg-type]

    def started(self, request: list[tuple[str, str | int]]) -> Agent:
        """Send a create request, and return the agent of the sandbox it makes."""
        answer, fd = self.answer(self.send(request))
        agent = self._adopt(fd, answer["pid"])
        agent.hello()
        return agent

    def _adopt(self, fd: int, pid: str) -> Agent:
        self.agents.append(Agent(socket.socket(fileno=fd), int(pid)))
        return self.agents[-1]

    def end(self, id: str) -> int:
        """Kill a sandbox, wait until it has gone, and return its wait status."""
        self.ask("kill", ("id", id))
        while True:
            event = self.event("exit")
            if event["id"] == id:
                self.ask("forget", ("id", id))
                return int(event["status"])

    def close(self) -> None:
        """End everything and leave nothing behind."""
        for agent in self.agents:
            agent.close()
        for _, fd in self.events:
            if fd >= 0:
                os.close(fd)
        if self.process.poll() is None:
            with suppress(OSError, EOFError, TimeoutError, Refused):
                self.ask("quit")
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.link.close()
        for group in reversed(self._made):
            remove_group(group)
        for parent in {group.parent for group in self._made}:
            with suppress(OSError):
                parent.rmdir()
        shutil.rmtree(self.directory / "state", ignore_errors=True)


def pass_controllers_on(root: Path, parent: Path) -> None:
    """Enable in the v2 groups below `parent` what this host has there; nothing where v1 has all."""
    offered = {"memory", "pids", "cpu"} & set((root / "cgroup.controllers").read_text().split())
    if offered:
        for group in (root, parent):
            (group / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in offered))


def remove_group(group: Path) -> None:
    """Remove a cgroup and those below it, once the last process has left."""
    deadline = time.monotonic() + 10
    while group.exists():
        for path in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
            with suppress(OSError):
                path.rmdir()
        with suppress(OSError):
            group.rmdir()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{group} does not empty")
        time.sleep(0.01)

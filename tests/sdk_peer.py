"""The other end of the SDK's protocol: a node and a scheduler that do as a test tells them.

Commands are real processes of this host and files are real files below a directory;
only the isolation is missing. What a real platform does seldom and by accident (an
answer that is lost, a frame that is lost, a node that starts anew) happens here on
request, so that the SDK's promises can be tested one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdk_peer_files import entry, told
from sdk_peer_streams import Command, Stream
from sdk_peer_usage import Usages

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, Delivery
from sandfleet_common.errors import NotFound, SandboxGone
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.messages.files import FileRequest
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.streams import DATA_BYTES, Flag

NODE = "peer"


@dataclass
class Peer:
    """A node and a scheduler. The fields below `faults` are a test's to set."""

    node_bus: Bus
    scheduler_bus: Bus
    root: Path
    group: asyncio.TaskGroup
    owned: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    sandboxes: dict[str, m.SandboxInfo] = field(default_factory=dict[str, m.SandboxInfo])
    commands: dict[str, Command] = field(default_factory=dict[str, Command])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    jobs: dict[str, m.JobEvent] = field(default_factory=dict[str, m.JobEvent])
    asked: Counter[str] = field(default_factory=Counter[str])
    """How often each subject was asked."""
    starts: Counter[str] = field(default_factory=Counter[str])
    """How often each command was really started."""
    attached: int = 0

    over: asyncio.Event = field(default_factory=asyncio.Event)

    # faults
    lose_answers: Counter[str] = field(default_factory=Counter[str])
    """So many answers on a subject come never, though the work is done."""
    lose_frames: set[int] = field(default_factory=set[int])
    """DATA frames that are lost on the way, by their number over all streams."""
    lose_events: bool = False
    """Job events are not told."""
    streams: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])
    sent_frames: int = 0
    sent_most_beyond_credit: int = 0
    """Most output that was under way beyond what the reader had taken."""

    def __post_init__(self) -> None:
        self.usages = Usages(self, NODE)

    def own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until the peer ends."""
        self.owned.append(self.group.create_task(work))
        return self.owned[-1]

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while not fact():
            await asyncio.sleep(0.01)

    def lose_node(self) -> None:
        """Let all streams be forgotten, as by a node service that starts anew."""
        for task in self.streams.values():
            task.cancel()
        self.streams.clear()

    # --------------------------------------------------------------- scheduler

    def new_sandbox(self, spec: m.SandboxSpec, **more: Any) -> m.SandboxInfo:
        info = m.SandboxInfo(
            sandbox_id=new_sandbox_id(NODE),
            node=NODE,
            state=State.RUNNING,
            spec=spec,
            created_at=time.time(),
            ready_at=time.time(),
            **more,
        )
        (self.root / info.sandbox_id).mkdir(parents=True)
        self.sandboxes[info.sandbox_id] = info
        return info

    async def create(self, body: m.SandboxCreate) -> m.SandboxInfo:
        if body.spec.environment != "debian":
            raise NotFound(f"no environment {body.spec.environment!r}; there is: debian")
        if body.key is None or body.key not in self.keys:
            info = self.new_sandbox(body.spec)
            self.keys[body.key or info.sandbox_id] = info.sandbox_id
            return info
        return self.sandboxes[self.keys[body.key]]

    async def get(self, body: m.SandboxGet) -> m.SandboxInfo:
        if body.sandbox_id not in self.sandboxes:
            raise NotFound(f"{body.sandbox_id} is not on record")
        return self.sandboxes[body.sandbox_id]

    async def list(self, body: m.SandboxList) -> m.SandboxPage:
        found = [i for i in self.sandboxes.values() if body.ended or i.state not in TERMINAL]
        found = [i for i in found if body.job_id in (None, i.job_id)]
        found = [i for i in found if body.state in (None, i.state)]
        return m.SandboxPage(sandboxes=sorted(found, key=lambda i: i.sandbox_id, reverse=True))

    async def take_job(self, delivery: Delivery) -> None:
        job = m.JobSubmit.decode(delivery.payload)
        await delivery.done()
        made: list[m.SandboxInfo] = []
        failed = [m.SlotFailure(slot=0, code="no_capacity", message="slot 0 never fits")]
        for slot in range(1, job.count):
            made.append(self.new_sandbox(job.spec, job_id=job.job_id, slot=slot))
            await self._tell_job(job, made, failed, made[-1:])

    async def _tell_job(
        self,
        job: m.JobSubmit,
        made: list[m.SandboxInfo],
        failed: list[m.SlotFailure],
        new: list[m.SandboxInfo],
    ) -> None:
        over = len(made) + len(failed) == job.count
        info = m.JobInfo(
            job_id=job.job_id,
            state=m.JobState.DONE if over else m.JobState.PLACING,
            count=job.count,
            ready=len(made),
            failed=len(failed),
            submitted_at=time.time(),
        )
        self.jobs[job.job_id] = m.JobEvent(job=info, ready=list(made), failed=failed)
        if not self.lose_events:
            event = m.JobEvent(job=info, ready=new, failed=failed)
            await self.scheduler_bus.publish(s.JOB_EVENTS, event, job=job.job_id)

    def _job(self, job_id: str) -> m.JobEvent:
        if job_id not in self.jobs:
            raise NotFound(f"{job_id} is not on record")
        return self.jobs[job_id]

    async def job_get(self, body: m.JobGet) -> m.JobInfo:
        return self._job(body.job_id).job

    async def job_slots(self, body: m.JobSlots) -> m.JobSlotsPage:
        event = self._job(body.job_id)
        ready = [i for i in event.ready if (i.slot or 0) >= body.from_slot][:2]
        more = ready and ready[-1] is not event.ready[-1]
        return m.JobSlotsPage(
            job=event.job,
            sandboxes=ready,
            failures=event.failed if body.from_slot == 0 else [],
            next_slot=(ready[-1].slot or 0) + 1 if more else None,
        )

    async def job_cancel(self, body: m.JobCancel) -> m.JobInfo:
        event = self._job(body.job_id)
        for info in event.ready:
            self.end(info.sandbox_id, "its job was cancelled", Origin.USER)
        job = event.job.model_copy(update={"state": m.JobState.CANCELLED})
        self.jobs[body.job_id] = event.model_copy(update={"job": job})
        return job

    def end(self, sandbox_id: str, reason: str, origin: Origin) -> m.SandboxInfo:
        info = self.sandboxes[sandbox_id]
        if info.state not in TERMINAL:
            update = {"state": State.STOPPED, "reason": reason, "origin": origin}
            info = info.model_copy(update={**update, "ended_at": time.time()})
            self.sandboxes[sandbox_id] = info
        return info

    # -------------------------------------------------------------------- node

    def _live(self, sandbox_id: str) -> m.SandboxInfo:
        info = self.sandboxes.get(sandbox_id)
        if info is None:
            raise NotFound(f"{sandbox_id} is not here")
        if info.state in TERMINAL:
            raise SandboxGone(f"{sandbox_id} has ended: {info.reason}", state=info.state)
        return info

    def _command(self, body: m.ExecWait | m.ExecSignal | m.ExecAttach | m.ExecResize) -> Command:
        self._live(body.sandbox_id)
        if body.exec_id not in self.commands:
            raise NotFound(f"no command {body.exec_id}")
        return self.commands[body.exec_id]

    async def stop(self, body: m.SandboxStop) -> m.SandboxInfo:
        return self.end(body.sandbox_id, body.reason, Origin.USER)

    async def extend(self, body: m.SandboxExtend) -> m.SandboxInfo:
        update = {"expires_at": time.time() + body.ttl_seconds}
        info = self._live(body.sandbox_id).model_copy(update=update)
        self.sandboxes[body.sandbox_id] = info
        return info

    async def exec_start(self, body: m.ExecStart) -> m.ExecState:
        self._live(body.sandbox_id)
        if body.exec_id not in self.commands:
            await self._launch(body)
        return await self._wait(self.commands[body.exec_id], 0, body.wait_seconds)

    async def _launch(self, body: m.ExecStart) -> None:
        self.starts[body.exec_id] += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *body.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=body.cwd or self.root / body.sandbox_id,
                env={**os.environ, **body.env},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise NotFound(f"there is no program {body.argv[0]!r}") from None
        command = self.commands[body.exec_id] = Command(body, process)
        if not body.stdin_open and process.stdin is not None:
            process.stdin.write(body.stdin or b"")
            process.stdin.close()
        self.own(self._follow(command))

    async def _follow(self, command: Command) -> None:
        async def pump(reader: asyncio.StreamReader | None, flag: Flag) -> None:
            while reader is not None and (data := await reader.read(DATA_BYTES)):
                await command.add(flag, data)

        try:
            async with asyncio.timeout(command.request.timeout_seconds):
                await asyncio.gather(
                    pump(command.process.stdout, Flag(0)),
                    pump(command.process.stderr, Flag.STDERR),
                )
                await command.process.wait()
        except TimeoutError:
            command.timed_out = True
            os.killpg(command.process.pid, signal.SIGKILL)
            await command.process.wait()
        async with command.change:
            command.ended_at = time.time()
            command.change.notify_all()

    async def _wait(self, command: Command, position: int, seconds: float) -> m.ExecState:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), command.change:
                await command.change.wait_for(lambda: command.ended_at is not None)
        output = [
            m.Chunk(stream="stderr" if flag & Flag.STDERR else "stdout", data=data)
            for flag, data in command.chunks(position, m.INLINE_BYTES)
        ]
        return command.state(position).model_copy(update={"output": output})

    async def exec_wait(self, body: m.ExecWait) -> m.ExecState:
        return await self._wait(self._command(body), body.position, body.wait_seconds)

    async def exec_signal(self, body: m.ExecSignal) -> m.ExecState:
        command = self._command(body)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.process.pid, body.signal)
        return command.state()

    async def exec_resize(self, body: m.ExecResize) -> m.Ok:
        self._command(body)
        return m.Ok()

    async def exec_list(self, body: m.ExecList) -> m.ExecPage:
        self._live(body.sandbox_id)
        found = [c for c in self.commands.values() if c.request.sandbox_id == body.sandbox_id]
        return m.ExecPage(commands=[c.state() for c in found])

    async def process_list(self, body: m.ProcessList) -> m.ProcessPage:
        self._live(body.sandbox_id)
        return m.ProcessPage(processes=[])

    async def exec_attach(self, body: m.ExecAttach) -> m.ExecState:
        command = self._command(body)
        self.attached += 1
        stream = Stream(self, command, body)
        self.streams[body.stream] = self.own(stream.run())
        return command.state(body.position)

    # ------------------------------------------------------------------- files

    def _path(self, body: FileRequest) -> Path:
        self._live(body.sandbox_id)
        return self.root / body.sandbox_id / body.path.lstrip("/")

    async def file_stat(self, body: m.FileStat) -> m.FileEntry:
        path = self._path(body)
        with told(body.path):
            return entry(path, body.path, follow=body.follow)

    async def file_list(self, body: m.FileList) -> m.FilePage:
        path = self._path(body)
        with told(body.path):
            names = sorted(path.iterdir())
            return m.FilePage(entries=[entry(p, f"{body.path}/{p.name}", False) for p in names])

    async def file_read(self, body: m.FileRead) -> m.FileData:
        path = self._path(body)
        with told(body.path), path.open("rb") as file:
            file.seek(body.position)
            data = file.read(body.length)
            return m.FileData(data=data, position=body.position, end=not file.read(1))

    async def file_write(self, body: m.FileWrite) -> m.Ok:
        path = self._path(body)
        part = self.root / f"upload-{body.upload}"
        with told(body.path):
            part.touch()
            with part.open("r+b") as file:
                file.seek(body.position)
                file.write(body.data)
            if body.end:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.rename(path)
                path.chmod(body.mode or 0o644)
        return m.Ok()

    async def file_mkdir(self, body: m.FileMakeDir) -> m.FileEntry:
        path = self._path(body)
        with told(body.path):
            path.mkdir(parents=body.parents, exist_ok=body.parents)
            return entry(path, body.path)

    async def file_remove(self, body: m.FileRemove) -> m.Ok:
        path = self._path(body)
        with told(body.path):
            path.unlink()
        return m.Ok()

    async def file_rename(self, body: m.FileRename) -> m.FileEntry:
        path = self._path(body)
        target = self.root / body.sandbox_id / body.target.lstrip("/")
        with told(body.path):
            return entry(path.rename(target), body.target)

    # ----------------------------------------------------------------- serving

    async def serve(self) -> None:
        """Answer everything; an answer that is to be lost is held for ever."""

        def losing(
            subject: s.Subject[Any, Any], handler: Callable[[Any], Awaitable[Any]]
        ) -> Callable[[Any], Awaitable[Any]]:
            async def answer(body: Any) -> Any:
                self.asked[subject.pattern] += 1
                reply = await handler(body)
                if self.lose_answers[subject.pattern] > 0:
                    self.lose_answers[subject.pattern] -= 1
                    await self.over.wait()
                return reply

            return answer

        for subject, handler in self._handlers().items():
            answer = losing(subject, handler)
            if "{node}" in subject.pattern:
                await self.node_bus.serve(subject, answer, node=NODE)
            else:
                await self.scheduler_bus.serve(subject, answer)
        await self.scheduler_bus.ensure_streams()
        self.own(self.scheduler_bus.take("SF_JOBS", s.JOB_CONSUMER, self.take_job, at_once=4))

    def _handlers(self) -> dict[s.Subject[Any, Any], Callable[[Any], Awaitable[Any]]]:
        return {
            s.SANDBOX_CREATE: self.create,
            s.SANDBOX_GET: self.get,
            s.SANDBOX_LIST: self.list,
            s.JOB_GET: self.job_get,
            s.JOB_SLOTS: self.job_slots,
            s.JOB_CANCEL: self.job_cancel,
            s.STOP: self.stop,
            s.EXTEND: self.extend,
            s.EXEC_START: self.exec_start,
            s.EXEC_WAIT: self.exec_wait,
            s.EXEC_SIGNAL: self.exec_signal,
            s.EXEC_RESIZE: self.exec_resize,
            s.EXEC_LIST: self.exec_list,
            s.EXEC_ATTACH: self.exec_attach,
            s.PROCESS_LIST: self.process_list,
            s.FILE_STAT: self.file_stat,
            s.FILE_LIST: self.file_list,
            s.FILE_READ: self.file_read,
            s.FILE_WRITE: self.file_write,
            s.FILE_MKDIR: self.file_mkdir,
            s.FILE_REMOVE: self.file_remove,
            s.FILE_RENAME: self.file_rename,
            **self.usages.handlers(),
        }


@asynccontextmanager
async def serving(node_bus: Bus, scheduler_bus: Bus, root: Path) -> AsyncGenerator[Peer]:
    """Run a peer while the block lasts."""
    async with asyncio.TaskGroup() as group:
        peer = Peer(node_bus, scheduler_bus, root, group)
        await peer.serve()
        try:
            yield peer
        finally:
            peer.over.set()
            for command in peer.commands.values():
                if command.ended_at is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(command.process.pid, signal.SIGKILL)
            for task in peer.owned:
                task.cancel()

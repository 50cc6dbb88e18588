"""The bus against a real nats-server: answers, failures, permissions, restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from servers import Connect, Servers

from sandfleet_common import subjects as s
from sandfleet_common.access import MAX_PAYLOAD_BYTES
from sandfleet_common.bus import Bus, BusSettings
from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Denied,
    NoCapacity,
    SandboxGone,
    TimedOut,
    Unreachable,
)
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    FileData,
    FileRead,
    JobGet,
    JobInfo,
    JobState,
    NodeDrain,
    Ok,
)

pytestmark = pytest.mark.integration


def job(job_id: str) -> JobInfo:
    return JobInfo(job_id=job_id, state=JobState.DONE, count=1, ready=1, failed=0, submitted_at=1.0)


async def answer(request: JobGet) -> JobInfo:
    return job(request.job_id)


async def test_a_question_gets_its_typed_answer(connect: Connect) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, answer, queue="q")
    await scheduler.flush()
    got = await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=5)
    assert got == job("j1")


async def test_many_questions_at_once_keep_their_answers_apart(connect: Connect) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, answer)
    await scheduler.flush()
    names = [f"j{n}" for n in range(200)]
    got = await asyncio.gather(
        *(trainer.ask(s.JOB_GET, JobGet(job_id=name), within=10) for name in names)
    )
    assert [info.job_id for info in got] == names


async def test_an_error_is_raised_again_at_the_asker(connect: Connect) -> None:
    async def refuse(request: JobGet) -> JobInfo:
        raise SandboxGone("it ended", state="stopped", sandbox=request.job_id)

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, refuse)
    await scheduler.flush()
    with pytest.raises(SandboxGone) as caught:
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=5)
    assert caught.value.fields == {"state": "stopped", "sandbox": "j1"}


async def test_fields_that_are_no_json_do_not_hide_an_error(connect: Connect) -> None:
    async def refuse(request: JobGet) -> JobInfo:
        raise NoCapacity("full", where=object())

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, refuse)
    await scheduler.flush()
    with pytest.raises(NoCapacity, match="full"):
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=5)


async def test_a_bug_in_a_handler_reaches_the_asker_without_its_details(connect: Connect) -> None:
    async def fail(request: JobGet) -> JobInfo:
        raise ZeroDivisionError("secret details")

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, fail)
    await scheduler.flush()
    with pytest.raises(Broken) as caught:
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=5)
    assert "secret" not in caught.value.message


async def test_nobody_listening_is_unreachable_at_once(connect: Connect) -> None:
    trainer = await connect("trainer")
    with pytest.raises(Unreachable, match="nobody answers"):
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=20)


async def test_a_slow_answer_times_out(connect: Connect) -> None:
    release = asyncio.Event()

    async def wait(request: JobGet) -> JobInfo:
        await release.wait()
        return job(request.job_id)

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, wait)
    await scheduler.flush()
    with pytest.raises(TimedOut):
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=0.1)
    release.set()


async def test_a_handler_has_a_deadline(connect: Connect) -> None:
    async def wait(request: JobGet) -> JobInfo:
        await asyncio.Event().wait()
        raise AssertionError

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, wait, within=0.1)
    await scheduler.flush()
    with pytest.raises(TimedOut, match="was not done"):
        await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=20)


async def test_a_trainer_that_asks_a_node_subject_is_denied_at_once(connect: Connect) -> None:
    drained = asyncio.Event()

    async def drain(request: NodeDrain) -> Ok:
        drained.set()
        return Ok()

    node, trainer = await connect("node"), await connect("trainer")
    await node.serve(s.NODE_DRAIN, drain, node="n1")
    await node.flush()
    with pytest.raises(Denied) as caught:
        await trainer.ask(s.NODE_DRAIN, NodeDrain(), within=20, node="n1")
    assert caught.value.fields["subject"] == "sf.v1.node.n1.drain"
    assert not drained.is_set()


async def test_a_trainer_cannot_listen_to_what_is_asked_of_nodes(connect: Connect) -> None:
    heard: list[str] = []

    async def overhear(subject: str, data: bytes) -> None:
        heard.append(subject)

    async def read(request: FileRead) -> FileData:
        return FileData(data=b"x", position=0, end=True)

    node, trainer, spy = await connect("node"), await connect("trainer"), await connect("trainer")
    await node.serve(s.FILE_READ, read, node="n1")
    await spy.subscribe_raw("sf.v1.node.>", overhear)
    await spy.subscribe_raw("_INBOX.>", overhear)
    await asyncio.gather(node.flush(), spy.flush())
    request = FileRead(sandbox_id="sb-n1-01h00000000000000000000000", path="/x")
    assert (await trainer.ask(s.FILE_READ, request, within=5, node="n1")).data == b"x"
    await spy.flush()
    assert heard == []


async def test_a_question_too_large_for_the_bus_is_a_bad_request(connect: Connect) -> None:
    trainer = await connect("trainer")
    with pytest.raises(BadRequest, match="bytes"):
        await trainer.ask(s.JOB_GET, JobGet(job_id="x" * (MAX_PAYLOAD_BYTES + 1)), within=5)


async def test_an_answer_too_large_for_the_bus_is_told(connect: Connect) -> None:
    async def shout(request: JobGet) -> JobInfo:
        return job("x" * (MAX_PAYLOAD_BYTES + 1))

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, shout)
    await scheduler.flush()
    with pytest.raises(Broken, match="too long"):
        await trainer.ask(s.JOB_GET, JobGet(job_id="j"), within=20)


async def test_a_wrong_password_is_denied(servers: Servers, log: Logger) -> None:
    settings = replace(servers.nats.settings("trainer"), password="wrong")
    with pytest.raises(Denied, match="trainer"):
        async with Bus.connect(settings, log):
            raise AssertionError


async def test_a_closing_bus_finishes_what_it_answers(
    servers: Servers, connect: Connect, log: Logger
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def wait(request: JobGet) -> JobInfo:
        started.set()
        await release.wait()
        return job(request.job_id)

    trainer = await connect("trainer")
    async with asyncio.TaskGroup() as group:
        async with Bus.connect(servers.nats.settings("scheduler"), log) as scheduler:
            await scheduler.serve(s.JOB_GET, wait)
            await scheduler.flush()
            asked = group.create_task(trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=20))
            await started.wait()
            asyncio.get_running_loop().call_later(0.1, release.set)
        assert (await asked).job_id == "j1"


async def test_both_sides_go_on_after_the_server_was_killed(
    servers: Servers, connect: Connect
) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    back = asyncio.Event()
    trainer.on_reconnect(back.set)
    await scheduler.serve(s.JOB_GET, answer)
    await scheduler.flush()
    await asyncio.to_thread(servers.nats.kill)
    await asyncio.to_thread(servers.nats.start)
    await back.wait()
    got = await trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=20)
    assert got.job_id == "j1"


async def test_a_question_that_may_be_repeated_survives_a_restart(
    servers: Servers, connect: Connect
) -> None:
    asked: asyncio.Queue[str] = asyncio.Queue()
    release = asyncio.Event()

    async def wait(request: JobGet) -> JobInfo:
        asked.put_nowait(request.job_id)
        await release.wait()
        return job(request.job_id)

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.serve(s.JOB_GET, wait)
    await scheduler.flush()
    async with asyncio.TaskGroup() as group:
        question = trainer.ask(s.JOB_GET, JobGet(job_id="j1"), within=25, resend=True)
        answered = group.create_task(question)
        await asked.get()
        await asyncio.to_thread(servers.nats.kill)
        # The first answer has nowhere to go.
        release.set()
        await asyncio.to_thread(servers.nats.start)
        await asked.get()
        assert (await answered).job_id == "j1"


async def test_closing_while_the_server_is_down_ends(
    servers: Servers, log: Logger, no_leaks: None
) -> None:
    async with Bus.connect(servers.nats.settings("trainer"), log):
        await asyncio.to_thread(servers.nats.kill)
    assert not servers.nats.is_running


async def test_no_server_is_unreachable_and_says_where(
    servers: Servers, log: Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet_common.bus.link.CONNECT_SECONDS", 0.5)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        async with Bus.connect(BusSettings(("nats://127.0.0.1:9",), "x", "y", "z"), log):
            raise AssertionError

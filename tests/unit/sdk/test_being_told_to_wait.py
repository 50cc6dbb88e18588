"""What an answer says about when to come again, and what a person is told of waiting."""

from __future__ import annotations

import httpx
import pytest

from sandfleet import calls
from sandfleet.calls import call, told_to_wait
from sandfleet.cli.jobs import waiting
from sandfleet.gateway_transport import foreign
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Busy, SandfleetError, Unreachable


@pytest.mark.parametrize(
    ("status", "header", "kind", "seconds"),
    [
        (429, "7", Busy, 7.0),
        (503, "12", Unreachable, 12.0),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", Unreachable, 0.0),
        (503, None, Unreachable, 0.0),
        (502, None, Unreachable, 0.0),
    ],
)
def test_a_proxys_answer_says_when_to_come_again(
    status: int, header: str | None, kind: type[SandfleetError], seconds: float
) -> None:
    headers = {} if header is None else {"Retry-After": header}
    problem = foreign(httpx.Response(status, headers=headers, text="<html>full</html>"))
    assert type(problem) is kind
    assert told_to_wait(problem) == seconds
    assert str(status) in problem.message and "full" in problem.message


class Answering:
    """A transport to something that refuses some times."""

    def __init__(self, *problems: SandfleetError) -> None:
        self.problems = list(problems)
        self.asked = 0

    async def call(self, subject: object, body: object, *, within: float) -> m.NodePage:
        self.asked += 1
        if self.problems:
            raise self.problems.pop(0)
        return m.NodePage(nodes=[])


@pytest.mark.parametrize("kind", [Busy, Unreachable])
async def test_who_is_told_to_wait_waits_so_long(
    kind: type[SandfleetError], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(calls.asyncio, "sleep", sleep)
    transport = Answering(kind("full", retry_after_seconds=3.0), kind("full"))
    await call(transport, s.NODE_LIST, m.NodeList())  # type: ignore[arg-type]
    assert transport.asked == 3
    assert 3.0 <= slept[0] <= 3.75
    assert slept[1] < 1


async def test_who_is_told_to_wait_for_longer_than_there_is_time_gives_up() -> None:
    transport = Answering(Busy("full", retry_after_seconds=1000.0))
    with pytest.raises(Busy):
        await call(transport, s.NODE_LIST, m.NodeList(), within=5)  # type: ignore[arg-type]
    assert transport.asked == 1


@pytest.mark.parametrize(
    ("ahead", "seconds", "said"),
    [
        (None, None, ""),
        (0, None, "waits for room"),
        (30, 95.0, "waits for room, 30 ahead, about 1m 35s left"),
        (None, 0.2, "about 1s left"),
    ],
)
def test_a_person_is_told_what_a_job_waits_for(
    ahead: int | None, seconds: float | None, said: str
) -> None:
    info = m.JobInfo(
        job_id="j",
        state=m.JobState.PLACING,
        count=1,
        ready=0,
        failed=0,
        submitted_at=0,
        ahead=ahead,
        expected_wait_seconds=seconds,
    )
    assert waiting(info) == said

"""pause, resume, stop, usage and top as their users meet them."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import termios
from collections.abc import AsyncGenerator, Generator

import pytest
import pytest_asyncio
from command_line import Cli
from sdk_peer import Peer
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common.states import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

RUN_7 = m.SandboxSpec(labels={"run": "7"})


@pytest.fixture
def cli(servers: Servers, peer: Peer) -> Cli:
    return Cli.on(servers)


def states(peer: Peer) -> list[State]:
    return [info.state for info in peer.sandboxes.values()]


def short(info: m.SandboxInfo) -> str:
    return info.sandbox_id[-8:]


async def test_named_sandboxes_are_paused_and_resumed(peer: Peer, cli: Cli) -> None:
    made = [peer.new_sandbox(m.SandboxSpec()) for _ in range(3)]
    done = await cli("pause", "--wait", "5s", short(made[0]), made[1].sandbox_id)
    assert (done.status, done.out, done.err) == (0, b"paused 2 sandboxes\n", "")
    assert states(peer) == [State.PAUSED, State.PAUSED, State.RUNNING]
    assert peer.usages.waited == [5, 5]
    assert "paused" in (await cli("ls")).out.decode()
    assert (await cli("resume", short(made[0]))).out == b"resumed 1 sandbox\n"
    assert states(peer) == [State.RUNNING, State.PAUSED, State.RUNNING]


async def test_all_of_a_job_or_with_a_label_are_paused(peer: Peer, cli: Cli) -> None:
    peer.new_sandbox(RUN_7, job_id="job-1")
    peer.new_sandbox(RUN_7)
    peer.new_sandbox(m.SandboxSpec(), job_id="job-1")
    assert (await cli("pause", "--label", "run=7")).out == b"paused 2 sandboxes\n"
    assert states(peer) == [State.PAUSED, State.PAUSED, State.RUNNING]
    acted = json.loads((await cli("resume", "--label", "run=7", "--job", "job-1", "--json")).out)
    assert acted == {"matched": 1, "done": 1, "failures": []}
    assert states(peer) == [State.RUNNING, State.PAUSED, State.RUNNING]


async def test_what_cannot_be_paused_is_told_and_the_rest_is(peer: Peer, cli: Cli) -> None:
    fine, warm = peer.new_sandbox(RUN_7), peer.new_sandbox(RUN_7)
    peer.usages.unpausable = {warm.sandbox_id}
    done = await cli("pause", short(fine), short(warm), "nothing")
    assert (done.status, done.out) == (1, b"paused 1 of 3 sandboxes\n")
    assert f"sandfleet: {warm.sandbox_id}: " in done.err
    assert "sandfleet: nothing: no sandbox is called 'nothing'" in done.err
    done = await cli("pause", "--label", "run=7")
    assert (done.status, done.out) == (1, b"paused 1 of 2 sandboxes\n")
    assert "a warm one is not paused" in done.err


async def test_nothing_that_matches_is_an_error(cli: Cli) -> None:
    done = await cli("pause", "--job", "job-none")
    assert (done.status, done.out) == (1, b"paused 0 sandboxes\n")
    assert done.err == "sandfleet: there is no live sandbox of job job-none\n"


async def test_options_that_would_do_nothing_are_refused(peer: Peer, cli: Cli) -> None:
    done = await cli("pause", "--label", "run=7", "--wait", "3s")
    assert (done.status, "--wait is for" in done.err) == (2, True)
    done = await cli("create", "--idle-action", "pause")
    assert (done.status, "needs --idle" in done.err) == (2, True)
    assert not peer.sandboxes


async def test_a_table_in_a_pipe_is_whole(peer: Peer, cli: Cli) -> None:
    info = peer.new_sandbox(RUN_7)
    narrow = Cli(cli.environment | {"COLUMNS": "40"})
    assert info.sandbox_id in (await narrow("ps", "--full")).out.decode()


@pytest.mark.parametrize("command", ["pause", "resume", "stop"])
async def test_sandboxes_are_named_one_way(cli: Cli, command: str) -> None:
    assert (await cli(command)).status == 2
    assert (await cli(command, "name", "--label", "a=b")).status == 2


async def test_those_with_a_label_are_ended(peer: Peer, cli: Cli) -> None:
    for spec in (RUN_7, RUN_7, m.SandboxSpec()):
        peer.new_sandbox(spec)
    assert (await cli("stop", "--label", "run=7")).out == b"ended 2 sandboxes\n"
    assert states(peer) == [State.STOPPED, State.STOPPED, State.RUNNING]


async def test_create_takes_what_a_pause_needs_to_know(peer: Peer, cli: Cli) -> None:
    options = ("--idle", "5m", "--idle-action", "pause", "--paused-ttl", "2h")
    await cli("create", *options, "--open-files", "1024", "--qos", "best-effort")
    (info,) = peer.sandboxes.values()
    spec = info.spec
    assert (spec.idle_action, spec.paused_ttl_seconds) == (m.IdleAction.PAUSE, 7200)
    assert (spec.resources.open_files, spec.qos) == (1024, m.Qos.BEST_EFFORT)


# -------------------------------------------------------------- usage and top


@pytest_asyncio.fixture
async def two(peer: Peer) -> AsyncGenerator[tuple[m.SandboxInfo, m.SandboxInfo]]:
    """Return two sandboxes: the first uses more CPU, the second more memory."""
    first, second = peer.new_sandbox(RUN_7), peer.new_sandbox(RUN_7)
    for info, cores, memory in ((first, 0.75, m.MIB), (second, 0.25, m.GIB)):
        peer.usages.used[info.sandbox_id] = m.SandboxUsage(
            sandbox_id=info.sandbox_id,
            state=State.RUNNING,
            at=1,
            labels={"run": "7"},
            cpu_seconds=2,
            cpu_cores=cores,
            memory_bytes=memory,
            memory_limit_bytes=2 * m.GIB,
        )
    yield first, second


async def test_usage_says_what_one_has_used(
    cli: Cli, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    shown = (await cli("usage", short(two[1]))).out.decode()
    assert shown.startswith(two[1].sandbox_id)
    assert "2.00 s, now 0.25 cores" in shown
    assert "1.0 GiB of 2.0 GiB" in shown
    (known,) = json.loads((await cli("usage", "--json", short(two[0]))).out)
    assert (known["cpu_cores"], known["memory_bytes"]) == (0.75, m.MIB)


async def test_top_in_a_pipe_prints_once_and_sorts(
    cli: Cli, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    lines = (await cli("top")).out.decode().splitlines()
    assert lines[0].startswith("2 sandboxes: 2 running, 0 paused, 1.00 cores, 1.0G on 1 node")
    assert [line.split()[0] for line in lines[-2:]] == [short(two[0]), short(two[1])]
    assert "run=7" in lines[-1]
    lines = (await cli("top", "--order", "memory", "-n", "1")).out.decode().splitlines()
    assert lines[-1].split()[0] == short(two[1])
    assert short(two[0]) not in "\n".join(lines)


async def test_top_as_json_has_sandboxes_and_sums(
    cli: Cli, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    found = json.loads((await cli("top", "--json", "--node", "peer")).out)
    assert [u["sandbox_id"] for u in found["sandboxes"]] == [i.sandbox_id for i in two]
    assert (found["nodes"][0]["count"], found["silent"]) == (2, [])


async def test_top_of_a_node_that_is_not_there_says_so(cli: Cli) -> None:
    done = await cli("top", "--node", "nowhere")
    assert (done.status, done.err) == (1, "sandfleet: no node 'nowhere' is alive\n")


class Terminal:
    """A terminal with `sandfleet top` on it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        os.set_blocking(self.ours, False)
        termios.tcsetwinsize(self.theirs, (20, 80))
        self.before = termios.tcgetattr(self.theirs)
        self.seen = ""

    def read(self) -> str:
        """Take in what was written; return all of it."""
        while True:
            try:
                self.seen += os.read(self.ours, 65536).decode()
            except BlockingIOError:
                return self.seen

    async def until(self, pattern: str) -> str:
        """Wait until something was shown since the last time; return what was."""
        while not re.search(pattern, self.read(), re.DOTALL):
            await asyncio.sleep(0.02)
        seen, self.seen = self.seen, ""
        return seen

    def press(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def screen() -> Generator[Terminal]:
    made = Terminal()
    yield made
    made.close()


async def start_top(cli: Cli, screen: Terminal, *options: str) -> asyncio.subprocess.Process:
    environment = {k: v for k, v in cli.environment.items() if k != "COLUMNS"} | {"TERM": "xterm"}
    live = Cli(environment)
    return await live.start("top", *options, stdin=screen.theirs, stdout=screen.theirs)


async def test_top_on_a_terminal_is_live_and_sorts_by_keys(
    peer: Peer, cli: Cli, screen: Terminal, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    first, second = short(two[0]), short(two[1])
    process = await start_top(cli, screen, "--interval", "0.2s")
    shown = await screen.until(f"{first}.*{second}")
    assert "\x1b[?1049h" in shown, "the screen of its own"
    screen.press(b"m")
    await screen.until(f"by memory.*{second}.*{first}")
    peer.sandboxes[two[1].sandbox_id] = two[1].model_copy(update={"state": State.PAUSED})
    await screen.until(r"1 running, 1 paused.*paused")
    third = peer.new_sandbox(m.SandboxSpec())
    await screen.until(f"3 sandboxes.*{short(third)}")
    screen.press(b"\x1b[B")
    screen.press(b"q")
    assert await process.wait() == 0
    assert "\x1b[?1049l" in screen.read(), "the screen from before"
    assert termios.tcgetattr(screen.theirs) == screen.before


async def test_top_goes_on_when_the_platform_is_away_for_a_moment(
    peer: Peer, cli: Cli, screen: Terminal, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    process = await start_top(cli, screen, "--interval", "0.2s", "--node", "peer")
    await screen.until(short(two[0]))
    peer.usages.node_is_listed = False
    await screen.until("no node 'peer' is alive")
    peer.usages.node_is_listed = True
    while "no node" in screen.read():
        screen.seen = ""
        await asyncio.sleep(0.5)
    screen.press(b"q")
    assert await process.wait() == 0


async def test_an_interrupted_top_leaves_the_terminal_as_it_was(
    cli: Cli, screen: Terminal, two: tuple[m.SandboxInfo, m.SandboxInfo]
) -> None:
    process = await start_top(cli, screen)
    await screen.until(short(two[0]))
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    assert "\x1b[?1049l" in screen.read()
    assert termios.tcgetattr(screen.theirs) == screen.before
    assert process.stderr is not None
    assert await process.stderr.read() == b""

"""Whatever a command does to its sandbox's limits, the agent goes on answering."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from native.driver import Agent, AgentError, Launcher, Outcome, Refused

from sandfleet_common.wire import FrameFlag, FrameType, Tag, pack_fields

pytestmark = pytest.mark.root
MIB = 1024**2


def kill_tree(agent: Agent, id: int) -> None:
    agent.send(
        FrameType.SIGNAL, id, FrameFlag.TREE, payload=pack_fields([(Tag.SIGNAL, signal.SIGKILL)])
    )


def end(agent: Agent, id: int) -> None:
    """Kill everything a command has started, and wait until the agent has told its end."""
    kill_tree(agent, id)
    agent.finish(id)


def assert_serves(agent: Agent) -> None:
    """Commands, terminals and files work."""
    assert agent.run("echo", "here").stdout == b"here\n"
    assert agent.run("tty", pty=(24, 80)).stdout.startswith(b"/dev/pts/")
    agent.write("/root/file", b"text")
    assert agent.read("/root/file") == b"text"


def open_until(number: int) -> str:
    """Return a script that opens descriptors up to a number."""
    return f'i=3; while [ $i -lt {number} ]; do eval "exec $i</dev/null"; i=$((i+1)); done'


def limited(new_agent: Callable[..., Agent], file: str, value: str) -> Agent:
    """Return a sandbox with one limit, whichever hierarchy has it."""
    names = {file: value}
    if file == "memory.max":
        names |= {"memory.limit_in_bytes": value, "memory.memsw.limit_in_bytes": value}
    return new_agent(names)


def test_a_fork_bomb_ends_at_its_limit_and_can_be_killed(new_agent: Callable[..., Agent]) -> None:
    agent = limited(new_agent, "pids.max", "40")
    script = "sh -c 'while true; do sleep 60 & done'; read forever"
    bombs = [agent.start("/bin/sh", "-c", script, stdin=True)]
    with pytest.raises(AgentError) as caught:  # its shell may have died and left some room
        for _ in range(100):
            bombs.append(agent.start("sleep", "60"))
            agent.absorb(Outcome(), agent.receive_for(bombs[-1]))
    assert caught.value.errno == 11
    bombs.pop()
    agent.write("/root/during", b"files need no process")
    for id in bombs:
        end(agent, id)
    assert_serves(agent)


def test_a_memory_hog_goes_and_the_agent_stays(new_agent: Callable[..., Agent]) -> None:
    agent = limited(new_agent, "memory.max", str(32 * MIB))
    outcome = agent.sh("x=a; while true; do x=$x$x; done")
    assert outcome.signal == signal.SIGKILL or outcome.code not in (0, None)
    assert_serves(agent)


def test_many_small_processes_go_before_the_agent(new_agent: Callable[..., Agent]) -> None:
    agent = limited(new_agent, "memory.max", str(24 * MIB))
    id = agent.start("/bin/sh", "-c", "for i in $(seq 400); do sleep 60 & done; wait")
    agent.receive_for(id)
    hog = agent.start("/bin/sh", "-c", "x=a; while true; do x=$x$x; done")
    assert agent.finish(hog).code != 0
    end(agent, id)
    assert_serves(agent)


def test_a_command_is_killed_before_the_agent_when_memory_runs_out(agent: Agent) -> None:
    score = int(agent.run("cat", "/proc/self/oom_score_adj").stdout)
    assert score >= int(Path(f"/proc/{agent.pid}/oom_score_adj").read_text()) + 500 or score == 1000


def test_nobody_inside_is_exempt_from_the_end_of_memory(agent: Agent) -> None:
    outcome = agent.sh("echo -1000 > /proc/self/oom_score_adj")
    assert outcome.code != 0
    assert int(Path(f"/proc/{agent.pid}/oom_score_adj").read_text()) >= 0


def test_a_flood_of_output_leaves_room_for_others(new_agent: Callable[..., Agent]) -> None:
    agent = limited(new_agent, "memory.max", str(32 * MIB))
    floods = [agent.start("cat", "/dev/zero", limit=MIB) for _ in range(8)]
    assert_serves(agent)
    for id in floods:
        end(agent, id)
    assert_serves(agent)


def test_as_many_files_are_open_as_the_request_says(launcher: Launcher) -> None:
    request = [*launcher.create_request("sb-files", ["base"]), ("nofile", 100)]
    agent = launcher.started(request)
    outcome = agent.sh(f"ulimit -n $(ulimit -Hn); ulimit -n; {open_until(200)}")
    assert outcome.stdout == b"100\n"
    assert outcome.code != 0
    assert_serves(agent)


def test_descriptors_of_a_hog_leave_the_agent_its_own(agent: Agent) -> None:
    hogs = [
        agent.start(
            "/bin/sh",
            "-c",
            f"ulimit -n 4096; {open_until(4000)}; echo full; sleep 60",
        )
        for _ in range(3)
    ]
    assert_serves(agent)
    for id in hogs:
        end(agent, id)
    assert_serves(agent)


def test_terminals_of_one_sandbox_are_few(agent: Agent) -> None:
    assert b"max=512" in agent.sh("grep devpts /proc/self/mounts").stdout


def test_a_file_grows_no_longer_than_the_request_says(launcher: Launcher) -> None:
    request = [*launcher.create_request("sb-size", ["base"]), ("fsize", MIB)]
    agent = launcher.started(request)
    outcome = agent.sh("dd if=/dev/zero of=/root/big bs=64k count=64; stat -c %s /root/big")
    assert outcome.stdout == b"%d\n" % MIB
    agent.write("/root/other", b"x" * (MIB + 1))
    assert agent.stat("/root/other").size_bytes == MIB + 1
    assert_serves(agent)


@pytest.mark.parametrize("value", ["0", "x", "-1"])
def test_a_file_size_that_is_none_is_refused(launcher: Launcher, value: str) -> None:
    with pytest.raises(Refused, match="fsize="):
        launcher.started([*launcher.create_request("sb-size", ["base"]), ("fsize", value)])

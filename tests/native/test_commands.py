"""Commands in a sandbox, through the real launcher and agent."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable

import pytest
from native.driver import Agent, AgentError, Outcome

from sandfleet_common import wire
from sandfleet_common.wire import FrameFlag, FrameType, ProcessEntry, Tag

pytestmark = pytest.mark.root


def processes(agent: Agent) -> list[ProcessEntry]:
    frames = agent.ask(FrameType.PS, [])
    fields = [item for frame in frames for item in wire.unpack_fields(frame.payload)]
    return [value for _, value in fields if isinstance(value, ProcessEntry)]


def sleepers(agent: Agent) -> int:
    """Count the processes that have got as far as being `sleep`."""
    return sum(p.arguments[:1] == (b"sleep",) for p in processes(agent))


def until(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def send_signal(agent: Agent, id: int, number: int, tree: bool = False) -> None:
    flags = FrameFlag.TREE if tree else FrameFlag.NONE
    agent.send(FrameType.SIGNAL, id, flags, payload=wire.pack_fields([(Tag.SIGNAL, number)]))


def test_a_command_gives_both_streams_and_its_code(agent: Agent) -> None:
    outcome = agent.sh("echo out; echo err >&2; exit 3")
    assert (outcome.stdout, outcome.stderr, outcome.code) == (b"out\n", b"err\n", 3)


def test_a_command_killed_by_a_signal_says_which(agent: Agent) -> None:
    assert agent.sh("kill -15 $$").signal == 15


def test_a_program_is_looked_up_in_the_callers_path(agent: Agent) -> None:
    assert agent.run("probe", env=["PATH=/nowhere:/bin"]).code == 0


def test_defaults_are_set_where_the_caller_sets_none(agent: Agent) -> None:
    outcome = agent.run("env", env=["HOME=/elsewhere", "X=1=2"], user="user")
    assert dict(line.split("=", 1) for line in outcome.stdout.decode().splitlines()) == {
        "HOME": "/elsewhere",
        "X": "1=2",
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/sh",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games",
    }


@pytest.mark.parametrize("user", ["user", "1000"])
def test_a_user_has_its_ids_groups_and_home(agent: Agent, user: str) -> None:
    assert agent.sh("id; pwd", user=user).stdout == (
        b"uid=1000(user) gid=1000(user) groups=1000(user),1001(extra)\n/home/user\n"
    )


def test_a_number_without_an_entry_is_a_user_of_its_own_group(agent: Agent) -> None:
    assert agent.sh("id -u; id -g; pwd", user="4242").stdout == b"4242\n4242\n/\n"


@pytest.mark.parametrize(
    ("args", "options", "number", "message"),
    [
        (["nope"], {}, 2, "no such program: nope"),
        (["/etc/passwd"], {}, 13, "/etc/passwd may not be executed by this user"),
        (["true"], {"cwd": "/x"}, 2, "working directory /x does not exist"),
        (["true"], {"user": "ghost"}, 2, "no such user: ghost"),
        (["true"], {"user": "70000"}, 22, "cannot become user 70000: Invalid argument"),
        ([], {}, 22, "a command needs at least one argument"),
    ],
    ids=["program", "permission", "directory", "user", "id", "nothing"],
)
def test_a_start_that_fails_says_why(
    agent: Agent, args: list[str], options: dict[str, str], number: int, message: str
) -> None:
    with pytest.raises(AgentError, match=f"^{message}$") as caught:
        agent.run(*args, **options)
    assert caught.value.errno == number


def test_a_script_without_an_interpreter_line_is_given_to_the_shell(agent: Agent) -> None:
    agent.write("/tmp/script", b"echo $1", mode=0o755)
    assert agent.run("/tmp/script", "hello").stdout == b"hello\n"


def test_the_same_id_starts_a_command_once(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "echo once >> /tmp/log")
    agent.finish(id, forget=False)
    agent.start("/bin/sh", "-c", "echo once >> /tmp/log", id=id)
    kinds = [agent.receive_for(id).type for _ in range(2)]
    assert kinds == [FrameType.STARTED, FrameType.EXIT]
    assert agent.read("/tmp/log") == b"once\n"


def test_input_is_delivered_in_order_and_bytes_known_are_skipped(agent: Agent) -> None:
    id = agent.start("cat", stdin=True)
    agent.send(FrameType.STDIN, id, position=0, payload=b"abc")
    agent.send(FrameType.STDIN, id, position=1, payload=b"bcd")
    agent.send(FrameType.STDIN, id, position=9, payload=b"a gap")
    agent.send(FrameType.STDIN, id, FrameFlag.EOF, position=4, payload=b"e")
    outcome = agent.finish(id)
    assert (outcome.stdout, outcome.stdin_taken) == (b"abcde", 5)


def test_input_larger_than_any_buffer_arrives_whole(agent: Agent) -> None:
    data = bytes(range(256)) * 8192
    id = agent.start("sha256sum", stdin=True)
    outcome, sent = Outcome(), 0
    while sent < len(data):
        if sent - outcome.stdin_taken + 65536 <= wire.WINDOW_BYTES:
            agent.send(FrameType.STDIN, id, position=sent, payload=data[sent : sent + 65536])
            sent += 65536
        else:
            agent.absorb(outcome, agent.receive_for(id))
    agent.send(FrameType.STDIN, id, FrameFlag.EOF, position=sent)
    assert hashlib.sha256(data).hexdigest().encode() in agent.finish(id).stdout


def test_a_reader_that_goes_away_ends_its_input(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "exec <&-; sleep 0.2", stdin=True)
    time.sleep(0.1)
    agent.send(FrameType.STDIN, id, position=0, payload=b"for nobody")
    outcome = agent.finish(id)
    assert outcome.stdin_over and outcome.stdin_taken == 0


def test_without_input_a_command_reads_the_end_at_once(agent: Agent) -> None:
    assert agent.run("cat").code == 0


def test_a_terminal_has_a_size_and_a_controlling_process(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "stty size; tty; test -w /dev/tty && echo ok", pty=(33, 99))
    assert agent.finish(id).stdout == b"33 99\r\n/dev/pts/0\r\nok\r\n"


def test_a_terminal_is_resized_and_takes_control_characters(agent: Agent) -> None:
    script = "echo ready; read x; stty size; sleep 60"
    id = agent.start("/bin/sh", "-c", script, pty=(24, 80))
    outcome = Outcome()
    while b"ready" not in outcome.stdout:
        agent.absorb(outcome, agent.receive_for(id))
    agent.send(FrameType.RESIZE, id, payload=wire.pack_fields([(Tag.ROWS, 50), (Tag.COLS, 132)]))
    agent.send(FrameType.STDIN, id, position=0, payload=b"\n")
    while b"50 132" not in outcome.stdout:
        agent.absorb(outcome, agent.receive_for(id))
    agent.send(FrameType.STDIN, id, position=1, payload=b"\x03")
    while agent.receive_for(id).type is not FrameType.EXIT:
        pass


def test_the_end_of_input_on_a_terminal_is_a_character(agent: Agent) -> None:
    id = agent.start("cat", pty=(24, 80))
    agent.send(FrameType.STDIN, id, FrameFlag.EOF, position=0, payload=b"line\n")
    assert agent.finish(id).stdout == b"line\r\nline\r\n"


def test_a_command_that_leaves_a_daemon_ends_without_it(agent: Agent) -> None:
    started = time.monotonic()
    outcome = agent.sh("(sleep 30; echo late) & echo early")
    assert outcome.stdout == b"early\n" and time.monotonic() - started < 5
    assert until(lambda: any(p.arguments[:1] == (b"sleep",) for p in processes(agent)))


def test_failed_starts_with_open_input_leave_the_agent_well(agent: Agent) -> None:
    for _ in range(20):
        id = agent.start("nosuch", stdin=True)
        agent.send(FrameType.STDIN, id, FrameFlag.EOF, position=0, payload=b"x" * 5000)
        with pytest.raises(AgentError) as refused:
            agent.finish(id)
        assert refused.value.errno == errno.ENOENT
    assert agent.sh("echo well").stdout == b"well\n"


def test_a_daemon_may_go_on_writing_to_its_commands_output(agent: Agent) -> None:
    script = "while echo tick; do sleep 0.02; done; touch /tmp/broken"
    assert b"early\n" in agent.sh(f"({script}) & echo early").stdout
    # More than a pipe holds, so somebody must have read it.
    outcome = agent.sh("(head -c 300000 /dev/zero; touch /tmp/written) & exit 0")
    assert outcome.code == 0
    assert until(lambda: agent.sh("test -e /tmp/written").code == 0)
    assert agent.sh("test -e /tmp/broken").code == 1


def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(agent: Agent) -> None:
    outcome = agent.sh("echo part; setsid sleep 60 & (sleep 60 &) ; sleep 60", timeout_ms=300)
    assert (outcome.timed_out, outcome.signal, outcome.stdout) == (True, 9, b"part\n")
    assert until(lambda: processes(agent) == [])


def test_a_time_limit_stands_still_between_hold_and_go(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "read line; sleep 60", timeout_ms=300, stdin=True)
    agent.ask(FrameType.HOLD, [])
    slow = agent.sh("sleep 0.6; echo through")
    assert slow.stdout == b"through\n"
    assert len(processes(agent)) == 1
    agent.send(FrameType.GO)
    assert agent.finish(id).timed_out


def test_a_hello_lets_time_limits_count_again(agent: Agent) -> None:
    agent.ask(FrameType.HOLD, [])
    id = agent.start("/bin/sleep", "60", timeout_ms=100)
    agent.hello()
    assert agent.finish(id).timed_out


def test_a_tree_signal_reaches_daemons_after_their_command_has_ended(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & exit 0")
    agent.finish(id, forget=False)
    [daemon] = processes(agent)
    assert daemon.command == id
    send_signal(agent, id, 9, tree=True)
    assert until(lambda: processes(agent) == [])


def test_a_tree_signal_other_than_kill_reaches_every_process(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "setsid sleep 60 & sleep 60; echo gone")
    assert until(lambda: sleepers(agent) == 2)
    send_signal(agent, id, 15, tree=True)
    assert agent.finish(id).signal == 15
    assert until(lambda: processes(agent) == [])


def test_a_signal_reaches_the_foreground_group_only(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "setsid sleep 60 & trap 'echo caught; exit 5' TERM; sleep 60")
    assert until(lambda: sleepers(agent) == 2)
    send_signal(agent, id, 15)
    outcome = agent.finish(id, forget=False)
    assert (outcome.stdout, outcome.code) == (b"caught\n", 5)
    assert len(processes(agent)) == 1


def test_orphans_are_reaped(agent: Agent) -> None:
    agent.sh("for i in $(seq 50); do (true & ) ; done")
    assert until(lambda: processes(agent) == [])


def test_output_beyond_the_limit_is_counted_and_dropped(agent: Agent) -> None:
    outcome = agent.sh("head -c 1000000 /dev/zero", limit=1000)
    assert (len(outcome.stdout), outcome.dropped, outcome.code) == (1000, 999000, 0)


def test_a_limit_of_nothing_keeps_nothing(agent: Agent) -> None:
    outcome = agent.sh("echo x", limit=0)
    assert (outcome.stdout, outcome.dropped) == (b"", 2)


def test_large_output_arrives_whole_and_in_order(agent: Agent) -> None:
    outcome = agent.sh("seq 1 400000")
    assert outcome.stdout == b"".join(b"%d\n" % i for i in range(1, 400001))


def test_streams_that_alternate_byte_by_byte_keep_their_order(agent: Agent) -> None:
    outcome = agent.sh("i=0; while [ $i -lt 3000 ]; do echo a; echo b >&2; i=$((i+1)); done")
    assert outcome.stdout == b"a\n" * 3000 and outcome.stderr == b"b\n" * 3000


def test_output_that_nobody_acknowledges_stops_the_writer(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "head -c 4000000 /dev/zero; echo done >&2")
    outcome = Outcome()
    with pytest.raises(TimeoutError):
        while True:
            agent.absorb(outcome, agent.receive(0.5), ack=False)
    assert outcome.position == wire.WINDOW_BYTES
    agent.send(FrameType.ACK, id, position=outcome.position)
    while True:
        frame = agent.receive_for(id)
        agent.absorb(outcome, frame)
        if frame.type is FrameType.EXIT:
            break
    assert (len(outcome.stdout), outcome.stderr) == (4000000, b"done\n")


def test_other_commands_go_on_while_one_is_held_up(agent: Agent) -> None:
    held = agent.start("cat", "/dev/zero")
    time.sleep(0.2)
    assert agent.sh("echo free").stdout == b"free\n"
    send_signal(agent, held, 9)


def test_a_command_tells_what_it_has_used(agent: Agent) -> None:
    id = agent.start("/bin/sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    while (frame := agent.receive_for(id)).type is not FrameType.EXIT:
        pass
    fields = dict(wire.unpack_fields(frame.payload))
    cpu_us, rss_bytes = fields[Tag.CPU_US], fields[Tag.RSS_BYTES]
    assert isinstance(cpu_us, int) and cpu_us > 1000
    assert isinstance(rss_bytes, int) and rss_bytes > 100_000


def test_a_full_process_table_is_told_as_such(new_agent: Callable[..., Agent]) -> None:
    agent = new_agent({"pids.max": "5"})
    agent.sh("sleep 60 & sleep 60 & sleep 60 & exit 0")
    held = agent.start("sleep", "60")
    with pytest.raises(AgentError, match="the sandbox is at its process limit") as caught:
        agent.run("true")
    assert caught.value.errno == 11
    assert agent.read("/etc/secret") == b"for root only"  # files need no process
    send_signal(agent, held, 9, tree=True)


def test_a_fork_bomb_is_ended_with_its_command(new_agent: Callable[..., Agent]) -> None:
    agent = new_agent({"pids.max": "64"})
    outcome = agent.sh("b() { b | b & }; b; sleep 60", timeout_ms=1000, limit=10000)
    assert outcome.timed_out
    assert until(lambda: processes(agent) == [])
    assert agent.sh("echo well").stdout == b"well\n"


def test_the_agent_starts_more_commands_than_it_has_records_for(agent: Agent) -> None:
    ids = [agent.start("true") for _ in range(wire.PROCESSES_MAX)]
    for id in ids:
        agent.finish(id, forget=False)
    with pytest.raises(AgentError, match="commands are on record"):
        agent.run("true")
    for id in ids:
        agent.send(FrameType.FORGET, id)
    assert agent.run("true").code == 0

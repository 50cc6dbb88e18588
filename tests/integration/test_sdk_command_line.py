"""The command `sandfleet` as its users meet it: output, errors and exit status."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import termios
from pathlib import Path

import pytest
from command_line import Cli, Done
from sdk_peer import Peer
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common.states import Origin, State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def cli(servers: Servers, peer: Peer) -> Cli:
    return Cli.on(servers)


@pytest.fixture
def sandbox(peer: Peer) -> m.SandboxInfo:
    return peer.new_sandbox(m.SandboxSpec())


# ------------------------------------------------------------- run, exec, logs


async def test_run_passes_output_input_and_exit_code_on(peer: Peer, cli: Cli) -> None:
    done = await cli("run", "--", "sh", "-c", "cat; echo err >&2; exit 7", given=b"\x00bytes\xff")
    assert done == Done(7, b"\x00bytes\xff", "err\n")
    assert [info.state for info in peer.sandboxes.values()] == [State.STOPPED]


async def test_run_keeps_its_sandbox_when_asked(peer: Peer, cli: Cli) -> None:
    done = await cli("run", "--keep", "--", "true")
    assert done.err.strip() in peer.sandboxes
    assert [info.state for info in peer.sandboxes.values()] == [State.RUNNING]


async def test_options_after_the_command_are_the_commands(cli: Cli) -> None:
    assert (await cli("run", "echo", "--help", "-n")).out == b"--help -n\n"


async def test_run_says_what_the_sandbox_should_be(peer: Peer, cli: Cli) -> None:
    options = ("--cpu", "0.5", "--memory", "64m", "--ttl", "10m", "--label", "a=b=c")
    await cli("run", *options, "--env", "NAME=value", "--", "true")
    (info,) = peer.sandboxes.values()
    assert info.spec.resources == m.Resources(cpu=0.5, memory_bytes=64 * m.MIB)
    assert (info.spec.ttl_seconds, info.spec.labels) == (600, {"a": "b=c"})
    assert info.spec.env == {"NAME": "value"}


async def test_a_signal_of_the_command_is_told_as_shells_do(cli: Cli) -> None:
    assert (await cli("run", "--", "sh", "-c", "kill -TERM $$")).status == 128 + 15


async def test_a_program_that_does_not_exist_is_127(cli: Cli) -> None:
    done = await cli("run", "--", "no-such-program")
    assert done.status == 127
    assert "no-such-program" in done.err


async def test_a_platform_that_fails_is_125_with_one_sentence(cli: Cli) -> None:
    done = await cli("run", "-e", "nowhere", "--", "true")
    assert done.status == 125
    assert done.err.startswith("sandfleet: no environment 'nowhere'")
    assert "Traceback" not in done.err


async def test_a_limit_of_zero_is_refused_by_name(peer: Peer, cli: Cli) -> None:
    done = await cli("run", "--memory", "0", "--", "true")
    assert (done.status, "sandfleet: --memory: " in done.err) == (2, True)
    assert not peer.sandboxes


async def test_wrong_usage_is_2(cli: Cli) -> None:
    assert (await cli("run")).status == 2
    assert (await cli("run", "--memory", "much", "--", "true")).status == 2
    assert (await cli("no-such-command")).status == 2


async def test_dropped_output_is_told(cli: Cli) -> None:
    done = await cli("run", "--output-limit", "1k", "--", "head", "-c", "5120", "/dev/zero")
    assert done.out == bytes(1024)
    assert done.err == "[sandfleet: output limit of 1.0 KiB reached, 4.0 KiB dropped]\n"


async def test_a_time_limit_is_told(cli: Cli) -> None:
    done = await cli("run", "--timeout", "0.2", "--", "sh", "-c", "echo begun; sleep 60")
    assert (done.status, done.out) == (137, b"begun\n")
    assert "time limit of 0.2 s" in done.err


async def test_an_interrupt_goes_to_the_command_and_the_sandbox_ends(peer: Peer, cli: Cli) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    process = await cli.start("run", "--", "sh", "-c", script)
    assert process.stdout is not None and process.stdin is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGINT)
    assert await process.stdout.read() == b"caught\n"
    assert await process.wait() == 9
    assert [info.state for info in peer.sandboxes.values()] == [State.STOPPED]


async def test_an_interrupt_before_the_command_runs_leaves_no_sandbox(peer: Peer, cli: Cli) -> None:
    peer.lose_answers["sf.v1.sandbox.create"] = 1
    process = await cli.start("run", "--", "true")
    await peer.until(lambda: len(peer.sandboxes) == 1)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert [info.state for info in peer.sandboxes.values()] == [State.STOPPED]


async def test_a_reader_that_is_gone_ends_the_command(peer: Peer, cli: Cli) -> None:
    reading, writing = os.pipe()
    process = await cli.start("run", "--", "yes", stdout=writing)
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 2) == b"y\n"
    os.close(reading)
    assert await process.wait() == 128 + signal.SIGPIPE
    (command,) = peer.commands.values()
    await command.process.wait()


async def test_exec_runs_in_a_sandbox_named_by_its_short_end(
    cli: Cli, sandbox: m.SandboxInfo
) -> None:
    done = await cli("exec", "--env", "A=b", sandbox.sandbox_id[-8:], "--", "sh", "-c", "echo $A")
    assert done == Done(0, b"b\n", "")


async def test_a_name_that_fits_several_is_refused(cli: Cli, peer: Peer) -> None:
    first, second = peer.new_sandbox(m.SandboxSpec()), peer.new_sandbox(m.SandboxSpec())
    done = await cli("exec", "sb-", "--", "true")
    assert done.status == 125
    assert first.sandbox_id in done.err and second.sandbox_id in done.err


async def test_exec_in_a_sandbox_that_ended_says_why(
    cli: Cli, peer: Peer, sandbox: m.SandboxInfo
) -> None:
    peer.end(sandbox.sandbox_id, "it ran out of time", Origin.PLATFORM)
    done = await cli("exec", sandbox.sandbox_id, "--", "true")
    assert (done.status, "it ran out of time" in done.err) == (125, True)


async def test_logs_give_the_bytes_to_a_pipe(cli: Cli, sandbox: m.SandboxInfo) -> None:
    await cli("exec", sandbox.sandbox_id, "--", "printf", "\\033[31mred\\377")
    await cli("exec", sandbox.sandbox_id, "--", "echo", "second")
    done = await cli("logs", sandbox.sandbox_id)
    assert done.out == b"\x1b[31mred\xffsecond\n"
    assert done.err.count("==>") == 2


async def test_logs_show_what_would_steer_a_terminal(cli: Cli, sandbox: m.SandboxInfo) -> None:
    await cli("exec", sandbox.sandbox_id, "--", "printf", "\\033]0;owned\\007ok\\n")
    ours, theirs = pty.openpty()
    process = await cli.start("logs", sandbox.sandbox_id, stdout=theirs, stdin=theirs)
    await process.wait()
    os.close(theirs)
    assert os.read(ours, 1000) == b"\\x1b]0;owned\\x07ok\r\n"
    os.close(ours)


async def test_a_terminal_is_raw_while_the_command_runs_and_as_before_after_it(
    cli: Cli, sandbox: m.SandboxInfo
) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = await cli.start(
        "exec", "-t", sandbox.sandbox_id, "--", "sh", "-c", "read line; printf '\\033[31m%s' $line",
        stdin=theirs, stdout=theirs,
    )  # fmt: skip
    while termios.tcgetattr(theirs) == before:
        await asyncio.sleep(0.01)
    os.write(ours, b"typed\n")
    assert await process.wait() == 0
    assert os.read(ours, 100) == b"\x1b[31mtyped"
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


async def test_a_terminal_is_refused_in_a_pipe(cli: Cli, sandbox: m.SandboxInfo) -> None:
    done = await cli("exec", "-it", sandbox.sandbox_id, "--", "sh")
    assert (done.status, "-t needs a terminal" in done.err) == (125, True)


# -------------------------------------------------------------- what is there


async def test_create_ps_extend_inspect_rm(peer: Peer, cli: Cli) -> None:
    made = (await cli("create", "--ttl", "1h")).out.decode().strip()
    assert made in peer.sandboxes
    assert (await cli("ps", "-q")).out.decode().split() == [made]
    assert made[-8:] in (await cli("ps")).out.decode()
    assert "ends in" in (await cli("extend", made, "2h")).out.decode()
    (known,) = json.loads((await cli("inspect", made)).out)
    assert (known["sandbox_id"], known["commands"]) == (made, [])
    assert (await cli("rm", made)).out.decode().split() == [made]
    assert (await cli("ps", "-q")).out == b""
    (ended,) = json.loads((await cli("ps", "-a", "--json")).out)
    assert ended["state"] == "stopped"


async def test_ps_shows_no_control_characters_of_a_sandbox(peer: Peer, cli: Cli) -> None:
    info = peer.new_sandbox(m.SandboxSpec())
    peer.end(info.sandbox_id, "bad\x1b[2J[red]reason", Origin.AGENT)
    shown = (await cli("ps", "-a")).out.decode()
    assert "bad\\x1b[2J[red]reason" in shown


async def test_rm_ends_what_it_can_and_tells_the_rest(cli: Cli, sandbox: m.SandboxInfo) -> None:
    done = await cli("rm", "nothing", sandbox.sandbox_id)
    assert done.status == 1
    assert done.out.decode().split() == [sandbox.sandbox_id]
    assert "no sandbox is called 'nothing'" in done.err


async def test_rm_all_ends_all(peer: Peer, cli: Cli) -> None:
    for _ in range(3):
        peer.new_sandbox(m.SandboxSpec())
    assert len((await cli("rm", "--all")).out.split()) == 3
    assert {info.state for info in peer.sandboxes.values()} == {State.STOPPED}


async def test_files_are_copied_both_ways(cli: Cli, sandbox: m.SandboxInfo, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(bytes(range(256)))
    name = sandbox.sandbox_id[-8:]
    assert (await cli("cp", str(tmp_path / "in"), f"{name}:copy")).status == 0
    assert (await cli("cp", f"{name}:copy", str(tmp_path / "out"))).status == 0
    assert (tmp_path / "out" / "file").read_bytes() == bytes(range(256))
    assert (await cli("cp", f"{name}:copy/file", str(tmp_path))).status == 0
    assert (tmp_path / "file").read_bytes() == bytes(range(256))


async def test_a_copy_of_nothing_says_so(cli: Cli, sandbox: m.SandboxInfo) -> None:
    done = await cli("cp", f"{sandbox.sandbox_id}:missing", "/tmp/nowhere")
    assert (done.status, "missing" in done.err) == (1, True)
    assert (await cli("cp", "here", "there")).status == 1


async def test_a_job_is_submitted_waited_for_and_cancelled(peer: Peer, cli: Cli) -> None:
    done = await cli("job", "submit", "-n", "4", "--wait")
    job = done.out.decode().strip()
    assert (done.status, "slot 0 never fits" in done.err) == (1, True)
    assert json.loads((await cli("job", "get", job, "--json")).out)["ready"] == 3
    assert len((await cli("ps", "-q", "--job", job)).out.split()) == 3
    assert "cancelled" in (await cli("job", "cancel", job)).out.decode()
    assert {info.state for info in peer.sandboxes.values()} == {State.STOPPED}


async def test_sandboxes_are_completed_in_full_and_by_their_short_end(
    cli: Cli, sandbox: m.SandboxInfo
) -> None:
    async def complete(word: str) -> str:
        shell = {"_SANDFLEET_COMPLETE": "bash_complete", "COMP_CWORD": "2"}
        words = {"COMP_WORDS": f"sandfleet rm {word}"}
        return (await Cli({**cli.environment, **shell, **words})("")).out.decode().strip()

    assert await complete("sb-") == f"plain,{sandbox.sandbox_id}"
    short = sandbox.sandbox_id[-8:]
    assert await complete(short[:5]) == f"plain,{short}"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_each_shell_gets_its_script(cli: Cli, shell: str) -> None:
    done = await cli("completion", shell)
    assert (done.status, b"_SANDFLEET_COMPLETE" in done.out) == (0, True)


async def test_no_platform_says_what_to_do(cli: Cli, tmp_path: Path) -> None:
    environment = {k: v for k, v in cli.environment.items() if k != "SANDFLEET_NATS"}
    done = await Cli(environment)("--state", str(tmp_path), "ps")
    assert (done.status, "sandfleet up" in done.err) == (1, True)


async def test_every_command_teaches(cli: Cli) -> None:
    shown = (await cli("--help")).out.decode()
    names = [line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line]
    assert len(names) > 15
    for name in names:
        done = await cli(name, "--help" if name != "doctor" else "--no-such-help")
        assert done.status == 0
        assert "Usage: sandfleet" in done.out.decode()

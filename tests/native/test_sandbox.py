"""What holds a sandbox in, and what the launcher does about it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from native.driver import FIRST_UID, Agent, Launcher, Outcome, Refused

from sandfleet_common import wire
from sandfleet_common.wire import FrameType, Tag

pytestmark = pytest.mark.root

# fmt: off
PROBES = [
    "mount", "unmount", "remount", "fsopen", "open_tree", "unshare-user", "clone-user",
    "clone3-user", "setns", "ptrace-agent", "ptrace-child", "agent-memory", "agent-environment",
    "agent-maps", "agent-fds", "agent-program", "agent-root", "agent-vm-read", "pidfd-getfd",
    "kill-agent", "mknod", "vsock", "packet-socket", "raw-socket", "netfilter", "io_uring", "bpf",
    "keyctl", "userfaultfd", "perf", "module", "tiocsti", "core-pattern", "sysrq",
    "sys-admin-bound", "x32", "host-id", "replace-dev", "chroot", "int80",
]
# fmt: on


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


@pytest.mark.parametrize("probe", PROBES)
@pytest.mark.parametrize("user", ["root", "user"])
def test_an_attempt_to_get_out_is_refused(agent: Agent, probe: str, user: str) -> None:
    if probe == "int80" and os.uname().machine != "x86_64":
        pytest.skip("a door of x86-64 only")
    outcome = agent.run("probe", probe, user=user)
    assert outcome.stdout and outcome.stdout != b"open\n", outcome
    assert agent.run("true").code == 0


def test_every_probe_is_tried(agent: Agent) -> None:
    assert set(agent.run("probe").stdout.decode().split()) | {"int80"} == set(PROBES)


def test_a_process_has_few_capabilities_and_cannot_gain_more(agent: Agent) -> None:
    lines = agent.run("cat", "/proc/self/status").stdout.decode().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["CapBnd"] == status["CapEff"] == "00000000800405fb"
    assert status["CapInh"] == status["CapAmb"] == "0" * 16
    assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == ("1", "2", "2")


def test_a_user_has_no_capabilities(agent: Agent) -> None:
    assert b"CapEff:\t0000000000000000" in agent.run("cat", "/proc/self/status", user="user").stdout


def test_root_inside_is_nobody_outside(agent: Agent) -> None:
    fields = Path(f"/proc/{agent.pid}/status").read_text().split("Uid:")[1].split()
    assert int(fields[0]) >= FIRST_UID
    assert Path(f"/proc/{agent.pid}/setgroups").read_text() == "allow\n"


def test_a_sandbox_sees_only_itself(agent: Agent) -> None:
    seen = agent.sh("echo /proc/[0-9]* /sys/* /proc/acpi/* | tr ' ' '\\n'").stdout.split()
    assert seen[0] == b"/proc/1" and len(seen) <= 6
    assert {b"/sys/*", b"/proc/acpi/*"} <= set(seen)
    assert agent.sh("cat /proc/partitions /proc/keys /proc/cmdline").stdout == b""


def test_no_path_of_the_host_is_named(agent: Agent) -> None:
    mounts = agent.run("cat", "/proc/self/mountinfo").stdout
    assert not any(word in mounts for word in (b"/var", b"/tmp/", b"/dev/vd", b"/sandfleet"))


def test_the_network_is_loopback_only_and_up(agent: Agent) -> None:
    [link] = agent.run("ip", "-o", "link").stdout.splitlines()
    assert b"LOOPBACK,UP" in link


def test_the_host_name_is_the_sandboxs(agent: Agent) -> None:
    assert agent.run("hostname").stdout.startswith(b"sb-")
    assert not os.uname().nodename.startswith("sb-")


def test_no_descriptor_of_the_agent_reaches_a_command(agent: Agent) -> None:
    assert agent.sh("ls /proc/self/fd").stdout.split() == [b"0", b"1", b"2", b"3"]  # 3: ls itself


def test_the_hosts_mounts_do_not_grow(launcher: Launcher) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    launcher.create("sb-one", ["base"])
    assert Path("/proc/self/mountinfo").read_text() == before


def test_a_file_system_image_is_a_layer_below_others(
    launcher: Launcher, image: Path, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    (top / "etc").mkdir(parents=True)
    (top / "etc" / "passwd").write_text("root:x:0:0::/opt:/bin/sh\n")
    launcher.ask("layer", ("digest", "image"), ("path", os.fspath(image)), ("fs", "erofs"))
    launcher.ask("layer", ("digest", "top"), ("path", os.fspath(top)), ("fs", "dir"))
    agent = launcher.create("sb-stack", ["top", "image"])
    assert agent.read("/etc/passwd") == b"root:x:0:0::/opt:/bin/sh\n"
    assert agent.stat("/home/user").uid == 1000
    assert agent.sh("echo $HOME; touch /bin/new").stdout == b"/opt\n"


def test_a_layer_in_use_is_not_dropped(launcher: Launcher) -> None:
    launcher.create("sb-one", ["base"])
    with pytest.raises(Refused) as caught:
        launcher.ask("unlayer", ("digest", "base"))
    assert caught.value.errno == 16
    launcher.end("sb-one")
    launcher.ask("unlayer", ("digest", "base"))
    with pytest.raises(Refused):
        launcher.create("sb-two", ["base"])


@pytest.mark.parametrize(
    ("changes", "number", "step"),
    [
        ({"lower": "other"}, 2, "request"),
        ({"uid": "0"}, 22, "request"),
        ({"ids": "x"}, 22, "request"),
        ({"upper": "relative"}, 22, "request"),
        ({"upper": "/nowhere/upper"}, 2, "overlay"),
        ({"cgroup2": "/nowhere"}, 2, "cgroup"),
        ({"cgroup": "/nowhere"}, 2, "cgroup"),
    ],
    ids=["layer", "root", "ids", "relative", "upper", "cgroup2", "cgroup"],
)
def test_a_creation_that_fails_says_at_which_step(
    launcher: Launcher, changes: dict[str, str], number: int, step: str
) -> None:
    request = [
        (key, changes.get(key, value)) for key, value in launcher.create_request("sb-bad", ["base"])
    ]
    if "cgroup" in changes:
        request.append(("cgroup", changes["cgroup"]))
    with pytest.raises(Refused) as caught:
        launcher.answer(launcher.send(request))
    assert (caught.value.errno, caught.value.step) == (number, step)
    assert launcher.create("sb-bad", ["base"]).run("true").code == 0


def test_a_second_sandbox_of_the_same_id_is_refused(launcher: Launcher) -> None:
    launcher.create("sb-one", ["base"])
    with pytest.raises(Refused) as caught:
        launcher.create("sb-one", ["base"])
    assert caught.value.errno == 17


def test_many_creations_at_once_are_all_answered(launcher: Launcher) -> None:
    sent = [launcher.send(launcher.create_request(f"sb-{i}", ["base"])) for i in range(80)]
    answers: dict[str, str] = {}
    while len(answers) < len(sent):
        message, fd = launcher.receive()
        answers[message["seq"]] = message["ok"]
        if fd >= 0:
            os.close(fd)
    assert answers == dict.fromkeys(sent, "1")


def freeze(request: list[tuple[str, str | int]], frozen: bool) -> None:
    """Hold the process of a set-up up, or let it go on."""
    group = next(str(value) for key, value in request if key == "cgroup2")
    (Path(group) / "cgroup.freeze").write_text("1" if frozen else "0")


def test_a_set_up_that_is_held_up_does_not_hold_up_others(launcher: Launcher) -> None:
    request = launcher.create_request("sb-slow", ["base"])
    freeze(request, True)
    slow = launcher.send(request)
    assert launcher.create("sb-quick", ["base"]).run("true").code == 0
    freeze(request, False)
    os.close(launcher.answer(slow)[1])


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_set_up_that_takes_too_long_is_ended(launcher: Launcher) -> None:
    request = launcher.create_request("sb-slow", ["base"])
    freeze(request, True)
    launcher.send(request)
    message, _ = launcher.receive(40)
    assert (message["ok"], message["errno"], message["step"]) == ("0", "110", "setup")
    freeze(request, False)
    assert launcher.create("sb-slow", ["base"]).run("true").code == 0


@pytest.mark.parametrize(
    "packet", [b"\0", b"op=hello", b"x\0", b"=\0", b"op=\0", b"op=create\0", b"op=nope\0"]
)
def test_a_message_that_makes_no_sense_is_refused(launcher: Launcher, packet: bytes) -> None:
    launcher.link.sendall(packet)
    assert launcher.receive()[0]["ok"] == "0"
    assert launcher.hello()[0]["ok"] == "1"


def test_a_directory_from_an_earlier_sandbox_cannot_mislead_the_set_up(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    agent.sh("rm -rf /home; ln -s /proc /home; cp -a /tmp /keep")
    launcher.end("sb-one")
    upper = launcher.directory / "state" / "sb-one" / "upper"
    for name in ("proc", "dev", "sys"):
        subprocess.run(["rm", "-rf", upper / name], check=True)
        (upper / name).symlink_to("/tmp")
    agent = launcher.create("sb-one", ["base"])
    script = "test -e /proc/1 && test -c /dev/null && test ! -L /proc && test ! -L /sys"
    assert agent.sh(script).code == 0
    assert agent.sh("ls /tmp").stdout == b""


def test_a_sandbox_can_be_made_again_from_its_upper_directory(launcher: Launcher) -> None:
    launcher.create("sb-one", ["base"]).write("/root/kept", b"yes")
    launcher.end("sb-one")
    assert launcher.create("sb-one", ["base"]).read("/root/kept") == b"yes"


def test_an_exit_is_told_with_its_status(launcher: Launcher) -> None:
    launcher.create("sb-one", ["base"])
    assert launcher.end("sb-one") == signal.SIGKILL


def test_an_exit_nobody_heard_is_told_after_hello_until_it_is_forgotten(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    launcher.link.close()
    os.kill(agent.pid, signal.SIGKILL)
    wait_gone(agent.pid)
    for _ in range(2):
        launcher.connect()
        _, agents = launcher.hello()
        assert agents == {} and launcher.event("exit")["id"] == "sb-one"
        launcher.link.close()
    launcher.connect()
    launcher.hello()
    launcher.event("exit")
    launcher.ask("forget", ("id", "sb-one"))
    launcher.link.close()
    launcher.connect()
    launcher.hello()
    with pytest.raises(TimeoutError):
        launcher.event("exit", 0.2)


def test_a_new_node_service_takes_over_with_every_byte_once(launcher: Launcher) -> None:
    first = launcher.create("sb-one", ["base"])
    id = first.start(
        "/bin/sh",
        "-c",
        "i=0; while [ $i -lt 60000 ]; do echo $i; i=$((i+1)); done; read x; echo got $x",
        stdin=True,
    )
    before = Outcome()
    while before.position < 100000:
        first.absorb(before, first.receive_for(id))
    first.send(FrameType.STDIN, id, position=0, payload=b"word")
    launcher.link.close()
    first.close()

    launcher.connect()
    second = launcher.hello()[1]["sb-one"]
    told = second.hello()
    kinds = [f.type for f in told if f.type is not FrameType.OUTPUT]
    assert kinds[-3:] == [FrameType.WELCOME, FrameType.PROCESS, FrameType.READY]
    process = next(f for f in told if f.type is FrameType.PROCESS)
    after = Outcome(stdout=before.stdout[: process.position], position=process.position)
    assert process.position <= before.position
    second.send(FrameType.STDIN, id, position=0, payload=b"word\n")
    while True:
        frame = second.receive_for(id)
        second.absorb(after, frame)
        if frame.type is FrameType.EXIT:
            break
    assert after.stdout == b"".join(b"%d\n" % i for i in range(60000)) + b"got word\n"
    assert before.stdout == after.stdout[: before.position]


def test_an_exit_is_told_again_until_it_is_forgotten(launcher: Launcher) -> None:
    first = launcher.create("sb-one", ["base"])
    id = first.start("/bin/sh", "-c", "echo kept; exit 4")
    first.finish(id, ack=False, forget=False)
    second = launcher.hello()[1]["sb-one"]
    second.hello()
    assert second.finish(id).stdout == b"kept\n"
    third = launcher.hello()[1]["sb-one"]
    assert [f.type for f in third.hello()] == [FrameType.WELCOME, FrameType.READY]


def test_a_half_written_file_of_an_old_node_service_is_dropped(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    id = agent.begin_write("/tmp/file")
    agent.send(FrameType.WRITE_DATA, id, payload=b"half")
    agent.hello()
    assert agent.list("/tmp") == []


def test_an_unknown_protocol_version_is_refused(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    agent.send(FrameType.HELLO, payload=wire.pack_fields([(Tag.VERSION, 99)]))
    assert agent.receive().type is FrameType.ERROR


def test_garbage_on_the_channel_does_no_harm(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    for packet in (b"x", b"\xff" * 24, wire.HEADER.pack(9, 2, 0, 1, 0, 0) + b"\xff" * 9):
        agent.channel.sendall(packet)
        assert agent.receive().type is FrameType.ERROR
    assert agent.run("true").code == 0


def test_when_the_launcher_dies_its_sandboxes_die(launcher: Launcher) -> None:
    agents = [launcher.create(f"sb-{i}", ["base"]) for i in range(3)]
    for agent in agents:
        agent.start("sleep", "60")
    launcher.process.kill()
    for agent in agents:
        wait_gone(agent.pid)


def test_a_launcher_that_nobody_needs_ends_itself(tmp_path: Path, tree: Path) -> None:
    launcher = Launcher(tmp_path, orphan_seconds=1)
    try:
        launcher.hello()
        launcher.ask("layer", ("digest", "base"), ("path", os.fspath(tree)), ("fs", "dir"))
        agent = launcher.create("sb-one", ["base"])
        agent.close()
        launcher.link.close()
        assert launcher.process.wait(10) == 0
        wait_gone(agent.pid)
    finally:
        launcher.close()


def test_quit_ends_all_sandboxes_and_then_answers(launcher: Launcher) -> None:
    pids = [launcher.create(f"sb-{i}", ["base"]).pid for i in range(5)]
    launcher.ask("quit")
    assert not any(is_alive(pid) for pid in pids)
    assert launcher.process.wait(5) == 0
    assert not (launcher.run_dir / "launcher.sock").exists()


def test_a_newer_connection_replaces_the_older(launcher: Launcher) -> None:
    old = launcher.link
    launcher.connect()
    launcher.hello()
    assert old.recv(1) == b""
    old.close()


def test_only_root_is_served(launcher: Launcher) -> None:
    path = launcher.run_dir / "launcher.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)  # so that only the launcher's own check is left
    launcher.run_dir.chmod(0o755)
    directory = os.open(launcher.run_dir, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(f"/proc/self/fd/{directory}/launcher.sock")
            os._exit(link.recv(1) != b"")
    os.close(directory)
    assert os.waitpid(child, 0)[1] == 0
    assert launcher.hello()[0]["ok"] == "1"


def test_a_hostile_process_cannot_make_the_agent_grow(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    for _ in range(20):
        agent.start("cat", "/dev/zero")
    time.sleep(0.5)
    status = Path(f"/proc/{agent.pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 20 * 2 * wire.WINDOW_BYTES // 1024


def test_an_idle_agent_has_no_timer_and_little_memory(launcher: Launcher) -> None:
    agent = launcher.create("sb-one", ["base"])
    agent.run("true", timeout_ms=60000)
    time.sleep(0.1)
    links = [os.readlink(p) for p in Path(f"/proc/{agent.pid}/fd").iterdir()]  # noqa: PTH115
    assert not any("timerfd" in link for link in links)
    rollup = Path(f"/proc/{agent.pid}/smaps_rollup").read_text()
    assert int(rollup.split("Private_Dirty:")[1].split()[0]) < 200

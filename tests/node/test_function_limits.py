"""Calls that mean harm, or know no bounds: each is stopped, and the next call works."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from node.function_nodes import call, python_layers, warm_ids
from node.nodes import NodeHouse, RunningNode
from requirements import need_root

from sandfleet_common import messages as m

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(90)]
MIB = 1024 * 1024


@pytest.fixture(scope="session")
def tiny_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_root()
    return python_layers(tmp_path_factory.mktemp("function-layers")).root


@pytest_asyncio.fixture
async def node(house: NodeHouse) -> AsyncGenerator[RunningNode]:
    """Return a node with one warm sandbox, so that all calls of a test meet in it."""
    async with house.running(function_warm_max=1) as node:
        yield node


def limits(**values: Any) -> m.CallLimits:
    return m.CallLimits(**{"wall_seconds": 5, **values})


async def check(
    node: RunningNode, code: str, status: str, *, is_kept: bool, **fields: Any
) -> m.FunctionResult:
    """Make a call, then one that has to work; say whether both ran in the same sandbox."""
    fields.setdefault("limits", limits())
    result = await call(node, code, **fields)
    assert result.status == status, result
    after = await call(node, "import os; print(os.listdir(), 6 * 7)")
    assert (after.status, after.step.stdout) == ("ok", b"[] 42\n")
    assert (after.sandbox_id == result.sandbox_id) == is_kept, (result, after)
    return result


async def test_a_spin_ends_at_the_wall_clock(node: RunningNode) -> None:
    result = await check(
        node, "while True: pass", "timeout", is_kept=True, limits=limits(wall_seconds=0.5)
    )
    assert 0.5 <= result.step.wall_seconds < 3
    assert result.step.cpu_seconds > 0.1


async def test_a_spin_ends_at_its_cpu_seconds(node: RunningNode) -> None:
    ignoring = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    for code in ("while True: pass", ignoring + "while True: pass"):
        result = await check(
            node, code, "timeout", is_kept=True, limits=limits(wall_seconds=30, cpu_seconds=1)
        )
        assert result.step.wall_seconds < 20


async def test_a_sleeper_is_woken_for_good(node: RunningNode) -> None:
    await check(
        node, "import time; time.sleep(60)", "timeout", is_kept=True,
        limits=limits(wall_seconds=0.3),
    )  # fmt: skip


async def test_output_before_the_time_was_over_is_there(node: RunningNode) -> None:
    code = "import time\nprint('before', flush=True)\ntime.sleep(60)"
    result = await call(node, code, limits=limits(wall_seconds=0.3))
    assert (result.status, result.step.stdout) == ("timeout", b"before\n")


async def test_memory_has_its_bound(node: RunningNode) -> None:
    small = limits(memory_bytes=64 * MIB)
    result = await check(node, "x = bytearray(200 * 2**20)", "memory", is_kept=True, limits=small)
    assert b"MemoryError" in result.step.stderr
    grow = "x = []\nwhile True: x.append(bytearray(2**20))"
    await check(node, grow, "memory", is_kept=True, limits=small)
    assert (await call(node, "x = bytearray(40 * 2**20)", limits=small)).status == "ok"


async def test_the_kernels_killer_takes_the_call_and_not_the_sandbox(house: NodeHouse) -> None:
    async with house.running(function_memory_bytes=128 * MIB) as node:
        await check(
            node, "x = b'x' * (400 * 2**20)", "memory", is_kept=True,
            limits=limits(memory_bytes=1024 * MIB),
        )  # fmt: skip


async def test_a_fork_bomb_fizzles_out(node: RunningNode) -> None:
    code = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"""
    result = await check(
        node, code, "timeout", is_kept=True, limits=limits(wall_seconds=1, processes=32)
    )
    assert result.step.wall_seconds < 10


async def test_threads_count_as_processes(node: RunningNode) -> None:
    code = """
import threading, time
n = 0
try:
    for n in range(100):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
except RuntimeError:
    print(n)
"""
    result = await check(node, code, "ok", is_kept=True, limits=limits(processes=8))
    assert result.step.stdout == b"7\n"


async def test_a_flood_of_output_is_cut_and_counted(node: RunningNode) -> None:
    code = "import sys\nfor _ in range(1000): print('x' * 10_000, end='')\nsys.stderr.write('y\\n')"
    result = await check(
        node, code, "ok", is_kept=True, limits=limits(output_bytes=1000), queue_seconds=10
    )
    assert result.step.stdout == b"x" * 1000
    assert result.step.dropped_bytes == 10_000_000 - 1000
    assert result.step.stderr == b"y\n"


async def test_no_output_may_be_kept_at_all(node: RunningNode) -> None:
    result = await call(node, "print('x')", limits=limits(output_bytes=0))
    assert (result.step.stdout, result.step.dropped_bytes) == (b"", 2)


async def test_an_endless_flood_ends_with_its_time(node: RunningNode) -> None:
    code = "import os\nwhile True: os.write(1, b'x' * 65536)"
    result = await check(
        node, code, "timeout", is_kept=True, limits=limits(wall_seconds=0.5, output_bytes=10)
    )
    assert result.step.dropped_bytes > 65536


async def test_a_file_has_its_bound(node: RunningNode) -> None:
    code = "open('big', 'wb').write(b'x' * 10_000_000)"
    result = await check(node, code, "error", is_kept=True, limits=limits(file_bytes=1_000_000))
    assert b"File too large" in result.step.stderr


async def test_input_that_nobody_reads_is_no_problem(node: RunningNode) -> None:
    await check(node, "print(1)", "ok", is_kept=True, stdin=b"x" * 300_000)


async def test_a_call_may_close_its_streams(node: RunningNode) -> None:
    code = "import os\nfor n in range(3): os.close(n)"
    result = await call(node, code)
    assert result.status in ("ok", "error")
    await check(node, "import os\nos.closerange(0, 100)\nos._exit(0)", "ok", is_kept=True)


async def test_a_call_may_kill_itself_and_its_group(node: RunningNode) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    result = await check(node, code, "killed", is_kept=True)
    assert result.step.signal == 9
    code = "import os, signal\nos.killpg(0, signal.SIGTERM)"
    assert (await check(node, code, "killed", is_kept=True)).step.signal == 15
    code = "import ctypes\nctypes.string_at(0)"
    assert (await check(node, code, "killed", is_kept=True)).step.signal == 11


async def test_a_call_cannot_hurt_the_zygote(node: RunningNode) -> None:
    code = """
import os, signal
def f():
    failed = []
    for pid in [1, os.getppid()]:
        for attempt in (
            lambda: os.kill(pid, signal.SIGKILL),
            lambda: os.kill(pid, signal.SIGSTOP),
            lambda: open(f"/proc/{pid}/mem", "r+b"),
            lambda: os.listdir(f"/proc/{pid}/fd"),
            lambda: os.setuid(0),
            lambda: os.setgroups([0]),
            lambda: os.chmod("/", 0o777),
            lambda: os.listdir(".."),
            lambda: open("/root/x", "w"),
            lambda: os.nice(-5),
        ):
            try:
                attempt()
            except OSError as problem:
                failed.append(type(problem).__name__)
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return failed
"""
    result = await check(node, code, "ok", is_kept=True, function="f")
    assert result.value == ["PermissionError"] * 20


async def test_a_daemon_does_not_outlive_its_call(node: RunningNode) -> None:
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for n in range(3): os.close(n)
        time.sleep(1000)
    os._exit(0)
os.wait()
print("started")
"""
    result = await check(node, code, "ok", is_kept=False)
    assert result.step.stdout == b"started\n"


async def test_a_child_that_holds_the_output_open_is_not_waited_for(node: RunningNode) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nprint('x')"
    result = await check(node, code, "ok", is_kept=False)
    assert result.step.stdout == b"x\n"
    assert result.run_ms < 5000


async def test_a_child_that_floods_the_output_is_not_waited_for(node: RunningNode) -> None:
    code = "import subprocess\nsubprocess.Popen(['yes'])\nprint('x')"
    assert (await check(node, code, "ok", is_kept=False)).run_ms < 5000


@pytest.mark.parametrize(
    "code",
    [
        "open('/tmp/left', 'w')",
        "open('/var/tmp/left', 'w')",
        "open('/dev/shm/left', 'w')",
        "import os; os.mkdir('/tmp/left'); open('/tmp/left/x', 'w')",
        "import ctypes\nassert ctypes.CDLL(None).shmget(77, 4096, 0o1666) >= 0",
        "import ctypes\nassert ctypes.CDLL(None).semget(77, 1, 0o1666) >= 0",
        "import ctypes\nassert ctypes.CDLL(None).msgget(77, 0o1666) >= 0",
    ],
)
async def test_a_sandbox_in_which_something_was_left_is_replaced(
    node: RunningNode, code: str
) -> None:
    await check(node, code, "ok", is_kept=False)
    assert len(warm_ids(node)) == 1


async def test_what_is_removed_again_was_not_left(node: RunningNode) -> None:
    code = "import os\nopen('/tmp/x', 'w').close()\nos.unlink('/tmp/x')"
    await check(node, code, "ok", is_kept=True)


async def test_no_message_queue_is_left(node: RunningNode) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mq_open(b"/left", os.O_CREAT | os.O_RDWR, 0o666, None) < 0
print(os.strerror(ctypes.get_errno()))
"""
    assert (await check(node, code, "ok", is_kept=True)).step.stdout == b"Too many open files\n"


async def test_deep_and_many_files_of_its_own_are_removed(node: RunningNode) -> None:
    code = """
import os
for n in range(500): open(f"f{n}", "w")
os.chmod(".", 0)
"""
    await check(node, code, "ok", is_kept=True)
    code = "import os\nfor n in range(300):\n    os.mkdir('d'); os.chdir('d')"
    await check(node, code, "ok", is_kept=False)


async def test_a_call_that_pretends_to_be_over_is_ended(node: RunningNode) -> None:
    code = """
import os, struct, time
os.write(3, struct.pack("<6sHQQ", b"\\xffdone\\xff", 0, 0, 0))
time.sleep(60)
"""
    await check(node, code, "ok", is_kept=False)


async def test_nonsense_about_its_own_result_stays_its_own_problem(node: RunningNode) -> None:
    code = "import os\nos.write(3, b'V{not json')\ndef f(): os._exit(0)"
    result = await check(node, code, "error", is_kept=True, function="f")
    assert result.exception is not None
    code = "import os\nos.write(3, b'x' * 2_000_000)"
    await check(node, code, "ok", is_kept=True)


async def test_nothing_of_an_earlier_call_is_in_memory(node: RunningNode) -> None:
    secret = "tell-nobody-4711"
    await call(node, f"print('{secret}')", stdin=secret.encode(), env={"S": secret})
    code = """
import re
word = b"tell-nobody-" + b"4711"
def f():
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            begin, end = (int(n, 16) for n in line.split()[0].split("-"))
            if "rw" not in line or "[v" in line:
                continue
            memory.seek(begin)
            try:
                data = memory.read(end - begin)
            except OSError:
                continue
            found += data.count(word)
    return found
"""
    result = await call(node, code, function="f", limits=limits(memory_bytes=512 * MIB))
    # What is found are the copies that this code itself makes of the word.
    assert result.status == "ok", (result.exception, result.step)
    other = await call(node, code.replace("4711", "4712"), function="f")
    assert result.value == other.value

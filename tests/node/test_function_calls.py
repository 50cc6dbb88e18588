"""Function calls on a real node: results, and a pool that lends, waits and starts anew."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from layering import publish, resolve
from node.function_nodes import PYTHON, call, python_layers, warm_ids
from node.nodes import ENVIRONMENT, NodeHouse, RunningNode
from requirements import need_root

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, Busy, NoCapacity, NotFound, Unreachable
from sandfleet_node.layers.catalog import NAMES_MAX, NEWEST_SECONDS

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture(scope="session")
def tiny_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_root()
    return python_layers(tmp_path_factory.mktemp("function-layers")).root


@pytest_asyncio.fixture
async def node(house: NodeHouse) -> AsyncGenerator[RunningNode]:
    """Return a node with one warm sandbox, so that all calls of a test meet in it."""
    async with house.running(function_warm_max=1) as node:
        yield node


async def test_code_reads_its_input_and_what_it_prints_comes_back(node: RunningNode) -> None:
    code = "import sys\nprint('got', sys.stdin.read())\nprint('oh', file=sys.stderr)\nsys.exit(3)"
    result = await call(node, code, stdin=b"some\xc3\xa9")
    assert (result.status, result.step.exit_code) == ("error", 3)
    assert (result.step.stdout, result.step.stderr) == ("got someé\n".encode(), b"oh\n")
    assert result.is_cold
    assert result.wait_ms > 0
    assert result.node == node.name
    again = await call(node, "print(1)")
    assert (again.status, again.step.stdout, again.is_cold) == ("ok", b"1\n", False)
    assert again.sandbox_id == result.sandbox_id


async def test_a_function_is_called_and_its_value_comes_back(node: RunningNode) -> None:
    code = "def f(a, b=1):\n    print('hi')\n    return {'sum': a + b, 'list': [a, None, 'é']}"
    result = await call(node, code, function="f", arguments=[2], keywords={"b": 5})
    assert result.status == "ok"
    assert result.value == {"sum": 7, "list": [2, None, "é"]}
    assert result.step.stdout == b"hi\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(): return {1, 2}", "what it returned is not JSON"),
        ("def f(): return float('nan')", "what it returned is not JSON"),
        ("def f(): return '\\ud800'", "what it returned is not JSON"),
        ("def f(): return 'x' * 600_000", "bytes of JSON, 524288 are allowed"),
        ("def f():\n  v = []\n  for _ in range(50000): v = [v]\n  return v", "JSON"),
        ("import os\ndef f(): os._exit(0)", "before the function returned"),
        ("def g(): pass", "NameError: the code does not define f"),
        ("def f(): raise ValueError('so')", "ValueError: so"),
        ("def f(): return 1\nimport sys; sys.exit(0)", "before the function returned"),
    ],
)
async def test_what_cannot_come_back_says_why(node: RunningNode, code: str, said: str) -> None:
    result = await call(node, code, function="f")
    assert result.status == "error"
    assert result.exception is not None
    assert said in result.exception
    assert (await call(node, "def f(): return 1", function="f")).value == 1


async def test_a_traceback_shows_the_lines_of_the_code_and_nothing_else(
    node: RunningNode,
) -> None:
    result = await call(node, "def inner():\n    return 1 / 0  # here\n\ninner()\n")
    text = result.step.stderr.decode()
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.count("File ") == 2
    assert 'main.py", line 2, in inner' in text
    assert "return 1 / 0  # here" in text
    assert text.endswith("ZeroDivisionError: division by zero\n")
    broken = await call(node, "x = 1\nif x\n  pass")
    assert b"line 2" in broken.step.stderr
    assert b"SyntaxError" in broken.step.stderr
    assert broken.exception is not None


async def test_code_ends_as_a_program_does(node: RunningNode) -> None:
    code = """
import atexit, sys, threading, time
atexit.register(lambda: print("at exit"))
def later():
    time.sleep(0.2)
    print("thread")
threading.Thread(target=later).start()
assert __name__ == "__main__"
print("main", sys.argv[0].endswith("/main.py"))
"""
    result = await call(node, code)
    assert result.status == "ok"
    assert result.step.stdout == b"main True\nthread\nat exit\n"


async def test_files_go_in_and_come_out(node: RunningNode) -> None:
    code = """
import os, helper
print(open("data/in.txt").read(), helper.X, os.getcwd() == os.environ["HOME"], os.environ["A"])
open("out.bin", "wb").write(bytes(range(256)))
os.symlink("/etc/passwd", "link")
os.mkdir("dir")
"""
    result = await call(
        node,
        code,
        files={"data/in.txt": b"text", "helper.py": b"X = 4"},
        fetch=["out.bin", "nothing", "link", "dir"],
        env={"A": "b"},
    )
    assert result.step.stdout == b"text 4 True b\n", result
    assert result.files == {"out.bin": bytes(range(256))}
    assert result.missing == ["nothing", "link", "dir"]
    empty = await call(node, "import os; print(os.listdir())")
    assert empty.step.stdout == b"[]\n"


async def test_much_input_and_much_output_pass_whole(node: RunningNode) -> None:
    data = bytes(range(256)) * 1500
    code = "import sys, hashlib\nb = sys.stdin.buffer.read()\nsys.stdout.buffer.write(b[::-1])"
    limits = m.CallLimits(output_bytes=512 * 1024)
    result = await call(node, code, stdin=data, limits=limits)
    assert result.step.stdout == data[::-1]
    assert result.step.dropped_bytes == 0


async def test_random_numbers_differ_between_calls(node: RunningNode) -> None:
    code = "import random, uuid\ndef f(): return [random.random(), str(uuid.uuid4())]"
    values = [(await call(node, code, function="f")).value for _ in range(3)]
    assert len({value[0] for value in values}) == len({value[1] for value in values}) == 3


async def test_multiprocessing_works(node: RunningNode) -> None:
    code = """
import multiprocessing
def square(x): return x * x
def f():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(square, [1, 2, 3])
"""
    assert (await call(node, code, function="f")).value == [1, 4, 9]


async def test_bash_runs(node: RunningNode) -> None:
    result = await call(node, 'read x; echo "$x $0"; exit 4', language="bash", stdin=b"in\n")
    assert (result.status, result.step.exit_code) == ("error", 4)
    assert result.step.stdout.startswith(b"in main.sh") or b"main.sh" in result.step.stdout


async def test_a_missing_language_says_what_there_is(node: RunningNode) -> None:
    for _ in range(2):  # before a warm sandbox runs, and after
        with pytest.raises(NotFound, match="nothing that runs javascript; it has: python, bash"):
            await call(node, "1", language="javascript")
    assert (await call(node, "print(1)")).status == "ok"


async def test_an_environment_without_python_says_so(node: RunningNode) -> None:
    with pytest.raises(NotFound, match="has no python3"):
        await call(node, "1", environment=ENVIRONMENT)


async def test_what_cannot_be_asked_for_is_refused(node: RunningNode) -> None:
    with pytest.raises(Unreachable):
        await call(node, "1", environment="nowhere")
    with pytest.raises(NotFound, match="no such version"):
        await call(node, "1", environment=f"{PYTHON}:99.9")
    with pytest.raises(BadRequest, match="lies below another file"):
        await call(node, "1", files={"a": b"", "a/b": b""})


async def test_the_same_request_runs_once(node: RunningNode) -> None:
    body = m.FunctionCall(environment=PYTHON, code="import uuid; print(uuid.uuid4())")

    async def ask() -> m.FunctionResult:
        return await node.bus.ask(s.FUNCTION_CALL, body, within=20, environment=PYTHON)

    first, second = await asyncio.gather(ask(), ask())
    third = await ask()
    assert first.step.stdout == second.step.stdout == third.step.stdout != b""


async def test_calls_beside_each_other_never_share_a_sandbox(house: NodeHouse) -> None:
    async with house.running(function_warm_max=2) as node:
        code = "import time, os\nopen('mine', 'x')\ntime.sleep(0.15)\nprint(os.listdir())"
        results = await asyncio.gather(*(call(node, code) for _ in range(6)))
        assert {r.step.stdout for r in results} == {b"['mine']\n"}
        assert len({r.sandbox_id for r in results}) == 2
        assert max(r.wait_ms for r in results) > 150
        assert len(warm_ids(node)) == 2


async def test_a_full_queue_says_when_to_come_again(house: NodeHouse) -> None:
    async with house.running(function_warm_max=1, function_queue=2) as node:
        await call(node, "1")
        slow = [asyncio.ensure_future(call(node, "import time; time.sleep(0.5)")) for _ in range(5)]
        done = await asyncio.gather(*slow, return_exceptions=True)
        busy = [problem for problem in done if isinstance(problem, Busy)]
        # Three, when the only sandbox was still clearing up after the call before.
        assert len(busy) in (2, 3)
        assert all(problem.fields["retry_after_seconds"] > 0 for problem in busy)
        ran = [r.status for r in done if isinstance(r, m.FunctionResult)]
        assert ran == ["ok"] * (5 - len(busy))


async def test_a_call_waits_no_longer_than_it_said(house: NodeHouse) -> None:
    async with house.running(function_warm_max=1) as node:
        await call(node, "1")
        slow = asyncio.ensure_future(call(node, "import time; time.sleep(1)"))
        await asyncio.sleep(0.1)
        with pytest.raises(Busy, match=r"no warm sandbox was free within 0\.2 s"):
            await call(node, "1", queue_seconds=0.2)
        assert (await slow).status == "ok"
        assert (await call(node, "print(2)")).step.stdout == b"2\n"


async def test_a_node_that_takes_no_sandbox_says_why(house: NodeHouse) -> None:
    async with house.running(memory_floor_bytes=1 << 50) as node:
        with pytest.raises(NoCapacity, match="MiB of memory available"):
            await call(node, "1")


async def test_a_sandbox_is_replaced_after_its_number_of_calls(house: NodeHouse) -> None:
    async with house.running(function_warm_max=1, function_calls_each=3) as node:
        ids = [(await call(node, "1")).sandbox_id for _ in range(7)]
        assert len(set(ids)) == 3
        assert ids[0] == ids[2] != ids[3] == ids[5] != ids[6]


async def test_idle_sandboxes_end(house: NodeHouse) -> None:
    async with house.running(function_idle_seconds=0.5) as node:
        first = await call(node, "1")
        await node.until_gone(first.sandbox_id)
        assert warm_ids(node) == []
        assert (await call(node, "print(1)")).status == "ok"


async def test_a_new_version_of_the_environment_is_used(house: NodeHouse, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "layers")
    store = python_layers(tmp_path / "layers")
    async with house.running() as node:
        before = await call(node, "1")
        base = resolve(store, PYTHON)
        layers = [await store.layer(digest) for digest in base.layers]
        publish(store, PYTHON, "999.1", layers, env={**base.env, "N": "x"})
        await asyncio.sleep(NEWEST_SECONDS + 0.2)
        after = await call(node, "import os; print(os.environ['N'])")
        assert after.step.stdout == b"x\n"
        await node.until_gone(before.sandbox_id)


async def test_of_more_environments_than_are_followed_all_calls_are_heard_once(
    house: NodeHouse, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "layers")
    store = python_layers(tmp_path / "layers")
    async with house.running() as node:
        base = resolve(store, PYTHON)
        layers = [await store.layer(digest) for digest in base.layers]
        made = publish(store, "many0", "1", layers, env=base.env)
        for number in range(1, NAMES_MAX):
            same = made.model_copy(update={"name": f"many{number}"})
            await store.put_record("environments", f"many{number}/1", same.encode())
        await node.node.catalog.refresh()
        assert node.node.catalog.followed() is None
        for name in (PYTHON, f"many{NAMES_MAX - 1}"):  # before and after it hears all
            result = await call(node, "print(1)", environment=name)
            assert result.step.stdout == b"1\n"
            await asyncio.sleep(1.2)
        for name in (PYTHON, "many7"):
            code = "import os; os.write(1, b'once')"
            assert (await call(node, code, environment=name)).step.stdout == b"once"


async def test_stopping_a_warm_sandbox_costs_one_call_at_most(node: RunningNode) -> None:
    first = await call(node, "1")
    slow = asyncio.ensure_future(call(node, "import time; time.sleep(20)"))
    await asyncio.sleep(0.3)
    for sandbox_id in warm_ids(node):
        await node.stop(sandbox_id)
    assert (await slow).status == "lost"
    again = await call(node, "print(1)")
    assert (again.status, again.sandbox_id != first.sandbox_id) == ("ok", True)


async def test_a_killed_node_service_leaves_no_warm_sandbox(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        first = await call(node, "1")
        slow = asyncio.ensure_future(call(node, "import time; time.sleep(3)"))
        await asyncio.sleep(0.3)
        await process.kill()
        slow.cancel()
        await process.start()
        second = await call(node, "print(2)")
        assert (second.status, second.step.stdout) == ("ok", b"2\n")
        assert second.sandbox_id != first.sandbox_id
        await process.end(signal.SIGTERM)
    async with house.running() as running:
        for _ in range(500):
            if not warm_ids(running):
                break
            await asyncio.sleep(0.01)
        assert warm_ids(running) == []


async def test_many_calls_leave_nothing_behind(house: NodeHouse) -> None:
    async with house.running(function_warm_max=2) as node:
        await asyncio.gather(*(call(node, "1") for _ in range(10)))
        ids = sorted(warm_ids(node))
        before = await _inside(node, ids)
        results = await asyncio.gather(
            *(call(node, "open('f', 'w').write('x'); print(1)") for _ in range(200))
        )
        assert [r.status for r in results] == ["ok"] * 200
        await asyncio.sleep(0.3)
        assert sorted(warm_ids(node)) == ids
        assert await _inside(node, ids) == before
        assert node.node.functions.under_way == 0
        await node.node.stop_all("over")
        assert len(node.node.sandboxes) == 0


async def _inside(node: RunningNode, ids: list[str]) -> list[tuple[int, int, int]]:
    """Return of each sandbox: its processes, its files outside /proc, its groups of commands."""
    found: list[tuple[int, int, int]] = []
    for sandbox_id in ids:
        groups_dir: str = node.node.cgroups.v2_dir(sandbox_id)
        groups = next(os.walk(groups_dir))[1]
        listed = await node.ask(s.PROCESS_LIST, m.ProcessList(sandbox_id=sandbox_id))
        script = "find / /dev/shm -xdev | grep -v '/sandfleet-calls/' | wc -l"
        count = await node.run(sandbox_id, "sh", "-c", script)
        found.append((len(listed.processes), int(count.output[0].data), len(groups)))
    return found


async def test_calls_are_counted(node: RunningNode) -> None:
    await call(node, "1")
    await call(node, "1/0")
    page = node.node.metrics.page().decode()
    assert 'sandfleet_node_function_calls_total{status="ok"} 1.0' in page
    assert 'sandfleet_node_function_calls_total{status="error"} 1.0' in page
    assert "sandfleet_node_warm_sandboxes 1.0" in page
    assert "sandfleet_node_function_run_seconds_count 2.0" in page


async def test_a_paused_warm_sandbox_is_resumed_by_a_call(node: RunningNode) -> None:
    first = await call(node, "1")
    await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=first.sandbox_id))
    again = await call(node, "print(1)")
    assert (again.status, again.sandbox_id) == ("ok", first.sandbox_id)


async def test_a_draining_node_hears_no_calls(node: RunningNode) -> None:
    await call(node, "1")
    await node.ask(s.NODE_DRAIN, m.NodeDrain())
    for _ in range(300):
        try:
            await call(node, "1")
        except Unreachable:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("it still hears calls")
    await node.ask(s.NODE_DRAIN, m.NodeDrain(draining=False))
    await asyncio.sleep(1.5)
    assert (await call(node, "1")).status == "ok"


async def test_a_sandbox_that_was_starting_when_its_pool_closed_ends(node: RunningNode) -> None:
    calling = asyncio.create_task(call(node, "print(1)"))
    while not len(node.node.sandboxes):
        await asyncio.sleep(0.001)
    node.node.functions.close("stopped")
    with pytest.raises((Busy, NoCapacity)):
        await calling
    for _ in range(1000):
        if not len(node.node.sandboxes):
            break
        await asyncio.sleep(0.01)
    assert not len(node.node.sandboxes)

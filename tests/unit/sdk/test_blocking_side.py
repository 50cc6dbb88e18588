"""The blocking classes are what the generator writes, and have all that the others have."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

import sandfleet
from sandfleet import BadRequest, SandboxSpec, blocking
from sandfleet.blocking.portal import Portal

SDK = Path(sandfleet.__file__).parents[1]
NAMES = ("Client", "Sandbox", "Command", "Files", "Function", "Job")


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", SDK / "generate_blocking.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public(kind: type) -> dict[str, object]:
    return {n: v for n, v in vars(kind).items() if not n.startswith("_")}


@pytest.mark.parametrize(
    "module", ["files", "command", "phase", "sandbox", "job", "functions", "client"]
)
def test_the_committed_modules_are_what_the_generator_writes(module: str) -> None:
    written = (SDK / "sandfleet" / "blocking" / f"{module}.py").read_text()
    assert generator().blocking_module(module) == written, "run libs/sdk/generate_blocking.py"


@pytest.mark.parametrize("name", NAMES)
def test_both_sides_have_the_same_methods_with_the_same_parameters(name: str) -> None:
    waiting = public(getattr(blocking, name))
    other = public(getattr(sandfleet, f"Async{name}"))
    assert waiting.keys() == other.keys()
    for method in waiting:
        ours, theirs = getattr(waiting[method], "__func__", waiting[method]), other[method]
        theirs = getattr(theirs, "__func__", theirs)
        if inspect.isfunction(ours) and inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters) == list(
                inspect.signature(theirs).parameters
            )
            assert not inspect.iscoroutinefunction(ours)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_method_says_what_it_does(name: str) -> None:
    kind = getattr(blocking, name)
    silent = [n for n, v in public(kind).items() if not inspect.getdoc(v)]
    assert silent == []
    assert "await" not in (inspect.getsource(kind))


def test_an_object_that_only_a_client_makes_says_so() -> None:
    with pytest.raises(BadRequest, match="made by a Client"):
        sandfleet.Sandbox()


def test_a_job_without_a_client_says_where_to_get_one() -> None:
    made = sandfleet.Job(SandboxSpec(), count=2)
    with pytest.raises(BadRequest, match=r"client\.job"):
        made.submit()


def test_importing_the_package_imports_no_client_library() -> None:
    program = (
        "import sys, sandfleet; "
        "print([m for m in ('nats', 'redis', 'websockets', 'click', 'rich', 'httpx', "
        "'prometheus_client') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_portal_runs_everything_on_one_loop() -> None:
    portal = Portal()

    async def where() -> tuple[int, str]:
        return id(asyncio.get_running_loop()), threading.current_thread().name

    assert portal.run(where()) == portal.run(where())
    assert portal.run(where())[1] == "sandfleet"


def test_an_abandoned_iteration_ends_what_it_iterated_over() -> None:
    portal = Portal()
    ended = threading.Event()

    class Numbers:
        def __init__(self) -> None:
            self.last = 0

        def __aiter__(self) -> Numbers:
            return self

        async def __anext__(self) -> int:
            self.last += 1
            return self.last

        async def aclose(self) -> None:
            ended.set()

    for number in portal.each(Numbers()):
        if number == 3:
            break
    assert ended.wait(5)


def test_an_error_inside_is_the_callers_error() -> None:
    async def fail() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        Portal().run(fail())


def test_an_interrupted_caller_waits_for_the_cleanup() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with pytest.raises(KeyboardInterrupt):
        Portal().run(work())
    assert cleaned == ["up"]


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    program = """
import asyncio, os
from sandfleet.blocking.portal import PORTAL
async def answer(): return 42
assert PORTAL.run(answer()) == 42
child = os.fork()
if child == 0:
    os._exit(PORTAL.run(answer()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "42", done.stderr

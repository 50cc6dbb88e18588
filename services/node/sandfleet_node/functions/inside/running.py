"""Python code of a call, run in the forked process itself as its __main__."""

from __future__ import annotations

import atexit
import gc
import json
import linecache
import os
import resource
import sys
import threading
import traceback
import types
from typing import Any

from .frames import CALL_BYTES, DONE, DONE_MARK, MEMORY, NO_VALUE, RAISED, VALUE
from .steps import use_spare_memory

_LAST_LINE = 2000
_FLUSH_FAILED = 120
_WANTS_FILE = (b"__file__", b"multiprocessing", b"ProcessPool", b"main.py")


class NoValue(Exception):
    """What a function returned cannot be given back."""


def wants_file(code: bytes) -> bool:
    """Return whether code may look for the file it is in; most never do, and files cost."""
    return any(word in code for word in _WANTS_FILE)


def run(source: str, path: str, asked: dict[str, Any], note_fd: int) -> None:
    """Run code until it ends, and end this process as Python would. Does not return.

    Args:
        source: the code.
        path: of the file that holds it.
        asked: `function`, `arguments` and `keywords`, when a function is to be called.
        note_fd: where to say what it returned or raised.
    """
    status = 1
    try:
        status = _finish(_run(source, path, asked, note_fd))
        used = resource.getrusage(resource.RUSAGE_SELF)
        below = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime + below.ru_utime + below.ru_stime
        peak = max(used.ru_maxrss, below.ru_maxrss)
        _write(note_fd, DONE.pack(DONE_MARK, status & 0xFF, int(cpu * 1e6), peak))
    finally:
        os._exit(status)


def _run(source: str, path: str, asked: dict[str, Any], note_fd: int) -> int:
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    main = types.ModuleType("__main__")
    main.__file__ = path
    scope = main.__dict__
    scope["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.path.insert(0, path.rpartition("/")[0])
    gc.enable()
    try:
        exec(compile(source, path, "exec", dont_inherit=True), scope)
        if asked.get("function"):
            _note(note_fd, VALUE, _as_json(_call(scope, asked)))
    except NoValue as problem:
        _note(note_fd, NO_VALUE, str(problem))
        return 1
    except SystemExit as ending:
        return _exit_status(ending.code)
    except BaseException as problem:
        _tell(problem, path, note_fd)
        return 1
    return 0


def _call(scope: dict[str, Any], asked: dict[str, Any]) -> object:
    name = asked["function"]
    function = scope.get(name)
    if function is None:
        raise NameError("the code does not define " + name)
    return function(*asked.get("arguments", ()), **asked.get("keywords", {}))


def _as_json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
    except RecursionError:
        raise NoValue("what it returned is nested too deeply for JSON") from None
    except (TypeError, ValueError) as problem:
        raise NoValue("what it returned is not JSON: " + str(problem)) from None
    if len(text) > CALL_BYTES:
        raise NoValue(f"what it returned takes {len(text)} bytes of JSON, {CALL_BYTES} are allowed")
    return text


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201 - what Python does
    return 1


def _tell(problem: BaseException, path: str, note_fd: int) -> None:
    """Print a traceback that begins where the code does, and note its last line."""
    is_memory = isinstance(problem, MemoryError)
    if is_memory:
        use_spare_memory()
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    last = traceback.format_exception_only(type(problem), problem)[-1].strip()
    _note(note_fd, MEMORY if is_memory else RAISED, last[:_LAST_LINE])
    try:
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(type(problem), problem, trace)
        else:
            sys.excepthook(type(problem), problem, trace)
    except BaseException:
        traceback.print_exc()


def _note(fd: int, kind: bytes, text: str) -> None:
    _write(fd, kind + text.encode("utf-8", "replace"))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return


def _finish(status: int) -> int:
    """Do what Python does at its end."""
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            status = status or _FLUSH_FAILED
    return status

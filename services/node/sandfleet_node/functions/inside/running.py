"""Python code of a call, run in the forked process itself as its __main__."""

from __future__ import annotations

import atexit
import gc
import json
import linecache
import os
import sys
import threading
import traceback
import types

from .frames import CALL_BYTES, MEMORY, NO_VALUE, RAISED, VALUE
from .steps import use_spare_memory

_LAST_LINE = 2000


class NoValue(Exception):
    """What a function returned cannot be given back."""


def run(source: str, path: str, asked: dict, note_fd: int) -> None:
    """Run code until it ends, and end this process as Python would.

    Args:
        source: the code.
        path: of the file that holds it.
        asked: `function`, `arguments` and `keywords`, when a function is to be called.
        note_fd: where to say what it returned or raised.
    """
    status = 1
    try:
        status = _run(source, path, asked, note_fd)
        status = _finish(status)
    finally:
        os._exit(status)


def _run(source: str, path: str, asked: dict, note_fd: int) -> int:
    lines = source.splitlines(True)
    linecache.cache[path] = (len(source), None, lines, path)
    main = types.ModuleType("__main__")
    main.__file__ = path
    scope = main.__dict__
    scope["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [os.path.basename(path)]  # noqa: PTH119 - pathlib is not loaded everywhere
    sys.path.insert(0, os.path.dirname(path))  # noqa: PTH120
    gc.enable()
    try:
        exec(compile(source, path, "exec", dont_inherit=True), scope)
        if asked.get("function"):
            value = _call(scope, asked)
            _note(note_fd, VALUE, _as_json(value))
    except NoValue as problem:
        _note(note_fd, NO_VALUE, str(problem))
        return 1
    except SystemExit as ending:
        return _exit_status(ending.code)
    except BaseException as problem:
        _tell(problem, path, note_fd)
        return 1
    return 0


def _call(scope: dict, asked: dict) -> object:
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
        raise NoValue(
            "what it returned takes %d bytes of JSON, %d are allowed" % (len(text), CALL_BYTES)
        )
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
    data = memoryview(kind + text.encode("utf-8", "replace"))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        return


def _finish(status: int) -> int:
    """Do what Python does at its end."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            status = status or 120
    return status

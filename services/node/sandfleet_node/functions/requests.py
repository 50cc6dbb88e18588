"""A call as the zygote reads it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import CallLimits, FunctionCall

from .inside.frames import SIZE

_INSIDE = Path(__file__).with_name("inside")
_MODULES = (
    "frames", "steps", "speaking", "languages", "leftovers", "running", "working", "serve",
)  # fmt: skip
"""In an order in which each finds those that it imports."""
_PACKAGE = "sandfleet_zygote"
_LOADER = f"""
import json, os, sys, types
def take(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
told = json.loads(take(int.from_bytes(take(4), "little")))
sys.path[:] = [p for p in sys.path if p]
package = types.ModuleType("{_PACKAGE}")
package.__path__ = []
sys.modules["{_PACKAGE}"] = package
for name, text in told["modules"]:
    module = types.ModuleType("{_PACKAGE}." + name)
    module.__package__ = "{_PACKAGE}"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(text, "<" + module.__name__ + ">", "exec"), module.__dict__)
sys.modules["{_PACKAGE}.serve"].main(told["settings"])
"""
COMMAND = ("python3", "-B", "-c", _LOADER)
"""What a warm sandbox runs."""


def opening(calls: int, imports: list[str], places: list[str] | None) -> bytes:
    """Return what the zygote is told first: its own text and its settings.

    Args:
        calls: how many it serves.
        imports: what to import beside what everybody needs.
        places: what everybody may write to in the environment; None: it has to look.
    """
    modules = [(name, (_INSIDE / f"{name}.py").read_text()) for name in _MODULES]
    settings = {"calls": calls, "imports": imports, "places": places}
    told = json.dumps({"modules": modules, "settings": settings}).encode()
    return SIZE.pack(len(told)) + told


def pack(call: FunctionCall) -> bytes:
    """Return a request.

    Raises:
        BadRequest: the code cannot be written as UTF-8, or a file is to be a directory too.
    """
    _check_files(call)
    try:
        code = call.code.encode()
    except UnicodeEncodeError:
        raise BadRequest("code: holds half of a surrogate pair", field="code") from None
    compiling = call.compile_limits
    about: dict[str, Any] = {
        "language": call.language,
        "code": len(code),
        "stdin": len(call.stdin),
        "files": [(name, len(data)) for name, data in call.files.items()],
        "fetch": call.fetch,
        "env": call.env,
        "limits": _numbers(call.limits),
        "compile": None if compiling is None else _numbers(compiling),
    }
    if call.function is not None:
        about["function"] = call.function
        about["arguments"], about["keywords"] = call.arguments, call.keywords
    head = json.dumps(about).encode()
    body = b"".join((SIZE.pack(len(head)), head, code, call.stdin, *call.files.values()))
    return SIZE.pack(len(body)) + body


def _numbers(limits: CallLimits) -> list[float]:
    return [
        limits.wall_seconds,
        math.ceil(limits.cpu_seconds or 0),
        limits.memory_bytes,
        limits.processes,
        limits.output_bytes,
        limits.file_bytes,
    ]


def _check_files(call: FunctionCall) -> None:
    for name in call.files:
        parts = name.split("/")
        for count in range(1, len(parts)):
            if "/".join(parts[:count]) in call.files:
                raise BadRequest(f"files: {name[:80]!r} lies below another file", field="files")

"""What the tests of caps have in common: a program that tries, and a witness beside it."""

from __future__ import annotations

import errno
import platform
import subprocess
from pathlib import Path

import pytest
from node.nodes import RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_ulid

PROBE = "/root/probe"
_KERNEL_HEADERS = ("/usr/include", f"/usr/include/{platform.machine()}-linux-gnu")
CAP = 64 * m.MIB


def build_probe(folder: Path) -> bytes:
    """Return the program that tries, built so that it runs anywhere."""
    program = folder / "caps_probe"
    source = Path(__file__).with_name("caps_probe.c")
    headers = [f"-idirafter{place}" for place in _KERNEL_HEADERS]
    argv = ["musl-gcc", "-O1", "-static", "-s", *headers, "-o", str(program), str(source)]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs musl-gcc: apt-get install musl-tools")
    return program.read_bytes()


async def put(node: RunningNode, sandbox: str, path: str, data: bytes) -> None:
    """Write an executable file into a sandbox."""
    upload = new_ulid()
    for start in range(0, len(data), m.CHUNK_BYTES):
        part = data[start : start + m.CHUNK_BYTES]
        body = m.FileWrite(
            sandbox_id=sandbox, path=path, upload=upload, position=start, data=part,
            end=start + len(part) == len(data), mode=0o755,
        )  # fmt: skip
        await node.ask(s.FILE_WRITE, body)


async def sh(node: RunningNode, sandbox: str, script: str, seconds: float = 20) -> m.ExecState:
    """Run a shell's script to its end."""
    return await node.run(sandbox, "sh", "-c", script, wait_seconds=seconds)


def told(state: m.ExecState) -> dict[str, int]:
    """Return what the program printed, by name."""
    lines = [line.split() for line in output(state, "stdout").decode().splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


async def assert_answers(node: RunningNode, *sandboxes: str) -> None:
    """Sandboxes run commands and write files."""
    for sandbox in sandboxes:
        state = await sh(node, sandbox, "echo here > /root/witness && cat /root/witness")
        assert output(state, "stdout") == b"here\n", (state, output(state))


EDQUOT = errno.EDQUOT

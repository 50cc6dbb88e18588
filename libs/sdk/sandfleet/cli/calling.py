"""call: code in a warm sandbox, gone when it has ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

import click
from click.shell_completion import CompletionItem

from sandfleet.client import AsyncClient
from sandfleet.results import CallResult
from sandfleet_common.messages import CALL_BYTES, CallLimits, Language

from . import options, session, terminal, text

SUFFIXES: dict[str, Language] = {
    ".py": "python",
    ".sh": "bash",
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cxx": "cpp",
    ".js": "javascript",
    ".mjs": "javascript",
}
LANGUAGES = cast(tuple[Language, ...], get_args(Language))
_NAMES = {
    "wall_seconds": "--timeout",
    "memory_bytes": "--memory",
    "queue_seconds": "--queue",
    "environment": "--environment",
    "env": "--env",
    "files": "--file",
    "fetch": "--fetch",
}
KILLED = session.EXIT_SIGNAL + signal.SIGKILL


def _program(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [CompletionItem(incomplete, type="file")]


@click.command(cls=session.Taught)
@click.option(
    "-l",
    "--language",
    type=click.Choice(LANGUAGES),
    help="Default: by the file's ending, else python.",
)
@click.option(
    "-e",
    "--environment",
    default="debian",
    show_default=True,
    shell_complete=options.known_environments,
    help="Environment, name[:version].",
)
@click.option("--env", type=options.ASSIGNMENT, multiple=True, help="Environment variable.")
@click.option(
    "--timeout",
    "limit_s",
    type=options.DURATION,
    default="10s",
    show_default=True,
    help="Kill it after.",
)
@click.option(
    "--queue",
    type=options.DURATION,
    default="30s",
    show_default=True,
    help="Wait for a sandbox so long.",
)
@click.option(
    "--memory",
    type=options.SIZE,
    default="512m",
    show_default=True,
    help="Memory of each of its processes.",
)
@click.option(
    "--file",
    "files",
    metavar="LOCAL[:NAME]",
    multiple=True,
    shell_complete=_program,
    help="Put a file into its directory.",
)
@click.option(
    "--fetch",
    metavar="NAME[:LOCAL]",
    multiple=True,
    help="Take a file out of its directory.",
)
@options.json_option
@click.argument("code", metavar="CODE|FILE|-", shell_complete=_program)
@session.command(session.EXIT_PLATFORM)
async def call(
    client: AsyncClient,
    *,
    code: str,
    language: Language | None,
    environment: str,
    env: tuple[tuple[str, str], ...],
    limit_s: float,
    queue: float,
    memory: int,
    files: tuple[str, ...],
    fetch: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run code in a warm sandbox that keeps nothing of it.

    The code is the argument itself, a file, or - for what is piped in; input that is
    piped in otherwise goes to the program. The exit code is the program's: 128 and the
    signal's number when a signal or a limit ended it, 125 when the platform failed.

      sandfleet call 'print(6 * 7)'
      sandfleet call solution.py < input.txt
      sandfleet call -l bash 'seq 3 | paste -sd+'
      sandfleet call main.c --timeout 2 --memory 64m
      sandfleet call plot.py --file data.csv --fetch plot.png
      sandfleet call - -l cpp --json < main.cpp
    """
    given = b"" if terminal.is_terminal(0) else await _read_input()
    if code == "-":
        program, found, given = _decoded(given, "the code"), "python", b""
    else:
        program, found = _program_of(code)
    wanted = [_pair(item) for item in fetch]
    with options.named(_NAMES):
        result = await client.call(
            program,
            language=language or found,
            stdin=given,
            files=await asyncio.to_thread(_read_files, files),
            fetch=[name for name, _ in wanted],
            env=dict(env),
            limits=CallLimits.of(wall_seconds=limit_s, memory_bytes=memory),
            environment=environment,
            queue_s=queue,
        )
    for name, local in wanted:
        if name in result.files:
            await asyncio.to_thread(_write_file, local or name, result.files[name])
    if as_json:
        session.show_data(_data(result))
        return status_of(result)
    return await _show(result, limit_s)


def status_of(result: CallResult) -> int:
    """Return the exit status that stands for a result."""
    if result.status == "lost":
        return session.EXIT_PLATFORM
    if result.signal is not None:
        return session.EXIT_SIGNAL + result.signal
    if result.exit_code is None or (result.exit_code == 0 and not result.ok):
        return KILLED
    return result.exit_code


async def _show(result: CallResult, limit_s: float) -> int:
    screen = terminal.Screen()
    try:
        await screen.show("stdout", result.stdout)
        await screen.show("stderr", result.stderr)
        await screen.end()
    except BrokenPipeError:
        terminal.quiet_exit_on_broken_pipe()
        return session.EXIT_SIGNAL + signal.SIGPIPE
    if result.dropped_bytes:
        session.tell(f"[sandfleet: {text.size(result.dropped_bytes)} of output dropped]")
    for name in result.missing:
        session.tell(f"[sandfleet: {text.safe_line(name)} is no file there, or too large]")
    why = {
        "timeout": f"time limit of {limit_s:g} s reached",
        "memory": "it ran out of memory",
        "compile_error": "it did not compile",
        "lost": "its sandbox ended under it",
    }.get(result.status)
    if why is not None:
        session.tell(f"[sandfleet: {why}]")
    return status_of(result)


def _data(result: CallResult) -> dict[str, object]:
    return {
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "stdout": result.text,
        "stderr": result.error_text,
        "fetched": sorted(result.files),
        "missing": list(result.missing),
        "dropped_bytes": result.dropped_bytes,
        "cpu_seconds": result.cpu_seconds,
        "memory_peak_bytes": result.memory_peak_bytes,
        "wait_ms": result.wait_ms,
        "run_ms": result.run_ms,
        "is_cold": result.is_cold,
        "node": result.node,
        "sandbox_id": result.sandbox_id,
    }


async def _read_input() -> bytes:
    held = bytearray()
    async for data in terminal.read_input():
        held += data
        if len(held) > CALL_BYTES:
            raise session.WrongUsage(
                f"the input has more than {CALL_BYTES} bytes: use `sandfleet run`"
            )
    return bytes(held)


def _program_of(word: str) -> tuple[str, Language]:
    """Return code and language of what a person typed: a file, or the code itself."""
    path = Path(word)
    language = SUFFIXES.get(path.suffix)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        is_file = False
    if is_file:
        return _decoded(_read(path), word), language or "python"
    if language is not None and len(word.split()) == 1 and "(" not in word:
        raise session.WrongUsage(f"there is no file {text.safe_line(word)!r}")
    return word, "python"


def _read_files(words: Sequence[str]) -> dict[str, str | bytes]:
    found: dict[str, str | bytes] = {}
    for word in words:
        local, name = _pair(word)
        found[name or Path(local).name] = _read(Path(local))
    return found


def _pair(word: str) -> tuple[str, str | None]:
    first, _, second = word.rpartition(":")
    return (first, second) if first and second else (word, None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise session.WrongUsage(f"{path}: {problem.strerror}") from None


def _write_file(local: str, content: bytes) -> None:
    path = Path(local)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as problem:
        raise session.WrongUsage(f"{path}: {problem.strerror}") from None


def _decoded(content: bytes, what: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise session.WrongUsage(f"{text.safe_line(what)} is not UTF-8 text") from None

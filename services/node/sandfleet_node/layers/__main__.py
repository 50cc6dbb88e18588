"""`python -m sandfleet_node.layers build-base --state DIR`: make sure there is a base layer."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from sandfleet_common.errors import SandfleetError

from .base import build_base
from .directory import DirectoryStore


def main(arguments: list[str] | None = None) -> int:
    """Build what is missing; the last line on the standard output names the environment."""
    parser = argparse.ArgumentParser(prog="python -m sandfleet_node.layers")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build-base", help="build the Debian base unless it exists")
    build.add_argument("--state", type=Path, required=True, metavar="DIR", help="state directory")
    build.add_argument("--name", default="debian", help="name of the environment")
    build.add_argument("--again", action="store_true", help="build a new version all the same")
    options = parser.parse_args(arguments)
    store = DirectoryStore(options.state / "layers")
    try:
        made = asyncio.run(build_base(store, options.name, _tell, again=options.again))
    except SandfleetError as problem:
        sys.stderr.write(f"build-base: {problem.message}\n")
        return 1
    sys.stdout.write(f"{made.name}:{made.version} {made.layers[0].digest}\n")
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"base layer: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

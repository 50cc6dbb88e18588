"""Commands beside the node: `python -m sandfleet_node.layers build-base|merge`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from sandfleet_common.errors import SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB, EnvironmentInfo

from .base import build_base
from .catalog import Catalog
from .directory import DirectoryStore
from .mergework import SMALL_BYTES, merge_environment
from .opening import open_store


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked; the last line on the standard output names the environment."""
    options = _parser().parse_args(arguments)
    try:
        made = asyncio.run(options.run(options))
    except (SandfleetError, OSError) as problem:
        sys.stderr.write(f"{options.command}: {problem}\n")
        return 1
    sys.stdout.write(f"{made.name}:{made.version} {made.layers[0].digest}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandfleet_node.layers")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build-base", help="build the Debian base unless it exists")
    build.add_argument("--state", type=Path, required=True, metavar="DIR", help="state directory")
    build.add_argument("--name", default="debian", help="name of the environment")
    build.add_argument("--again", action="store_true", help="build a new version all the same")
    build.set_defaults(run=_build)
    merge = commands.add_parser(
        "merge", help="publish a version in which small consecutive layers of one kind are one"
    )
    where = merge.add_mutually_exclusive_group(required=True)
    where.add_argument("--state", type=Path, metavar="DIR", help="state directory with the store")
    where.add_argument("--store", metavar="URL", help="file:///path or s3://bucket/prefix")
    merge.add_argument("--endpoint", default="", help="of an object store, http://host:port")
    merge.add_argument("--environment", required=True, metavar="NAME", help="or NAME:VERSION")
    merge.add_argument(
        "--small-mib", type=int, default=SMALL_BYTES // MIB, metavar="N",
        help="merge layers smaller than this (default %(default)s)",
    )  # fmt: skip
    merge.add_argument(
        "--work", type=Path, metavar="DIR", help="a directory with room for all of them"
    )
    merge.set_defaults(run=_merge)
    return parser


async def _build(options: argparse.Namespace) -> EnvironmentInfo:
    store = DirectoryStore(options.state / "layers")
    return await build_base(store, options.name, _tell, again=options.again)


async def _merge(options: argparse.Namespace) -> EnvironmentInfo:
    url = options.store or (options.state / "layers").absolute().as_uri()
    store = open_store(url, options.endpoint)
    work = options.work or Path(tempfile.gettempdir())
    return await merge_environment(
        store, Catalog(store, Logger("layers")), options.environment, work, _tell,
        options.small_mib * MIB,
    )  # fmt: skip


def _tell(line: str) -> None:
    sys.stderr.write(f"layers: {line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())

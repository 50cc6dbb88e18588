"""Running all checks and showing what they found."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from . import ebpf, filesystems, kernel, resources, software
from .check import Check, Host, Status

CHECKS: tuple[Callable[[Host], Check], ...] = (
    kernel.kernel, kernel.root, kernel.user_namespaces, kernel.cgroups,
    filesystems.erofs, filesystems.overlay, filesystems.disk_caps,
    ebpf.ebpf, ebpf.btf, kernel.kvm, kernel.psi, kernel.core_scheduling,
    resources.memory, resources.swap, resources.disk,
    kernel.processes, kernel.open_files, kernel.inotify, resources.clock,
    software.nats_server, software.redis_server,
    software.native, software.sensor, software.base_layer,
)  # fmt: skip
_COLOURS: dict[Status, str] = {"ok": "32", "warn": "33", "fail": "1;31"}
_WIDTH_ID = 16


def run_checks(state: Path) -> list[Check]:
    """Look at everything, in the order of the report."""
    host = Host(state)
    return [check(host) for check in CHECKS]


def render(checks: Sequence[Check], *, width: int, colour: bool, verbose: bool = False) -> str:
    """Return the report as text: a line for each check, and advice where one is not fine."""
    lines: list[str] = []
    margin = " " * (_WIDTH_ID + 8)
    for check in checks:
        mark = f"{check.status:<4}"
        if colour:
            mark = f"\x1b[{_COLOURS[check.status]}m{mark}\x1b[0m"
        lines.append(f"  {mark}  {check.id:<{_WIDTH_ID}}{check.found}")
        if check.status != "ok" or verbose:
            lines += textwrap.wrap(
                f"for: {check.why}",
                width,
                initial_indent=margin,
                subsequent_indent=margin + "     ",
            )
            if check.mend:
                lines.append(f"{margin}mend: {check.mend}")
    count = {status: sum(c.status == status for c in checks) for status in ("ok", "warn", "fail")}
    verdict = "this host cannot run sandboxes yet" if count["fail"] else "this host runs sandboxes"
    lines += ["", f"  {count['ok']} ok, {count['warn']} warn, {count['fail']} fail: {verdict}"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """Print the report; 0 when nothing fails, else 1."""
    parser = argparse.ArgumentParser(prog="doctor", description="What this host has and lacks.")
    parser.add_argument("--json", action="store_true", help="print a list of all checks as JSON")
    parser.add_argument("--verbose", action="store_true", help="say what each check is for")
    parser.add_argument(
        "--state",
        type=Path,
        default=Path(os.environ.get("SANDFLEET_STATE_DIR") or "/var/lib/sandfleet"),
        metavar="DIR",
        help="state directory (default: SANDFLEET_STATE_DIR, else /var/lib/sandfleet)",
    )
    options = parser.parse_args(argv)
    checks = run_checks(options.state)
    if options.json:
        sys.stdout.write(json.dumps([asdict(check) for check in checks], indent=2) + "\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        width = min(shutil.get_terminal_size((100, 24)).columns, 110)
        text = render(checks, width=width, colour=colour, verbose=options.verbose)
        sys.stdout.write(text)
    return 1 if any(check.status == "fail" for check in checks) else 0

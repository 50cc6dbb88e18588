"""Ten minutes of ordinary life with a node that dies every minute; then count what is left.

Sandboxes come at a steady rate and live as long as those of real training do, on a
smaller scale: log-normal, many short, few long. Meanwhile commands run in them,
files are written and read back, they are paused and go on, and every minute the
node service is killed with SIGKILL and started anew. What a sandbox says is
compared with what it must say. At the end all have ended, one by one or by their
TTL, and everything the platform holds is counted against the count before.

    make soak
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import host
import ledger
import report
from rich.console import Console
from rich.table import Table

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, local
from sandfleet_common.errors import SandboxGone, SandfleetError

LIFETIME_MEAN_SECONDS = 20.0
"""A training's 17 minutes, about fifty times faster."""
LIFETIME_SPREAD = 1.2
LIFETIME_MOST_SECONDS = 120.0
PAUSED_MOST_SECONDS = 30.0
"""One that is paused when its client leaves ends after so long."""
BETWEEN_OPERATIONS_SECONDS = 8.0
SETTLE_SECONDS = 90.0
RESOURCES = Resources(cpu=1, memory_bytes=256 * 1024**2, pids=64, disk_bytes=64 * 1024**2)


@dataclass(slots=True)
class Tally:
    """What happened so far."""

    done: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    alive: int = 0

    def says(self) -> str:
        """Return one line of it."""
        counts = " ".join(f"{name}={count}" for name, count in sorted(self.done.items()))
        return f"alive={self.alive} {counts} failed={sum(self.failed.values())}"


class Life:
    """One sandbox from its creation to its end."""

    def __init__(self, client: AsyncClient, random: Random, tally: Tally) -> None:
        self._client = client
        self._random = random
        self._tally = tally
        mean = LIFETIME_MEAN_SECONDS
        # The mean of a log-normal is exp(mu + sigma^2 / 2): scale the draw so that it comes out.
        drawn = mean * random.lognormvariate(-(LIFETIME_SPREAD**2) / 2, LIFETIME_SPREAD)
        self._seconds = min(LIFETIME_MOST_SECONDS, max(0.2, drawn))
        self._by_ttl = random.random() < 0.3
        self._token = f"{random.getrandbits(64):016x}"

    async def run(self) -> None:
        """Live."""
        self._tally.alive += 1
        try:
            await self._live()
        except SandboxGone as problem:
            # These may come between two operations; anything else must not end it.
            expected = "paused for too long", "its time to live" if self._by_ttl else "never"
            if not any(reason in problem.message for reason in expected):
                self._tally.failed[f"gone: {problem.message[:100]}"] += 1
        except SandfleetError as problem:
            self._tally.failed[f"{problem.code}: {problem.message[:100]}"] += 1
        finally:
            self._tally.alive -= 1

    async def _live(self) -> None:
        ttl = self._seconds if self._by_ttl else 600.0
        spec = SandboxSpec(
            resources=RESOURCES,
            ttl_seconds=ttl,
            paused_ttl_seconds=PAUSED_MOST_SECONDS,
            labels={"soak": "1"},
        )
        sandbox = await self._client.create(spec)
        self._tally.done["created"] += 1
        ends = time.monotonic() + self._seconds
        await sandbox.files.write("/root/token", self._token.encode())
        while True:
            pause = self._random.expovariate(1 / BETWEEN_OPERATIONS_SECONDS)
            left = ends - time.monotonic()
            await asyncio.sleep(max(0.0, min(pause, left)))
            if left <= pause:
                break
            await self._operate(sandbox)
        if not self._by_ttl:
            await sandbox.stop()
            self._tally.done["stopped"] += 1

    async def _operate(self, sandbox: AsyncSandbox) -> None:
        roll = self._random.random()
        if roll < 0.5:
            await self._execute(sandbox)
        elif roll < 0.75:
            await self._read_back(sandbox)
        else:
            await sandbox.pause()
            self._tally.done["paused"] += 1
            if roll < 0.9:
                await asyncio.sleep(self._random.random() * 3)
                await self._execute(sandbox)

    async def _execute(self, sandbox: AsyncSandbox) -> None:
        number = self._random.randrange(1 << 30)
        result = await sandbox.run(["sh", "-c", f"cat /root/token; echo {number}"])
        self._expect(sandbox, f"{self._token}{number}\n", result.text)
        self._tally.done["commands"] += 1

    async def _read_back(self, sandbox: AsyncSandbox) -> None:
        data = self._random.randbytes(self._random.randrange(1, 200_000))
        await sandbox.files.write("/root/data", data)
        if await sandbox.files.read("/root/data") != data:
            self._tally.wrong.append(f"{sandbox.id}: a file came back different")
        self._tally.done["files"] += 1

    def _expect(self, sandbox: AsyncSandbox, wanted: str, got: str) -> None:
        if got != wanted:
            self._tally.wrong.append(f"{sandbox.id}: said {got[:60]!r} instead of {wanted!r}")


async def arrive(client: AsyncClient, tally: Tally, seconds: float, rate: float) -> None:
    """Begin `rate` lives a second for so long, and return when all are over."""
    random = Random(20)
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(seconds * rate)):
            await asyncio.sleep(max(0.0, start + number / rate - time.monotonic()))
            group.create_task(Life(client, Random(random.getrandbits(64)), tally).run())


async def disturb(state: Path, tally: Tally, every: float, console: Console) -> None:
    """Kill the node service again and again, and start it anew."""
    while True:
        await asyncio.sleep(every)
        places = local.find(state)
        if places is None:
            raise RuntimeError("the platform has gone")
        console.print(f"  {tally.says()}; killing the node", highlight=False, markup=False)
        await asyncio.to_thread(kill, places.pids["node"])
        await asyncio.to_thread(local.up, state, progress=lambda line: None)
        tally.done["kills"] += 1


def kill(pid: int) -> None:
    """Kill a process and wait until it has gone."""
    handle = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        while pid in host.processes():
            time.sleep(0.01)
    finally:
        os.close(handle)


async def soak(state: Path, seconds: float, rate: float, every: float, console: Console) -> Tally:
    """Run it, and return what happened."""
    tally = Tally()
    async with AsyncClient.connect() as client:
        disturbing = asyncio.create_task(disturb(state, tally, every, console))
        try:
            await arrive(client, tally, seconds, rate)
        finally:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
    return tally


async def warm_up() -> None:
    """Live once, so that what stays for good (a layer's mount, indexes) is there before."""
    async with AsyncClient.connect() as client, await client.create() as first:
        await first.pause()
        await first.run(["true"])


def settled(state: Path, before: ledger.Ledger) -> ledger.Ledger:
    """Count until nothing differs any more, or for SETTLE_SECONDS."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        now = ledger.read(state)
        if not before.differences(now) or time.monotonic() > until:
            return now
        time.sleep(1)


def show(before: ledger.Ledger, after: ledger.Ledger, console: Console) -> None:
    """Print the ledger."""
    table = Table("", "before", "after", title="ledger")
    for name, value in dataclasses.asdict(before).items():
        table.add_row(name.replace("_", " "), str(value), str(getattr(after, name)))
    console.print(table)


def main() -> int:
    """Run the soak; exit status 1 when anything leaked, failed or was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=40, help="creations a second")
    parser.add_argument("--kill-every", type=float, default=60, metavar="SECONDS")
    options = parser.parse_args()
    console = Console()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        asyncio.run(warm_up())
        time.sleep(5)  # pools fill up
        before = ledger.read(state)
        tally = asyncio.run(soak(state, options.seconds, options.rate, options.kill_every, console))
        after = settled(state, before)
    finally:
        local.down(state, progress=lambda line: None)
    left = ledger.left_after_down(state)
    show(before, after, console)
    leaks = before.differences(after)
    for text in [*tally.wrong[:10], *(f"{n} x {text}" for text, n in tally.failed.items()), *left]:
        console.print(f"  {text}", markup=False, highlight=False)
    report.write(
        "soak",
        {
            "seconds": options.seconds,
            "rate_per_s": options.rate,
            **dict(sorted(tally.done.items())),
            "failed": sum(tally.failed.values()),
            "wrong": len(tally.wrong),
            "leaks": sum(abs(b - a) for a, b in leaks.values()),
            "left_after_down": len(left),
        },
        [f"{name}: {a} before, {b} after" for name, (a, b) in leaks.items()],
    )
    return 1 if leaks or left or tally.wrong or tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Which phase each sandbox is in, and its share of the CPU that follows from it.

Going up is done before a command starts, by a write or two of some microseconds. Going
down waits until no command has run for a second: a sandbox that runs one command after
another is not moved between them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxPhase

from .cgroups import Cgroups
from .kernelfiles import write_file
from .qos import IDLE_FILE, Share, changes, effective, share_of
from .sandbox import Sandbox

QUIET_SECONDS = 1.0
_FILE = "phase"
"""In a sandbox's directory, when its user has said which phase it is in."""


class Phases:
    """Applies classes and phases to control groups, only when something changes."""

    def __init__(self, cgroups: Cgroups, log: Logger) -> None:
        self._cgroups = cgroups
        self._log = log
        self._wanted: dict[str, SandboxPhase] = {}
        """What users have said; AUTO where nothing."""
        self._applied: dict[str, Share] = {}
        """What differs from what a sandbox was created with."""
        self._up: dict[str, tuple[Sandbox, bool]] = {}
        """Those to look at again: with whether they were quiet at the last look."""
        self._has_idle = True

    def open(self) -> None:
        """Look whether the kernel has idle groups, once the node's own groups are there."""
        directory, _ = self._cgroups.controller_dir("cpu", "")
        self._has_idle = Path(directory, IDLE_FILE).exists()  # since Linux 5.15

    def created_with(self, sandbox: Sandbox) -> Share:
        """Return the share that `Cgroups.create` gives."""
        return self._share(sandbox, SandboxPhase.ACTIVE)

    def on_command(self, sandbox: Sandbox, *, background: bool) -> None:
        """Give a sandbox the share of an active one: a command is about to start in it."""
        is_ending = sandbox.ending is not None  # `forget` has been called: note nothing more
        if background or is_ending or self._wanted.get(sandbox.id) is not None:
            return
        self._apply(sandbox, SandboxPhase.ACTIVE)
        self._up[sandbox.id] = (sandbox, False)

    def set(self, sandbox: Sandbox, phase: SandboxPhase) -> None:
        """Put a sandbox into the phase its user named; kept over restarts.

        Raises:
            OSError: that could not be written down.
        """
        path = Path(sandbox.directory, _FILE)
        if phase is SandboxPhase.AUTO:
            path.unlink(missing_ok=True)
            self._wanted.pop(sandbox.id, None)
        else:
            path.write_text(phase)
            self._wanted[sandbox.id] = phase
        self._refresh(sandbox)

    def adopt(self, sandbox: Sandbox) -> None:
        """Apply what a sandbox's class and phase say, whatever an earlier service had written."""
        try:
            self._wanted[sandbox.id] = SandboxPhase(Path(sandbox.directory, _FILE).read_text())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as problem:
            self._log.warning("phase.unreadable", sandbox=sandbox.id, error=str(problem))
        self._refresh(sandbox, is_known=False)

    def forget(self, sandbox: Sandbox) -> None:
        """Drop what is known of a sandbox that ends."""
        for table in (self._wanted, self._applied, self._up):
            table.pop(sandbox.id, None)

    async def run(self) -> None:
        """Lower the shares of sandboxes that have fallen quiet, until cancelled."""
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Lower those that were quiet at the last look and still are."""
        for sandbox_id, (sandbox, was_quiet) in list(self._up.items()):
            if sandbox.commands.foreground > 0:
                self._up[sandbox_id] = (sandbox, False)
            elif not was_quiet:
                self._up[sandbox_id] = (sandbox, True)
            else:
                del self._up[sandbox_id]
                self._refresh(sandbox)

    def _refresh(self, sandbox: Sandbox, *, is_known: bool = True) -> None:
        is_busy = sandbox.commands.foreground > 0
        wanted = self._wanted.get(sandbox.id, SandboxPhase.AUTO)
        self._apply(sandbox, effective(wanted, is_busy=is_busy), is_known=is_known)
        if is_busy and wanted is SandboxPhase.AUTO:
            self._up[sandbox.id] = (sandbox, False)
        else:
            self._up.pop(sandbox.id, None)

    def _share(self, sandbox: Sandbox, phase: SandboxPhase) -> Share:
        spec = sandbox.spec
        return share_of(spec.qos, phase, spec.resources.cpu, has_idle=self._has_idle)

    def _apply(self, sandbox: Sandbox, phase: SandboxPhase, *, is_known: bool = True) -> None:
        before = self._applied.get(sandbox.id) or self.created_with(sandbox)
        after = self._share(sandbox, phase)
        directory, is_v2 = self._cgroups.controller_dir("cpu", sandbox.id)
        try:
            for name, value in changes(before if is_known else None, after, is_v2=is_v2):
                if name != IDLE_FILE or self._has_idle:
                    write_file(f"{directory}/{name}", value)
        except OSError as problem:
            # A group that is being removed. A share is no promise that a command depends on.
            self._log.warning("phase.unset", sandbox=sandbox.id, error=str(problem))
            return
        self._applied[sandbox.id] = after

"""Where sandbox objects are put together, with their table of commands."""

from __future__ import annotations

from functools import partial

from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxSpec

from .cgroups import Cgroups
from .commandtable import CommandTable, Keeping
from .places import Places
from .sandbox import Ground, Hearers, Sandbox


class Workshop:
    """Makes sandbox objects, for new sandboxes and for adopted ones."""

    def __init__(
        self,
        node: str,
        places: Places,
        cgroups: Cgroups,
        keeping: Keeping,
        hearers: Hearers,
        log: Logger,
    ) -> None:
        self._node = node
        self._places = places
        self._cgroups = cgroups
        self._keeping = keeping
        self._hearers = hearers
        self._log = log

    def make(self, sandbox_id: str, spec: SandboxSpec, ground: Ground, uid: int) -> Sandbox:
        """Return a sandbox that has no processes yet."""
        directory = self._places.sandbox(sandbox_id)
        commands = CommandTable(
            f"{directory}/commands",
            self._keeping,
            partial(self._cgroups.oom_kills, sandbox_id),
            self._log,
        )
        return Sandbox(
            sandbox_id, self._node, spec, ground, uid, directory, commands, self._hearers
        )

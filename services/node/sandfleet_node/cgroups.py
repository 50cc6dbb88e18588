"""Control groups of the node's sandboxes, on pure v2 and on v1 controllers beside a v2 tree.

Each sandbox has `sandfleet/<node>/<sandbox>` in the v2 hierarchy, where it can be
killed as a whole, and the same path in the v1 hierarchy of each controller that v2
does not have. Nothing is ever made or removed elsewhere.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from sandfleet_common.messages import Qos, Resources, SandboxPhase

from .hierarchies import CgroupError, Hierarchies
from .kernelfiles import parse_flat, write_file
from .qos import IDLE_FILE, share_of, weight_value

_PERIOD_US = 100_000
_SERVICES = "_services"
_READY = "ready-"
"""Names of groups made ahead begin with it; no sandbox's does."""


def _share_values(asked: Resources, qos: Qos, *, is_v2: bool) -> list[tuple[str, str]]:
    """Return what gives a new sandbox its share of contended cores; see `qos`."""
    share = share_of(qos, SandboxPhase.ACTIVE, asked.cpu)
    name, value = weight_value(share, is_v2=is_v2)
    values = [] if (name, value) == ("cpu.shares", "1024") else [(name, value)]
    return [*values, (IDLE_FILE, "1")] if share.is_idle else values


def _quota_us(asked: Resources) -> int:
    return max(1000, round(asked.cpu * _PERIOD_US))


def v2_values(controllers: frozenset[str], asked: Resources, qos: Qos) -> list[tuple[str, str]]:
    """Return file names and values that set the limits in v2, for the controllers there are."""
    values: list[tuple[str, str]] = []
    if "memory" in controllers:
        values += [("memory.max", str(asked.memory_bytes)), ("memory.swap.max", "0")]
    if "pids" in controllers:
        values.append(("pids.max", str(asked.pids)))
    if "cpu" in controllers:
        values.append(("cpu.max", f"{_quota_us(asked)} {_PERIOD_US}"))
        values += _share_values(asked, qos, is_v2=True)
    return values


def v1_values(controller: str, asked: Resources, qos: Qos) -> list[tuple[str, str]]:
    """Return file names and values that set the limits in one v1 hierarchy."""
    if controller == "memory":
        limit = str(asked.memory_bytes)
        return [("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit)]
    if controller == "pids":
        return [("pids.max", str(asked.pids))]
    # The period is the kernel's default, and so are the shares of one core.
    return [
        ("cpu.cfs_quota_us", str(_quota_us(asked))),
        *_share_values(asked, qos, is_v2=False),
    ]


_OPTIONAL = frozenset({"memory.swap.max", "memory.memsw.limit_in_bytes", "cpu.shares", IDLE_FILE})
"""Files that a kernel may lack without a limit being lost."""


class Cgroups:
    """The control groups of one node. Methods are quick unless they say otherwise."""

    def __init__(self, hierarchies: Hierarchies, node: str) -> None:
        self._h = hierarchies
        self._node = node
        self._v2 = f"{hierarchies.unified}/sandfleet/{node}"
        self._v1 = {name: f"{where}/sandfleet/{node}" for name, where in hierarchies.v1.items()}

    @property
    def hierarchies(self) -> Hierarchies:
        """Where the controllers are."""
        return self._h

    def open(self) -> None:
        """Make the node's own directories and pass the v2 controllers on to them.

        Raises:
            CgroupError: v2 controllers cannot be passed on.
        """
        for path in self._v1.values():
            Path(path).mkdir(parents=True, exist_ok=True)
            memory = Path(path).parent / "memory.use_hierarchy"
            if memory.exists() and memory.read_text().strip() == "0":
                write_file(str(memory), "1")
        Path(self._v2).mkdir(parents=True, exist_ok=True)
        if self._h.v2:
            wanted = " ".join(f"+{name}" for name in sorted(self._h.v2))
            for path in (self._h.unified, f"{self._h.unified}/sandfleet", self._v2):
                self._pass_on(path, wanted)

    def _pass_on(self, path: str, wanted: str) -> None:
        try:
            write_file(f"{path}/cgroup.subtree_control", wanted)
        except OSError as problem:
            if problem.errno != errno.EBUSY or path != self._h.unified:
                raise CgroupError(f"cannot enable {wanted} in {path}: {problem}") from problem
            self._step_aside()
            write_file(f"{path}/cgroup.subtree_control", wanted)

    def _step_aside(self) -> None:
        """Move what runs in the root group into a leaf: in a container it is no real root."""
        leaf = Path(self._h.unified, "sandfleet", _SERVICES)
        leaf.mkdir(exist_ok=True)
        for pid in Path(self._h.unified, "cgroup.procs").read_text().split():
            try:
                write_file(str(leaf / "cgroup.procs"), pid)
            except ProcessLookupError:
                continue

    def v2_dir(self, sandbox_id: str) -> str:
        """Return the sandbox's directory in v2."""
        return f"{self._v2}/{sandbox_id}"

    def v1_dirs(self, sandbox_id: str) -> list[str]:
        """Return the sandbox's directories in v1."""
        return [f"{path}/{sandbox_id}" for path in self._v1.values()]

    def controller_dir(self, controller: str, sandbox_id: str) -> tuple[str, bool]:
        """Return where a sandbox's group of a controller is, and whether that is a v2 group."""
        v1 = self._v1.get(controller)
        if v1 is None:
            return self.v2_dir(sandbox_id), True
        return f"{v1}/{sandbox_id}", False

    def create(
        self, sandbox_id: str, asked: Resources, qos: Qos, ready_for: int | None = None
    ) -> None:
        """Make a sandbox's groups and set its limits.

        Args:
            sandbox_id: whose groups.
            asked: what they allow.
            qos: how it shares cores.
            ready_for: the id range whose groups, made ahead by `make_ready`, become its own.

        Raises:
            OSError: the kernel refused; what was made is left for `remove`.
        """
        for name, path in self._v1.items():
            group = f"{path}/{sandbox_id}"
            if ready_for is None or not _renamed(f"{path}/{_READY}{ready_for}", group):
                Path(group).mkdir(0o755)
            _set(group, v1_values(name, asked, qos))
        group = self.v2_dir(sandbox_id)
        Path(group).mkdir(0o755)
        _set(group, v2_values(self._h.v2, asked, qos))

    def make_ready(self, uid: int) -> None:
        """Make the groups of an id range's next sandbox, where they can be renamed later.

        That is in v1; v2 renames no group, so the one there is made when the id is known.

        Raises:
            OSError: the kernel refused.
        """
        for path in self._v1.values():
            try:
                Path(path, f"{_READY}{uid}").mkdir(0o755)
            except FileExistsError:
                continue

    def remove_ready(self, uid: int) -> None:
        """Remove what `make_ready` made and `create` did not use; nothing there is no error."""
        for path in self._v1.values():
            _remove_tree(f"{path}/{_READY}{uid}")

    def ready(self) -> set[int]:
        """Return the id ranges that groups were made ahead for."""
        names = {name.removeprefix(_READY) for name in self._names() if name.startswith(_READY)}
        return {int(name) for name in names if name.isdigit()}

    def kill(self, sandbox_id: str) -> None:
        """Kill every process of a sandbox. None is no error."""
        try:
            write_file(f"{self.v2_dir(sandbox_id)}/cgroup.kill", "1")
        except (FileNotFoundError, ProcessLookupError):
            return

    def is_populated(self, sandbox_id: str) -> bool:
        """Return whether a process of a sandbox is left."""
        try:
            text = Path(self.v2_dir(sandbox_id), "cgroup.events").read_text()
        except OSError:
            return False
        return parse_flat(text).get("populated", 0) == 1

    def oom_kills(self, sandbox_id: str) -> int:
        """Return how many of a sandbox's processes the kernel has killed for want of memory."""
        v1 = self._v1.get("memory")
        path = (
            f"{v1}/{sandbox_id}/memory.oom_control"
            if v1 is not None
            else f"{self.v2_dir(sandbox_id)}/memory.events"
        )
        try:
            return parse_flat(Path(path).read_text()).get("oom_kill", 0)
        except OSError:
            return 0

    def remove(self, sandbox_id: str) -> bool:
        """Remove a sandbox's groups, once its processes have gone; False if one is still busy.

        May take a while: to be called in a thread.
        """
        paths = [self.v2_dir(sandbox_id), *self.v1_dirs(sandbox_id)]
        return [_remove_tree(path) for path in paths].count(False) == 0

    def known(self) -> set[str]:
        """Return the ids of all sandboxes that have a group in any hierarchy."""
        return {name for name in self._names() if not name.startswith(_READY)}

    def _names(self) -> set[str]:
        found: set[str] = set()
        for path in (self._v2, *self._v1.values()):
            try:
                found.update(e.name for e in os.scandir(path) if e.is_dir(follow_symlinks=False))
            except FileNotFoundError:
                continue
        return found

    def close(self) -> None:
        """Remove the node's own directories, and sandfleet/ if no other node uses it."""
        for path in (self._v2, *self._v1.values()):
            for each in (Path(path), Path(path).parent):
                try:
                    each.rmdir()
                except OSError:
                    break


def _renamed(path: str, to: str) -> bool:
    try:
        Path(path).rename(to)
    except FileNotFoundError:
        return False
    return True


def _set(path: str, values: list[tuple[str, str]]) -> None:
    for name, value in values:
        try:
            write_file(f"{path}/{name}", value)
        except FileNotFoundError:
            if name not in _OPTIONAL:
                raise


def _remove_tree(path: str) -> bool:
    """Remove a group and the groups in it, trying for a second: a dying process counts as busy."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            for where, names, _ in os.walk(path, topdown=False):
                for name in names:
                    Path(where, name).rmdir()
            Path(path).rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True

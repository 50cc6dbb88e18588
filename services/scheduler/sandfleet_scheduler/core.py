"""Which node takes a sandbox. Pure: heartbeats and placements in, a choice or reasons out.

What a node has promised is its latest heartbeat's sums plus what this scheduler
sent it that no heartbeat shows yet. A placement is counted from its sending until
the first heartbeat after its outcome, or the second after its sending, whichever
comes first; one that the node refused is taken back at once. Other schedulers'
placements are seen a heartbeat later, which is why the choice is random among
many and the node has the last word.

The load that decides between drawn nodes is predicted as a sum of parts,
each from 0 to 1 unless it says otherwise, with the new sandbox counted in:

    promised   the fullest of sandboxes, cpu, memory and disk, as part of capacity
    starting   sandboxes accepted and not ready, as part of the node's limit
    busy       running tasks for each core, measured, two or more counting as 1
    pressed    work that stands still for want of memory or disks, measured; up to 2, so
               that a node without pressure is preferred whatever else is true of both

A choice draws nodes at random until `choices` of them can take the sandbox, so
its cost does not grow with the fleet. Only when the draws find none is every node
looked at, for the answer and for the reasons.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.messages import NodeBeat, NodeState, Pressure, Resources, SandboxSpec

from .reasons import BUSY, DRAINING, SILENT, Reason, refused

DRAWS_EACH = 4
"""Draws for each node wanted, before every node is looked at."""
BUSY_PER_CORE = 2.0
ROOM_SECONDS = 0.5
"""A sum over all nodes is worked out anew after so long."""

Kind = tuple[str, str, Resources]
"""What of a spec decides which nodes can take it: environment, runtime, resources."""


@dataclass(slots=True)
class Sums:
    """Amounts promised."""

    sandboxes: int = 0
    cpu: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0

    def add(self, resources: Resources, sign: int = 1) -> None:
        """Count one sandbox in, or out."""
        self.sandboxes += sign
        self.cpu += sign * resources.cpu
        self.memory_bytes += sign * resources.memory_bytes
        self.disk_bytes += sign * resources.disk_bytes


@dataclass(slots=True)
class Node:
    """One node as this scheduler sees it."""

    beat: NodeBeat
    heard_at: float
    position: int
    """In the list that is drawn from."""
    environments: frozenset[str] = frozenset()
    """As the heartbeat names them, and their names without a version."""
    in_flight: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """Sent, outcome not known."""
    others_starting: int = 0
    """Starting at the last heartbeat and not of this scheduler."""
    recent: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """No heartbeat since it was sent."""
    fading: dict[str, Resources] = field(default_factory=dict[str, Resources])
    """The next heartbeat shows it."""
    unseen: Sums = field(default_factory=Sums)
    """The sum of recent and fading."""

    @property
    def starting(self) -> int:
        """Sandboxes the node has accepted and not brought up, as far as is known."""
        return self.others_starting + len(self.in_flight)

    def fractions(self, wanted: Resources) -> tuple[tuple[str, float], ...]:
        """Return what would be promised of each kind, as part of capacity."""
        has, asked, unseen = self.beat.capacity, self.beat.requested, self.unseen
        return (
            ("sandboxes", _part(asked.sandboxes + unseen.sandboxes + 1, has.sandboxes)),
            ("cpu", _part(asked.cpu + unseen.cpu + wanted.cpu, has.cpu)),
            (
                "memory",
                _part(
                    asked.memory_bytes + unseen.memory_bytes + wanted.memory_bytes,
                    has.memory_bytes,
                ),
            ),
            (
                "disk",
                _part(asked.disk_bytes + unseen.disk_bytes + wanted.disk_bytes, has.disk_bytes),
            ),
        )

    def load(self, wanted: Resources) -> float:
        """Return the load to expect with one more sandbox; see the module's head."""
        promised = max(part for _, part in self.fractions(wanted))
        starting = min(_part(self.starting + 1, self.beat.starting_limit), 1.0)
        busy = min(self.beat.load_per_core / BUSY_PER_CORE, 1.0)
        return promised + starting + busy + pressed(self.beat.pressure)

    def room(self, wanted: Resources) -> int:
        """Return how many more such sandboxes there is room for, besides what is promised."""
        has, asked, unseen = self.beat.capacity, self.beat.requested, self.unseen
        left = (
            has.sandboxes - asked.sandboxes - unseen.sandboxes,
            (has.cpu - asked.cpu - unseen.cpu) / wanted.cpu,
            (has.memory_bytes - asked.memory_bytes - unseen.memory_bytes) / wanted.memory_bytes,
            (has.disk_bytes - asked.disk_bytes - unseen.disk_bytes) / wanted.disk_bytes,
        )
        return max(0, int(min(left)))

    def _drop(self, sandbox_id: str) -> None:
        for group in (self.recent, self.fading):
            if (resources := group.pop(sandbox_id, None)) is not None:
                self.unseen.add(resources, -1)

    def _fade(self, sandbox_id: str) -> None:
        if (resources := self.recent.pop(sandbox_id, None)) is not None:
            self.fading[sandbox_id] = resources

    def _hear(self, beat: NodeBeat, now: float) -> None:
        self.beat, self.heard_at = beat, now
        self.environments = frozenset(beat.environments) | {
            name.partition(":")[0] for name in beat.environments
        }
        for resources in self.fading.values():
            self.unseen.add(resources, -1)
        self.fading, self.recent = self.recent, {}
        self.others_starting = max(0, beat.starting - len(self.in_flight))


class Core:
    """The fleet as one scheduler sees it. Times are seconds of any one clock."""

    def __init__(self, random: Random, *, choices: int, silent_seconds: float) -> None:
        self.nodes: dict[str, Node] = {}
        self._names: list[str] = []
        self._random = random
        self._choices = choices
        self._silent_seconds = silent_seconds
        self._hopeless: set[Kind] = set()
        """What no node can take, until something gives room."""
        self._rooms: dict[Kind, tuple[float, int]] = {}

    # ------------------------------------------------------------------ events

    def hear(self, beat: NodeBeat, now: float) -> bool:
        """Take in a heartbeat; False when it is older than the one known."""
        node = self.nodes.get(beat.node)
        if node is None:
            node = Node(beat, now, len(self._names))
            self.nodes[beat.node] = node
            self._names.append(beat.node)
        elif node.beat.boot == beat.boot and beat.sequence <= node.beat.sequence:
            return False
        self._hopeless.clear()
        node._hear(beat, now)  # pyright: ignore[reportPrivateUsage]
        return True

    def forget(self, name: str) -> None:
        """Strike a node off."""
        node = self.nodes.pop(name, None)
        if node is None:
            return
        last = self._names.pop()
        if last != name:
            self._names[node.position] = last
            self.nodes[last].position = node.position

    def placed(self, name: str, sandbox_id: str, resources: Resources) -> None:
        """Count a sandbox that is about to be sent to a node. Twice is once."""
        node = self.nodes.get(name)
        if node is None or sandbox_id in node.in_flight:
            return
        node.in_flight[sandbox_id] = resources
        if sandbox_id not in node.recent and sandbox_id not in node.fading:
            node.recent[sandbox_id] = resources
            node.unseen.add(resources)

    def settled(self, name: str, sandbox_id: str, *, is_kept: bool) -> None:
        """Take in an outcome: the node keeps the sandbox, or has nothing of it."""
        node = self.nodes.get(name)
        if node is None:
            return
        self._hopeless.clear()
        node.in_flight.pop(sandbox_id, None)
        if is_kept:
            node._fade(sandbox_id)  # pyright: ignore[reportPrivateUsage]
        else:
            node._drop(sandbox_id)  # pyright: ignore[reportPrivateUsage]

    # --------------------------------------------------------------- decisions

    def choose(self, spec: SandboxSpec, now: float, avoid: Collection[str] = ()) -> str | None:
        """Return the node that should take a sandbox, or None when none can; see `reasons`."""
        kind = (spec.environment, spec.runtime, spec.resources)
        if kind in self._hopeless:
            return None
        best = self._draw(spec, now, avoid)
        if best is None:
            able = [
                node
                for name, node in self.nodes.items()
                if name not in avoid and self.obstacle(node, spec, now) is None
            ]
            drawn = self._random.sample(able, min(self._choices, len(able)))
            best = min(drawn, key=lambda node: node.load(spec.resources), default=None)
            if best is None and not avoid:
                self._hopeless.add(kind)
        return None if best is None else best.beat.node

    def obstacle(self, node: Node, spec: SandboxSpec, now: float) -> Reason | None:
        """Return why a node cannot take a sandbox now, or None."""
        beat = node.beat
        if now - node.heard_at > self._silent_seconds:
            return SILENT
        if beat.state == NodeState.DRAINING:
            return DRAINING
        if spec.runtime not in beat.runtimes:
            return Reason(f"has no runtime {spec.runtime!r}", f"have no runtime {spec.runtime!r}")
        if not _has(node, spec.environment):
            name = spec.environment
            return Reason(f"has no environment {name!r}", f"have no environment {name!r}")
        if node.starting >= beat.starting_limit:
            return BUSY
        # That it was starting too many is the one thing we know better than its heartbeat.
        if beat.refusing is not None and beat.starting < beat.starting_limit:
            return refused(beat.refusing)
        for kind, part in node.fractions(spec.resources):
            if part > 1:
                return Reason(f"has no room for more {kind}", f"have no room for more {kind}")
        return None

    def reasons(self, spec: SandboxSpec, now: float) -> dict[str, Reason]:
        """Return for each node that cannot take a sandbox now why not."""
        found = {name: self.obstacle(node, spec, now) for name, node in self.nodes.items()}
        return {name: reason for name, reason in found.items() if reason is not None}

    def lacks_everywhere(self, environment: str, now: float) -> list[str] | None:
        """Return the environments there are, when nodes are alive and none has this one."""
        alive = [n for n in self.nodes.values() if now - n.heard_at <= self._silent_seconds]
        if not alive or any(_has(node, environment) for node in alive):
            return None
        return sorted({name for node in alive for name in node.beat.environments})

    def may_have(self, environment: str, now: float) -> list[str]:
        """Return the nodes alive that have an environment, or decide themselves whether."""
        return [
            name
            for name, node in self.nodes.items()
            if now - node.heard_at <= self._silent_seconds and _has(node, environment)
        ]

    def room(self, spec: SandboxSpec, now: float) -> int:
        """Return for how many such sandboxes there is room, as of half a second ago at most."""
        kind = (spec.environment, spec.runtime, spec.resources)
        at, room = self._rooms.get(kind, (float("-inf"), 0))
        if now - at >= ROOM_SECONDS:
            usable = (
                node
                for node in self.nodes.values()
                if self.obstacle(node, spec, now) in (None, BUSY)
            )
            room = sum(node.room(spec.resources) for node in usable)
            self._rooms = {k: v for k, v in self._rooms.items() if now - v[0] < ROOM_SECONDS}
            self._rooms[kind] = (now, room)
        return room

    def starts_per_second(self, now: float) -> float:
        """Return how many sandboxes become ready on all nodes, by their heartbeats."""
        return sum(
            node.beat.starts_per_second
            for node in self.nodes.values()
            if now - node.heard_at <= self._silent_seconds
        )

    def silent(self, now: float, seconds: float) -> list[str]:
        """Return the nodes not heard of for longer than that."""
        return [name for name, node in self.nodes.items() if now - node.heard_at > seconds]

    def check(self) -> None:
        """Assert what must always hold."""
        assert [self.nodes[n].position for n in self._names] == list(range(len(self.nodes)))
        for node in self.nodes.values():
            assert not node.recent.keys() & node.fading.keys()
            counted = Sums()
            for resources in (*node.recent.values(), *node.fading.values()):
                counted.add(resources)
            assert counted.sandboxes == node.unseen.sandboxes
            assert counted.memory_bytes == node.unseen.memory_bytes
            assert abs(counted.cpu - node.unseen.cpu) < 1e-6
            assert node.others_starting >= 0

    def _draw(self, spec: SandboxSpec, now: float, avoid: Collection[str]) -> Node | None:
        best, least, wanted = None, 0.0, self._choices
        draws = min(len(self._names), DRAWS_EACH * self._choices)
        for name in self._random.sample(self._names, draws):
            node = self.nodes[name]
            if name in avoid or self.obstacle(node, spec, now) is not None:
                continue
            load = node.load(spec.resources)
            if best is None or load < least:
                best, least = node, load
            wanted -= 1
            if not wanted:
                break
        return best


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else float("inf")


def pressed(pressure: Pressure) -> float:
    """Return how much a node suffers already, from 0 to 2; what is not measured counts as 0.

    A tenth of the time waited for memory by some, or a twentieth by all, counts as 1.
    """
    memory = (pressure.memory_some or 0) / 10 + (pressure.memory_full or 0) / 5
    return min(2.0, memory + (pressure.io_full or 0) / 50)


def _has(node: Node, environment: str) -> bool:
    """Whether a node has an environment, or may have.

    It decides itself on versions and snapshots, and on all when there are more environments
    than its heartbeat names.
    """
    if environment in node.environments or not node.beat.environments_complete:
        return True
    if is_snapshot_id(environment):
        return True
    name, _, version = environment.partition(":")
    return bool(version) and name in node.beat.environments

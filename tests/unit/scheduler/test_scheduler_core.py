"""Which node takes a sandbox: the pure core."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.messages import (
    GIB,
    Failure,
    NodeBeat,
    NodeCapacity,
    NodeState,
    Pressure,
    Resources,
    SandboxSpec,
)
from sandfleet_scheduler.core import Core
from sandfleet_scheduler.reasons import sentence
from sandfleet_scheduler.refusals import Refusals

SPEC = SandboxSpec()


def capacity(sandboxes: int = 100, cpu: float = 100.0, memory: int = 100) -> NodeCapacity:
    return NodeCapacity(
        sandboxes=sandboxes, cpu=cpu, memory_bytes=memory * GIB, disk_bytes=1000 * GIB
    )


def requested(sandboxes: int) -> NodeCapacity:
    """Return what so many sandboxes of the default size ask for."""
    asked = SPEC.resources
    return NodeCapacity(
        sandboxes=sandboxes,
        cpu=sandboxes * asked.cpu,
        memory_bytes=sandboxes * asked.memory_bytes,
        disk_bytes=sandboxes * asked.disk_bytes,
    )


NOTHING = NodeCapacity(sandboxes=0, cpu=0, memory_bytes=0, disk_bytes=0)


def beat(node: str = "n1", sequence: int = 1, **values: object) -> NodeBeat:
    known: dict[str, object] = {
        "boot": "b",
        "at": 0.0,
        "state": NodeState.READY,
        "runtimes": ["native"],
        "environments": ["debian"],
        "capacity": capacity(),
        "requested": NOTHING,
        "starting": 0,
        "starting_limit": 50,
        "memory_available_bytes": GIB,
        "load_per_core": 0.0,
        "disk_free_bytes": GIB,
    }
    return NodeBeat.of(node=node, sequence=sequence, **(known | values))


def core(*beats: NodeBeat, choices: int = 2, seed: int = 1) -> Core:
    made = Core(Random(seed), choices=choices, silent_seconds=5)
    for one in beats:
        made.hear(one, 0.0)
    return made


def why(fleet: Core, spec: SandboxSpec = SPEC, now: float = 0.0) -> str:
    return sentence(fleet.reasons(spec, now).values(), len(fleet.nodes))


def test_the_only_node_is_chosen() -> None:
    assert core(beat()).choose(SPEC, 0.0) == "n1"


def test_without_nodes_nobody_is_chosen() -> None:
    assert core().choose(SPEC, 0.0) is None
    assert why(core()) == "no node could take it: no node is alive"


def test_a_full_node_is_skipped() -> None:
    fleet = core(beat("full", requested=capacity()), beat("free"))
    assert {fleet.choose(SPEC, 0.0) for _ in range(50)} == {"free"}


def test_the_one_node_with_room_among_many_is_found() -> None:
    full = [beat(f"n{n}", requested=capacity()) for n in range(200)]
    assert core(*full, beat("free")).choose(SPEC, 0.0) == "free"


def test_the_less_loaded_of_two_is_chosen() -> None:
    busy = beat("busy", requested=capacity(sandboxes=50, cpu=1, memory=1))
    assert {core(busy, beat("idle"), seed=n).choose(SPEC, 0.0) for n in range(50)} >= {"idle"}
    both = core(busy, beat("idle"), choices=16)
    assert {both.choose(SPEC, 0.0) for _ in range(20)} == {"idle"}


def test_a_node_whose_processors_are_busy_is_the_worse_choice() -> None:
    fleet = core(beat("busy", load_per_core=3.0), beat("idle"), choices=16)
    assert {fleet.choose(SPEC, 0.0) for _ in range(20)} == {"idle"}


def test_a_silent_node_is_skipped_until_it_is_heard_again() -> None:
    fleet = core(beat())
    assert fleet.choose(SPEC, 5.1) is None
    assert why(fleet, now=5.1) == "no node could take it: 1 is silent"
    fleet.hear(beat(sequence=2), 6.0)
    assert fleet.choose(SPEC, 6.0) == "n1"


def test_every_reason_is_told_once_with_its_count() -> None:
    fleet = core(
        beat("a", environments=["other"]),
        beat("b", environments=[]),
        beat("c", state=NodeState.DRAINING),
        beat("d", refusing="low on disk"),
        beat("e", starting=50),
        beat("f", runtimes=[]),
        beat("g", requested=capacity()),
        beat("h", requested=capacity(sandboxes=1, cpu=100, memory=1)),
    )
    assert fleet.choose(SPEC, 0.0) is None
    told = why(fleet)
    for part in (
        "2 have no environment 'debian'",
        "1 is draining",
        "1 refused (low on disk)",
        "1 is busy starting others",
        "1 has no runtime 'native'",
        "1 has no room for more sandboxes",
        "1 has no room for more cpu",
    ):
        assert part in told
    assert told.startswith("no node could take it: 2 have")


def test_a_version_of_an_environment_is_the_nodes_business() -> None:
    fleet = core(beat("n1", environments=["debian"]))
    assert fleet.choose(SandboxSpec(environment="debian:3"), 0.0) == "n1"
    listed = core(beat("n1", environments=["debian:3"]))
    assert listed.choose(SandboxSpec(environment="debian"), 0.0) == "n1"
    assert listed.choose(SandboxSpec(environment="debian:4"), 0.0) is None


def test_a_node_with_more_environments_than_it_names_may_have_any() -> None:
    fleet = core(beat("few", environments=["x"]), beat("many", environments_complete=False))
    assert {fleet.choose(SandboxSpec(environment="q"), 0.0) for _ in range(20)} == {"many"}
    assert fleet.lacks_everywhere("q", 0.0) is None
    assert fleet.may_have("q", 0.0) == ["many"]


def test_a_snapshot_may_be_restored_on_any_node() -> None:
    fleet = core(beat("a", environments=[]), beat("b", environments=[]))
    snapshot = SandboxSpec(environment=new_snapshot_id("gone"))
    assert {fleet.choose(snapshot, 0.0) for _ in range(20)} == {"a", "b"}


def test_enough_nodes_that_looked_in_vain_are_believed() -> None:
    refusals = Refusals()
    absent = Failure(code="not_found", message="no such", fields={"environment": "q"})
    nodes = ["a", "b", "c", "d"]
    refusals.note_absent("a", Failure(code="not_found", message="another node's sandbox"))
    refusals.note_absent("b", absent)
    assert refusals.not_found(nodes) is None
    assert refusals.not_found(["b"]) == "no such", "all that may have it have looked"
    assert refusals.not_found(["a"]) is None
    assert refusals.not_found([]) is None
    refusals.note_absent("c", absent)
    assert refusals.not_found(nodes) is None
    refusals.note_absent("d", absent)
    assert refusals.not_found(nodes) == "no such"


def test_an_environment_nobody_has_is_told_with_those_there_are() -> None:
    fleet = core(beat("a", environments=["x", "y"]), beat("b", environments=["y", "z"]))
    assert fleet.lacks_everywhere("q", 0.0) == ["x", "y", "z"]
    assert fleet.lacks_everywhere("z", 0.0) is None
    assert fleet.lacks_everywhere("q", 9.0) is None, "nobody alive: it may be there"


def test_avoided_nodes_are_not_chosen() -> None:
    fleet = core(beat("a"), beat("b"))
    assert {fleet.choose(SPEC, 0.0, {"a"}) for _ in range(20)} == {"b"}
    assert fleet.choose(SPEC, 0.0, {"a", "b"}) is None


def test_own_placements_fill_a_node_before_its_next_heartbeat() -> None:
    fleet = core(beat(capacity=capacity(sandboxes=3)))
    for number in range(3):
        assert fleet.choose(SPEC, 0.0) == "n1"
        fleet.placed("n1", f"s{number}", SPEC.resources)
    assert fleet.choose(SPEC, 0.0) is None
    fleet.settled("n1", "s0", is_kept=False)
    assert fleet.choose(SPEC, 0.0) == "n1"


def test_a_kept_placement_counts_until_a_heartbeat_shows_it() -> None:
    fleet = core(beat(capacity=capacity(sandboxes=1)))
    fleet.placed("n1", "s", SPEC.resources)
    fleet.settled("n1", "s", is_kept=True)
    assert fleet.choose(SPEC, 0.0) is None
    fleet.hear(beat(sequence=2, capacity=capacity(sandboxes=1)), 1.0)
    assert fleet.choose(SPEC, 1.0) == "n1", "the heartbeat knows better"


def test_a_placement_without_an_outcome_counts_for_two_heartbeats() -> None:
    fleet = core(beat())
    fleet.placed("n1", "s", SPEC.resources)
    fleet.hear(beat(sequence=2), 1.0)
    assert fleet.nodes["n1"].unseen.sandboxes == 1
    fleet.hear(beat(sequence=3), 2.0)
    assert fleet.nodes["n1"].unseen.sandboxes == 0


def test_starting_is_known_exactly_between_heartbeats() -> None:
    fleet = core(beat(starting_limit=2))
    fleet.placed("n1", "a", SPEC.resources)
    fleet.placed("n1", "b", SPEC.resources)
    fleet.hear(beat(sequence=2, starting=2, starting_limit=2), 1.0)
    assert fleet.choose(SPEC, 1.0) is None
    fleet.settled("n1", "a", is_kept=True)
    assert fleet.choose(SPEC, 1.0) == "n1"


def test_others_that_start_on_a_node_count_too() -> None:
    fleet = core(beat(starting=2, starting_limit=2))
    assert fleet.choose(SPEC, 0.0) is None


def test_an_old_heartbeat_changes_nothing() -> None:
    fleet = core(beat(sequence=5))
    assert not fleet.hear(beat(sequence=4, state=NodeState.DRAINING), 1.0)
    assert fleet.choose(SPEC, 1.0) == "n1"
    assert fleet.hear(beat(sequence=1, boot="new", state=NodeState.DRAINING), 1.0)
    assert fleet.choose(SPEC, 1.0) is None


def test_a_forgotten_node_is_gone_and_outcomes_of_it_are_no_error() -> None:
    fleet = core(beat("a"), beat("b"), beat("c"))
    fleet.placed("a", "s", SPEC.resources)
    fleet.forget("a")
    fleet.settled("a", "s", is_kept=True)
    fleet.check()
    assert {fleet.choose(SPEC, 0.0) for _ in range(50)} == {"b", "c"}


def test_equal_nodes_share_a_burst() -> None:
    fleet = core(*(beat(f"n{n}", starting_limit=1000) for n in range(20)))
    counts: Counter[str] = Counter()
    for number in range(1000):
        node = fleet.choose(SPEC, 0.0)
        assert node is not None
        fleet.placed(node, f"s{number}", SPEC.resources)
        counts[node] += 1
    assert max(counts.values()) - min(counts.values()) <= 12


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["hear", "forget", "place", "keep", "refuse", "choose"]),
        st.integers(0, 4),
        st.integers(0, 15),
    ),
    max_size=80,
)


@given(EVENTS, st.integers(0, 1000))
def test_the_books_balance_after_any_events(events: list[tuple[str, int, int]], seed: int) -> None:
    fleet = core(seed=seed)
    for step, (kind, number, sandbox) in enumerate(events):
        name, sandbox_id = f"n{number}", f"s{sandbox}"
        if kind == "hear":
            fleet.hear(beat(name, sequence=step, starting=sandbox), float(step))
        elif kind == "forget":
            fleet.forget(name)
        elif kind == "place":
            fleet.placed(name, sandbox_id, Resources(cpu=1 + sandbox / 7))
        elif kind == "choose":
            chosen = fleet.choose(SPEC, float(step))
            able = {
                name
                for name, node in fleet.nodes.items()
                if fleet.obstacle(node, SPEC, float(step)) is None
            }
            assert (chosen in able) if able else chosen is None
        else:
            fleet.settled(name, sandbox_id, is_kept=kind == "keep")
        fleet.check()


def test_a_node_without_memory_pressure_is_preferred() -> None:
    pressed = beat("n1", pressure=Pressure(memory_some=30, memory_full=10))
    calm = beat("n2", requested=requested(80), starting=20, load_per_core=1.0)
    fleet = core(pressed, calm)
    assert {fleet.choose(SPEC, 0.0) for _ in range(20)} == {"n2"}
    assert fleet.choose(SPEC, 0.0, avoid=["n2"]) == "n1"


def test_a_full_starting_queue_is_judged_by_what_is_known_now_not_by_the_heartbeat() -> None:
    fleet = core()
    for number in range(2):
        fleet.placed("n1", f"s{number}", SPEC.resources)
    fleet.hear(beat(starting_limit=2), 0.0)
    for number in range(2):
        fleet.placed("n1", f"s{number}", SPEC.resources)
    fleet.hear(
        beat(sequence=2, starting=2, starting_limit=2, refusing="it is starting 2 sandboxes"), 0.0
    )
    assert fleet.choose(SPEC, 0.0) is None
    assert "busy starting others" in why(fleet)
    fleet.settled("n1", "s0", is_kept=True)
    assert fleet.choose(SPEC, 0.0) == "n1"


def test_what_found_no_node_is_looked_for_again_when_there_may_be_room() -> None:
    fleet = core(beat(capacity=capacity(1)))
    fleet.placed("n1", "s1", SPEC.resources)
    assert fleet.choose(SPEC, 0.0) is None
    assert fleet.choose(SPEC, 0.0) is None
    fleet.settled("n1", "s1", is_kept=False)
    assert fleet.choose(SPEC, 0.0) == "n1"
    fleet.placed("n1", "s2", SPEC.resources)
    assert fleet.choose(SPEC, 0.0) is None
    fleet.hear(beat("n2"), 0.0)
    assert fleet.choose(SPEC, 0.0) == "n2"


def test_room_is_what_usable_nodes_have_left() -> None:
    fleet = core(
        beat("n1", capacity=capacity(10), requested=requested(4)),
        beat("n2", capacity=capacity(100, cpu=3.5)),
        beat("n3", state=NodeState.DRAINING),
        beat("n4", refusing="low on memory"),
    )
    assert fleet.room(SPEC, 0.0) == 6 + 3
    fleet.placed("n1", "s1", SPEC.resources)
    assert fleet.room(SPEC, 0.1) == 9, "as of a moment ago"
    assert fleet.room(SPEC, 1.0) == 8
    assert fleet.room(SPEC, 100.0) == 0, "all are silent"


def test_the_fleets_rate_is_that_of_the_nodes_heard_of() -> None:
    fleet = core(beat("n1", starts_per_second=3.0))
    fleet.hear(beat("n2", starts_per_second=4.5), 4.0)
    assert fleet.starts_per_second(4.0) == 7.5
    assert fleet.starts_per_second(8.0) == 4.5

"""Which layers are removed, and which are unmounted."""

from __future__ import annotations

import itertools

from sandfleet_node.layers.collection import Wish, doomed
from sandfleet_node.layers.inuse import InUse, idle
from sandfleet_node.layers.store import StoredLayer

NOW = 1000.0


def stored(name: str, at: float, size: int = 10) -> StoredLayer:
    """Return a layer as a list has it."""
    return StoredLayer(name, size, at)


def names(layers: list[StoredLayer]) -> str:
    """Return their names, in order."""
    return "".join(layer.digest for layer in layers)


LAYERS = [stored("a", 100), stored("b", 50), stored("c", 999), stored("d", 10)]


def test_what_somebody_needs_stays() -> None:
    assert names(doomed(LAYERS, {"b", "d"}, Wish(0), NOW, {})) == "ac"


def test_what_came_lately_stays() -> None:
    assert names(doomed(LAYERS, (), Wish(keep_seconds=60), NOW, {})) == "dba"


def test_those_used_longest_ago_go_first() -> None:
    assert names(doomed(LAYERS, (), Wish(60), NOW, {"d": 900})) == "bad"


def test_no_more_goes_than_is_needed() -> None:
    assert names(doomed(LAYERS, (), Wish(0, need_bytes=11), NOW, {})) == "db"
    assert names(doomed(LAYERS, (), Wish(0, need_bytes=0), NOW, {})) == ""


def test_a_layer_is_in_use_until_its_last_sandbox_has_gone() -> None:
    in_use = InUse()
    in_use.take(("a", "b"))
    in_use.take(("b",))
    in_use.release(("a", "b"))
    assert in_use.digests() == {"b"}
    assert set(in_use.used_at()) == {"a"}
    in_use.release(("b",))
    assert in_use.digests() == frozenset()


def test_a_change_is_told_only_when_the_set_of_layers_changes() -> None:
    in_use = InUse()
    in_use.take(("a",))
    assert in_use.changed.is_set()
    in_use.changed.clear()
    in_use.take(("a",))
    in_use.release(("a",))
    assert not in_use.changed.is_set()
    in_use.release(("a",))
    assert in_use.changed.is_set()


def test_layers_idle_for_long_are_unmounted_and_those_in_use_never() -> None:
    since = {"a": 100.0, "b": 990.0, "c": 0.0}
    gone = idle("abcd", frozenset("c"), since, NOW, idle_seconds=60, most=10)
    assert gone == ["a"]


def test_too_many_mounted_layers_lose_the_longest_idle() -> None:
    since = {name: float(at) for at, name in enumerate("abcdef")}
    for in_use, most in itertools.product(("", "a", "abc"), (0, 2, 4, 6)):
        gone = idle("abcdef", frozenset(in_use), since, 6.0, idle_seconds=60, most=most)
        unused = [name for name in "abcdef" if name not in in_use]
        assert gone == unused[: 6 - most]

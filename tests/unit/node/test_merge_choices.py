"""Which layers are merged, and what is noted on the result."""

from __future__ import annotations

from sandfleet_common.messages import Layer, LayerKind
from sandfleet_node.layers.compatibility import warnings
from sandfleet_node.layers.mergework import notes_of, runs

BASE, TOOLS, OWN = LayerKind.BASE, LayerKind.TOOLKIT, LayerKind.WORKSPACE


def layer(kind: LayerKind, size: int = 1, **notes: str) -> Layer:
    """Return a layer; `built_on_x` stands for the note `built_on.x`."""
    named = {name.replace("built_on_", "built_on."): value for name, value in notes.items()}
    return Layer(digest=f"sha256:{0:064x}", kind=kind, size_bytes=size, created_at=0.0, notes=named)


def test_small_neighbours_of_one_kind_are_merged() -> None:
    stack = [layer(OWN), layer(TOOLS), layer(TOOLS), layer(TOOLS), layer(BASE)]
    assert runs(stack, 10) == [(1, 4)]


def test_a_large_layer_stays_and_parts_its_neighbours() -> None:
    stack = [layer(TOOLS), layer(TOOLS), layer(TOOLS, 10), layer(TOOLS), layer(TOOLS)]
    assert runs(stack, 10) == [(0, 2), (3, 5)]


def test_a_layer_alone_is_not_merged() -> None:
    assert runs([layer(OWN), layer(TOOLS), layer(BASE)], 10) == []
    assert runs([layer(OWN)], 10) == []


def test_notes_of_a_merged_layer_warn_of_the_same() -> None:
    python = layer(TOOLS, python="3.12.1", built_on_libc="glibc 2.36")
    tools = layer(TOOLS, built_on_python="3.12.1", ruby="3.3")
    merged = tools.model_copy(update={"notes": notes_of([tools, python])})
    assert merged.notes == {"built_on.libc": "glibc 2.36", "python": "3.12.1", "ruby": "3.3"}
    for libc in ("glibc 2.36", "glibc 2.31"):
        base = layer(BASE, libc=libc)
        assert len(warnings([tools, python, base])) == len(warnings([merged, base]))

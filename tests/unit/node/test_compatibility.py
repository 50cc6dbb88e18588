"""Which layers fit on each other, by their notes."""

from __future__ import annotations

import pytest

from sandfleet_common.messages import Layer, LayerKind
from sandfleet_node.layers.compatibility import WARNINGS_MAX, warnings


def layer(number: int, kind: LayerKind = LayerKind.TOOLKIT, **notes: str) -> Layer:
    """Return a layer; `built_on_x` stands for the note `built_on.x`."""
    return Layer(
        digest=f"sha256:{number:064x}",
        kind=kind,
        size_bytes=1,
        created_at=0.0,
        description=f"layer {number}",
        notes={name.replace("built_on_", "built_on."): value for name, value in notes.items()},
    )


BASE = layer(1, LayerKind.BASE, distribution="debian bookworm", libc="glibc 2.36", python="3.11.2")


def test_a_layer_on_what_it_was_built_on_fits() -> None:
    tools = layer(2, built_on_python="3.11.9", built_on_distribution="debian  bookworm")
    assert warnings([tools, BASE]) == []


def test_a_layer_without_notes_is_taken_as_it_is() -> None:
    assert warnings([layer(2), BASE]) == []


@pytest.mark.parametrize(
    ("name", "wanted", "there", "fits"),
    [
        ("python", "3.11.2", "3.11.9", True),
        ("python", "3.11.2", "3.12.0", False),
        ("node", "20.1.0", "20.9", True),
        ("node", "20.1.0", "22.0", False),
        ("libc", "glibc 2.36", "glibc 2.41", True),
        ("libc", "glibc 2.36", "glibc 2.31", False),
        ("libc", "glibc", "glibc 2.36", True),
        ("libc", "glibc 2.36", "musl 1.2.5", False),
        ("distribution", "debian bookworm", "debian trixie", False),
        ("machine", "x86_64", "aarch64", False),
    ],
)
def test_known_facts_are_compared_in_their_own_way(
    name: str, wanted: str, there: str, fits: bool
) -> None:
    below = layer(1, LayerKind.BASE, **{name: there})
    above = layer(2, LayerKind.TOOLKIT, **{f"built_on_{name}": wanted})
    assert (warnings([above, below]) == []) is fits


def test_a_warning_names_the_layer_what_it_wants_and_what_there_is() -> None:
    tools = layer(2, built_on_python="3.12.1")
    assert warnings([tools, BASE]) == [
        "toolkit layer 'layer 2' was built on python 3.12.1; below it is 3.11.2"
    ]


def test_what_lies_below_is_what_the_layers_between_made_of_it() -> None:
    newer = layer(2, python="3.12.4")
    tools = layer(3, built_on_python="3.12.1")
    assert warnings([tools, newer, BASE]) == []
    assert len(warnings([newer, tools, BASE])) == 1


def test_a_fact_that_nobody_below_states_is_warned_of() -> None:
    (told,) = warnings([layer(2, built_on_ruby="3.3"), BASE])
    assert told.endswith("was built on ruby 3.3; nothing below it says that it has ruby")


def test_there_are_never_more_warnings_than_a_person_reads() -> None:
    many = layer(2, LayerKind.TOOLKIT, **{f"built_on_x{i}": "1" for i in range(60)})
    assert len(warnings([many, BASE])) == WARNINGS_MAX

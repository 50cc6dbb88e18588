"""Plain data written as YAML is read as the same data."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.descriptions import dump

_WORDS = st.sampled_from(
    ["yes", "No", "null", "~", "1e3", "0x1", "- a", "a: b", "#", "", " a", "="]
)
_TEXT = st.one_of(
    st.text(st.characters(min_codepoint=1, max_codepoint=0xFFFD, exclude_categories=["Cs"])), _WORDS
)
_KEYS = _TEXT.filter(lambda text: len(text) < 80)
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), _TEXT
)
_DATA = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_KEYS, inner, max_size=4)),
    max_leaves=20,
)


@given(_DATA)
def test_it_reads_back_as_it_was(value: Any) -> None:
    assert yaml.safe_load(dump(value)) == value


@pytest.mark.parametrize("value", ["one\ntwo\n", "a\n\nb\n", "a\n  b\n", "tail \nend\n", "\na\n"])
def test_lines_stay_lines(value: str) -> None:
    assert yaml.safe_load(dump({"about": value})) == {"about": value}

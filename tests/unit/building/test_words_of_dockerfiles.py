"""Variables, quotes and words, as Docker reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet.building import words
from sandfleet_common.errors import BadRequest

VALUES = {"X": "one", "EMPTY": "", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$X", "one"),
        ("${X}", "one"),
        ("a${X}b$X", "aonebone"),
        ("$Xs", ""),
        ("$MISSING", ""),
        ("/opt:$PATH", "/opt:/bin"),
        ("${MISSING:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY-d}", ""),
        ("${MISSING-d}", "d"),
        ("${X:-d}", "one"),
        ("${X:+a}", "a"),
        ("${EMPTY:+a}", ""),
        ("${EMPTY+a}", "a"),
        ("${MISSING+a}", ""),
        ("${MISSING:-${X}-${Y:-z}}", "one-z"),
        ("${X:?why}", "one"),
        (r"\$X", "$X"),
        ("'$X'", "$X"),
        ('"$X y"', "one y"),
        (r'"\$X \" \n"', '$X " \\n'),
        (r"a\ b", "a b"),
        ("$", "$"),
        ("$/x", "$/x"),
        ("a\\", "a\\"),
        ("$1", ""),
    ],
)
def test_variables_are_filled_in(text: str, expected: str) -> None:
    assert words.expand(text, VALUES) == expected


def test_another_escape_may_be_chosen() -> None:
    assert words.expand(r"C:\$X`$X", VALUES, "`") == r"C:\one$X"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("'open", "not closed"),
        ('"open', "missing"),
        ("${X", "may follow"),
        ("${X:-d", "missing"),
        ("${}", "name is missing"),
        ("${X#pattern}", "may follow"),
        ("${MISSING:?give one}", "give one"),
    ],
)
def test_what_is_malformed_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(BadRequest) as caught:
        words.expand(text, VALUES)
    assert reason in caught.value.message


def test_defaults_nested_without_end_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        words.expand("${M:-" * 5000 + "}" * 5000, {})
    assert "nested" in caught.value.message


def test_words_that_multiply_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        words.expand("$A" * 3, {"A": "a" * (words.LONGEST // 2)})
    assert "grows" in caught.value.message


def test_words_are_split_at_white_space_and_keep_their_quotes() -> None:
    assert words.split("a=1  'b c'=d \"e f\" g\\ h") == ["a=1", "'b c'=d", '"e f"', "g\\ h"]
    with pytest.raises(BadRequest):
        words.split("a 'b")


def test_quotes_of_a_here_document_are_letters() -> None:
    assert words.fill('it\'s "$X"\n', VALUES) == 'it\'s "one"\n'


@given(st.text(), st.dictionaries(st.sampled_from("XYZ"), st.text(max_size=5)))
def test_any_text_is_expanded_or_refused(text: str, values: dict[str, str]) -> None:
    for work in (words.expand, words.fill):
        try:
            work(text, values)
        except BadRequest as problem:
            assert problem.message
    try:
        words.split(text)
    except BadRequest as problem:
        assert problem.message


@given(st.text(st.characters(exclude_characters="$'\"\\", exclude_categories=["Cs"])))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert words.expand(text, VALUES) == text

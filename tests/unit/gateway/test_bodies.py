"""What a user sends becomes a message, or a sentence that says what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandfleet_common import messages as m
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import Message
from sandfleet_common.routes import ROUTES
from sandfleet_gateway.bodies import build, build_from_query, parse_object, parse_query

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)
_KINDS = st.sampled_from([route.subject.body for route in ROUTES])


def _sentence(problem: BadRequest) -> str:
    assert problem.message
    assert "\n" not in problem.message.strip()
    return problem.message


@pytest.mark.parametrize(
    ("given_fields", "sentence"),
    [
        ({"argvv": []}, "argvv: there is no such field; did you mean 'argv'?"),
        ({"pty": {"row": 1}}, "pty.row: there is no such field; did you mean 'rows'?"),
        ({"pty": {"xyz": 1}}, "pty.xyz: there is no such field; there are: rows, cols"),
        ({"argv": []}, "argv: list should have at least 1 item after validation, not 0"),
        ({"sandbox_id": "sb-2"}, "sandbox_id: the path says 'sb-1', the body says another"),
        ({"argv": ["a\0b"]}, "argv.0: must not contain a NUL byte"),
        ({"argv": ["a"], "stdin": "@"}, "stdin: "),
    ],
)
def test_what_is_wrong_is_named(given_fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as refused:
        build(m.ExecStart, {"sandbox_id": "sb-1"}, given_fields)
    assert _sentence(refused.value).startswith(sentence)


def test_names_inside_a_table_are_free() -> None:
    body = build(m.SandboxCreate, {}, {"spec": {"labels": {"enviroment": "x"}}})
    assert body.spec.labels == {"enviroment": "x"}


def test_the_same_value_may_stand_in_path_and_body() -> None:
    fields = {"sandbox_id": "sb-1", "argv": ["a"]}
    assert build(m.ExecStart, {"sandbox_id": "sb-1"}, fields).argv == ["a"]


@pytest.mark.parametrize("text", ["_-8=", "/+8="])
def test_bytes_are_base64_in_either_alphabet(text: str) -> None:
    body = build(m.ExecStart, {"sandbox_id": "sb-1"}, {"argv": ["a"], "stdin": text})
    assert body.stdin == b"\xff\xef"


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_sentence(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except BadRequest as problem:
        assert problem.message


@settings(max_examples=40)
@given(_KINDS, st.dictionaries(st.text(), _JSON))
def test_any_fields_are_a_message_or_a_sentence(
    kind: type[Message], fields: dict[str, Any]
) -> None:
    try:
        assert isinstance(build(kind, {}, fields), kind)
    except BadRequest as problem:
        assert problem.message


@settings(max_examples=40)
@given(_KINDS, st.data())
def test_any_values_of_known_fields_are_a_message_or_a_sentence(
    kind: type[Message], data: st.DataObject
) -> None:
    fields = data.draw(st.dictionaries(st.sampled_from(list(kind.model_fields)), _JSON))
    try:
        assert isinstance(build(kind, {}, fields), kind)
    except BadRequest as problem:
        assert problem.message


@settings(max_examples=40)
@given(_KINDS, st.binary(max_size=100), st.lists(st.tuples(st.text(), st.text()), max_size=4))
def test_any_query_is_a_message_or_a_sentence(
    kind: type[Message], raw: bytes, pairs: list[tuple[str, str]]
) -> None:
    for query in (lambda: parse_query(raw), lambda: pairs):
        try:
            assert isinstance(build_from_query(kind, {}, query()), kind)
        except BadRequest as problem:
            assert problem.message


@settings(max_examples=40)
@given(_KINDS, st.data())
def test_any_text_of_known_parameters_is_a_message_or_a_sentence(
    kind: type[Message], data: st.DataObject
) -> None:
    names = st.sampled_from(list(kind.model_fields))
    query = data.draw(st.lists(st.tuples(names, st.text()), max_size=5))
    try:
        assert isinstance(build_from_query(kind, {}, query), kind)
    except BadRequest as problem:
        assert problem.message


def test_a_table_in_a_query_is_json_or_pairs() -> None:
    for query in ([("labels", '{"a": "1", "b": "="}')], [("labels", "a=1"), ("labels", "b==")]):
        assert build_from_query(m.SandboxList, {}, query).labels == {"a": "1", "b": "="}
    for wrong in ("{", "a", "[1]"):
        with pytest.raises(BadRequest):
            build_from_query(m.SandboxList, {}, [("labels", wrong)])


def test_what_the_sdk_sends_is_understood() -> None:
    # Numbers and booleans as JSON writes them, text as it is.
    body = m.SandboxList(ended=True, limit=5, node="n1", labels={"a": "b"})
    fields = json.loads(body.encode())
    query = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in fields.items()]
    assert build_from_query(m.SandboxList, {}, query) == body

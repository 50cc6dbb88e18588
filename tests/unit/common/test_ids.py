"""Names of nodes and sandboxes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.errors import BadRequest
from sandfleet_common.ids import (
    check_node,
    check_token,
    created_ms,
    new_exec_id,
    new_job_id,
    new_request_id,
    new_sandbox_id,
    new_ulid,
    node_of,
)

NODES = st.from_regex(r"[a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){0,39}", fullmatch=True)


@given(NODES)
def test_a_sandbox_id_names_its_node(node: str) -> None:
    assert node_of(new_sandbox_id(node)) == node


def test_ulids_sort_by_time_and_do_not_repeat() -> None:
    made = [new_ulid(ms) for ms in (0, 1, 31, 32, 10**12, 2**47)]
    assert made == sorted(made)
    assert len({new_ulid() for _ in range(10_000)}) == 10_000


@given(st.integers(0, 2**48 - 1))
def test_an_id_holds_the_time_it_was_made(ms: int) -> None:
    assert created_ms(f"sb-n1-{new_ulid(ms)}") == ms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sb",
        "sb-n1",
        "sb-n1-short",
        "sb--01h00000000000000000000000",
        "sb-n1-01H00000000000000000000000",
        "sb-n1--01h00000000000000000000000",
        "sb-n1-81h00000000000000000000000",
        "sb-n.1-01h00000000000000000000000",
        "sb-n1-01h00000000000000000000000\n",
        " sb-n1-01h00000000000000000000000",
        "sb-*-01h00000000000000000000000",
        "x" * 10_000,
    ],
)
def test_what_is_no_sandbox_id_is_a_bad_request(text: str) -> None:
    with pytest.raises(BadRequest):
        node_of(text)
    with pytest.raises(BadRequest):
        created_ms(text)


@pytest.mark.parametrize("name", ["", "-a", "a-", "a--b", "A", "a.b", "a*", "a>", "a b", "a" * 41])
def test_a_name_no_node_can_have_is_a_bad_request(name: str) -> None:
    with pytest.raises(BadRequest):
        check_node(name)


@pytest.mark.parametrize("value", ["", "a.b", "*", ">", "a b", "ä", "a" * 65, "a\n"])
def test_what_is_no_token_is_a_bad_request(value: str) -> None:
    with pytest.raises(BadRequest, match="job"):
        check_token("job", value)


def test_all_ids_are_tokens() -> None:
    for made in (new_job_id(), new_exec_id(), new_request_id(), new_sandbox_id("n1")):
        assert check_token("id", made) == made

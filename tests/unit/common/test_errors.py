"""One closed set of errors, the same on both ends of the wire."""

from __future__ import annotations

import pickle

import pytest

from sandfleet_common import errors
from sandfleet_common.errors import BY_CODE, Broken, NoCapacity, SandfleetError, from_code
from sandfleet_common.messages import Failure
from sandfleet_common.routes import STATUS


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_an_error_crosses_the_wire_unchanged(code: str) -> None:
    error = from_code(code, "what went wrong", {"subject": "x", "count": 3})
    other = Failure.decode(Failure.from_error(error).encode()).to_error()
    assert type(other) is type(error) is BY_CODE[code]
    assert (other.message, other.fields) == (error.message, error.fields)


def test_every_leaf_has_a_code_of_its_own() -> None:
    kinds = {v for v in vars(errors).values() if isinstance(v, type)}
    # Others may refine a leaf; what counts is the tree of this module.
    leaves = [
        k for k in kinds if issubclass(k, SandfleetError) and not kinds & {*k.__subclasses__()}
    ]
    assert len({leaf.code for leaf in leaves}) == len(leaves) == len(BY_CODE)


def test_every_code_has_an_http_status() -> None:
    assert set(STATUS) == set(BY_CODE)


def test_an_unknown_code_is_our_bug_and_says_which() -> None:
    error = from_code("from_the_future", "hm")
    assert isinstance(error, Broken)
    assert "from_the_future" in error.message


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(NoCapacity("full", nodes=3)))
    assert (type(error), error.message, error.fields) == (NoCapacity, "full", {"nodes": 3})

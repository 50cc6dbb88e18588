"""What of a Python function is sent, and what is refused before anything is sent."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from sandfleet import AsyncClient, BadRequest
from sandfleet.sources import check_json, source_of

LIMIT = 5


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that leaves its function alone."""
    return function


def helper(number: int) -> int:
    return number + 1


@dataclass
class Point:
    x: int
    y: float = 0.0


@decorated
@decorated
def plain(number: int, *, times: int = 2) -> Sequence[int]:
    import math as m

    def inner(value: int) -> int:
        return m.isqrt(value) * number

    return [inner(item) for item in range(times)]


def uses_helper(number: int) -> float:
    point = Point(helper(number))
    return math.floor(point.x) + LIMIT


def defaults(number: int = LIMIT) -> int:
    return number


def a_generator() -> Iterator[int]:
    yield 1


async def a_coroutine() -> int:
    return 1


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


@functools.lru_cache
def cached() -> int:
    return 1


def closure(number: int) -> Callable[[], int]:
    def inside() -> int:
        return number

    return inside


def run(source: str, name: str, *args: Any) -> Any:
    scope: dict[str, Any] = {"__name__": "elsewhere"}
    exec(source, scope)
    return scope[name](*args)


def test_a_function_runs_from_its_source_without_decorators_or_annotations() -> None:
    source = source_of(plain)
    assert "decorated" not in source
    assert run(source, "plain", 3) == [0, 3]


def test_an_inner_function_that_closes_over_nothing_is_sent_dedented() -> None:
    def here(text: str) -> str:
        if text:
            return text[::-1]
        return ""

    assert run(source_of(here), "here", "abc") == "cba"


def test_what_it_needs_from_outside_is_named_when_missing() -> None:
    with pytest.raises(BadRequest, match=r"LIMIT, Point, helper, math.*with_source") as raised:
        source_of(uses_helper)
    assert raised.value.fields["names"] == ["LIMIT", "Point", "helper", "math"]
    with pytest.raises(BadRequest, match="LIMIT"):
        source_of(defaults)


def test_what_is_named_with_it_is_sent_before_it() -> None:
    beside = ["import math", "from dataclasses import dataclass", f"LIMIT = {LIMIT}", helper, Point]
    source = source_of(uses_helper, beside)
    # A dataclass looks its module up, as it finds it where a call runs.
    import sys
    import types

    module = types.ModuleType("elsewhere")
    sys.modules["elsewhere"] = module
    try:
        vars(module)["__name__"] = "elsewhere"
        exec(source, vars(module))
        assert vars(module)["uses_helper"](1) == 7
    finally:
        del sys.modules["elsewhere"]


def test_a_helper_may_lack_nothing_either() -> None:
    with pytest.raises(BadRequest, match="dataclass"):
        source_of(uses_helper, ["import math", "LIMIT = 1", helper, Point])


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: 1, "use def instead of lambda"),
        (a_generator, "generator"),
        (a_coroutine, "async"),
        (an_async_generator, "async"),
        (cached, "under no other decorator"),
        (closure(3), "closure over number"),
        (len, "not a plain function"),
        (Point, "not a plain function"),
    ],
)
def test_what_cannot_run_elsewhere_is_refused_in_a_sentence(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words) as raised:
        source_of(function)
    assert "\n" not in raised.value.message


def test_a_function_without_a_file_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def typed(): return 1", scope)
    with pytest.raises(BadRequest, match="put it into a file"):
        source_of(scope["typed"])


@pytest.mark.parametrize(
    ("item", "words"),
    [(math, "import math"), (3, "functions, classes and text"), ("1 +", "not make a program")],
)
def test_what_cannot_be_sent_along_is_named(item: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        source_of(plain, [item])


@pytest.mark.parametrize("value", [None, True, 1, 10**40, 1.5, "ä", [1, [2]], (1,), {"a": {}}])
def test_json_passes(value: Any) -> None:
    check_json("it", value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"x", "it is of type bytes"),
        ({1, 2}, "it is of type set"),
        ([1, object()], r"it\[1\] is of type object"),
        ({"a": {"b": math.nan}}, r"it\['a'\]\['b'\] is nan"),
        ({1: 2}, "has the key 1"),
        ("\ud800", "half a character"),
        ({"\ud800": 1}, "a key of it"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(value: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        check_json("it", value)


def test_what_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(BadRequest, match="holds itself"):
        check_json("it", value)


def test_a_decorated_function_still_runs_here() -> None:
    client = AsyncClient.connect(nats="nats://127.0.0.1:1")

    @client.function(timeout_s=3)
    def twice(number: int) -> int:
        """Return twice the number."""
        return number * 2

    assert twice.local(4) == 8
    assert (twice.name, twice.__doc__) == ("twice", "Return twice the number.")


def test_a_bad_limit_is_refused_where_the_function_is_made() -> None:
    client = AsyncClient.connect(nats="nats://127.0.0.1:1")
    with pytest.raises(BadRequest, match="wall_seconds"):
        client.function(timeout_s=0)(plain)


def test_a_decorator_without_its_parentheses_says_so() -> None:
    client = AsyncClient.connect(nats="nats://any:one@127.0.0.1:1")
    with pytest.raises(BadRequest, match="parentheses"):
        client.function(int)  # pyright: ignore[reportArgumentType]

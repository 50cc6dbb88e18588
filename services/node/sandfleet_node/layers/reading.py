"""Reading many records: side by side, a bounded number at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
AT_ONCE = 32


async def mapped(
    read: Callable[[ItemT], Awaitable[ResultT]], items: Sequence[ItemT]
) -> list[ResultT]:
    """Return what `read` says of each item, in their order, AT_ONCE at the same time.

    The first problem ends it all, and is raised as it is.
    """
    found: dict[int, ResultT] = {}
    left = iter(enumerate(items))

    async def work() -> None:
        for position, item in left:
            found[position] = await read(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(items))):
                group.create_task(work())
    except* Exception as problems:
        raise _first(problems) from None
    return [found[position] for position in range(len(items))]


def _first(problems: BaseExceptionGroup[Exception]) -> Exception:
    problem = problems.exceptions[0]
    return _first(problem) if isinstance(problem, BaseExceptionGroup) else problem

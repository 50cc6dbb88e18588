"""The source of a Python function, whole enough to run elsewhere. Nothing is pickled.

What a function needs from around it is imported in its body or named with
`with_source`; anything else is refused before it is sent, by the name that is missing.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import symtable
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from sandfleet_common.errors import BadRequest

HEAD = "from __future__ import annotations\n"
"""Annotations are not evaluated there: what they name need not be sent."""
DEEPEST = 64
_KNOWN = frozenset({*vars(builtins), "__name__", "__file__", "__doc__", "__builtins__"})


def source_of(function: Callable[..., Any], with_source: Sequence[Any] = ()) -> str:
    """Return Python source that defines `function` and all it needs.

    `with_source` holds functions and classes, whose source is put before it, and text,
    which stands there as it is: `"import numpy as np"`, `"LIMIT = 5"`.

    Raises:
        BadRequest: it cannot run elsewhere; says why, and what to do.
    """
    name = getattr(function, "__name__", repr(function))
    _refuse_unfit(function, name)
    parts = [HEAD, *(_helper(item) for item in with_source), _plain(function, name)]
    source = "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)
    try:
        tree = ast.parse(source)
        compile(source, f"<{name}>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as problem:
        raise BadRequest(f"{name}: with_source does not make a program: {problem}") from None
    missing = _missing(tree)
    if missing:
        raise BadRequest(
            f"{name} uses {', '.join(missing[:5])} from outside: import or define it in its "
            "body, or name it in with_source",
            names=missing,
        )
    return source


def check_json(what: str, value: Any, depth: int = 0) -> None:
    """Raise unless `value` is JSON, so that it arrives as what it is. A tuple becomes a list.

    Raises:
        BadRequest: it holds something else; says what and where.
    """
    if depth > DEEPEST:
        raise BadRequest(f"{what} is nested more than {DEEPEST} deep, or holds itself")
    if value is None or isinstance(value, (bool, int)):
        return
    if isinstance(value, str):
        _check_text(what, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{what} is {value}, which JSON has not")
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(cast(Sequence[Any], value)):
            check_json(f"{what}[{number}]", item, depth + 1)
    elif isinstance(value, dict):
        _check_object(what, cast(dict[Any, Any], value), depth)
    else:
        raise BadRequest(
            f"{what} is of type {type(value).__name__}: arguments are JSON values "
            "(None, bool, int, float, str, list, dict)"
        )


def _check_text(what: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{what} holds half a character, which is no Unicode text") from None


def _check_object(what: str, value: dict[Any, Any], depth: int) -> None:
    for key, item in value.items():
        if not isinstance(key, str):
            raise BadRequest(f"{what} has the key {key!r}: in JSON, keys are text")
        _check_text(f"a key of {what}", key)
        check_json(f"{what}[{key!r}]", item, depth + 1)


def _refuse_unfit(function: Callable[..., Any], name: str) -> None:
    why: str | None = None
    if not inspect.isfunction(function):
        why = "is not a plain function: decorate one, under no other decorator"
    elif name == "<lambda>":
        why = "has no name to be called by: use def instead of lambda"
    elif inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        why = "is async: there it is called plainly, so use def"
    elif inspect.isgeneratorfunction(function):
        why = "is a generator: return a list instead"
    elif function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars[:5])
        why = f"is a closure over {names}: hand them over as arguments"
    if why is not None:
        raise BadRequest(f"{name} {why}")


def _helper(item: Any) -> str:
    if isinstance(item, str):
        return textwrap.dedent(item)
    if inspect.isclass(item):
        return _text(item, item.__name__)
    if inspect.isfunction(item):
        _refuse_unfit(item, item.__name__)
        return _text(item, item.__name__)
    hint = f": write 'import {item.__name__}'" if inspect.ismodule(item) else ""
    raise BadRequest(f"with_source takes functions, classes and text, not {item!r:.80}{hint}")


def _plain(function: Callable[..., Any], name: str) -> str:
    """Return a function's source without its decorators."""
    text = _text(function, name)
    tree = ast.parse(text)
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        raise BadRequest(f"the source of {name} is not that of one function")
    return "".join(text.splitlines(keepends=True)[tree.body[0].lineno - 1 :])


def _text(item: Any, name: str) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(item))
        ast.parse(text)
    except (OSError, TypeError):
        raise BadRequest(f"the source of {name} cannot be found: put it into a file") from None
    except SyntaxError:
        raise BadRequest(
            f"the source of {name} does not stand by itself: use a plain def"
        ) from None
    return text


class _Bare(ast.NodeTransformer):
    """Takes annotations away."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Of a parameter."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Of what is returned."""
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Of a variable, or of a field."""
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _missing(tree: ast.Module) -> list[str]:
    """Return the names that a program uses and nobody defines, in order."""
    bare = ast.unparse(ast.fix_missing_locations(_Bare().visit(tree)))
    top = symtable.symtable(bare, "<function>", "exec")
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    used = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    for table in _inner(top.get_children()):
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                used.add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned():
                defined.add(symbol.get_name())
    return sorted(used - defined - _KNOWN)


def _inner(tables: Iterable[symtable.SymbolTable]) -> Iterable[symtable.SymbolTable]:
    for table in tables:
        yield table
        yield from _inner(table.get_children())

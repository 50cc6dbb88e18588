"""Under which keys layers are found again: the same work on the same ground. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .stages import Action, Command, Files, Group, MakeDir

FORM = 1
"""Grows when the same work would make other layers than before."""


def key(work: str, **parts: Any) -> str:
    """Return the key for work that is wholly described by `parts`, which are JSON values."""
    text = json.dumps([FORM, work, parts], sort_keys=True, ensure_ascii=True)
    return f"{work}-{hashlib.sha256(text.encode()).hexdigest()}"


def group_key(ground: Sequence[str], group: Group, contents: Mapping[int, str]) -> str:
    """Return the key of a group on `ground` (digests).

    `contents` has a hash of what is copied, by the position of the action.
    """
    actions = [_facts(action, contents.get(n, "")) for n, action in enumerate(group.actions)]
    return key("step", ground=list(ground), kind=group.kind.value, actions=actions)


def _facts(action: Action, content: str) -> list[Any]:
    match action:
        case MakeDir():
            return ["mkdir", action.path]
        case Command():
            return ["run", action.argv, action.env, action.user, action.workdir]
        case Files():
            return [
                "copy",
                action.sources,
                action.inline,
                action.target,
                action.unpacks,
                action.chown,
                action.chmod,
                content,
            ]

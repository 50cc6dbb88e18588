"""What a call gives back is bounded as a whole; what does not fit is cut, and said so."""

from __future__ import annotations

from dataclasses import dataclass

from sandfleet_common.messages import CallStep

from .inside.frames import CALL_BYTES


@dataclass(frozen=True, slots=True)
class Fitted:
    """The parts of a result that fit together."""

    files: dict[str, bytes]
    step: CallStep
    compiled: CallStep | None


def fit(
    value_bytes: int, files: dict[str, bytes], step: CallStep, compiled: CallStep | None
) -> Fitted:
    """Return as much as fits beside a value of so many bytes.

    Files come before output, for they were asked for by name, and are whole or missing;
    of output the end is dropped, and counted.
    """
    room = CALL_BYTES - value_bytes
    kept: dict[str, bytes] = {}
    for name, data in files.items():
        if len(data) <= room:
            kept[name] = data
            room -= len(data)
    step, room = _cut(step, room)
    if compiled is not None:
        compiled, room = _cut(compiled, room)
    return Fitted(kept, step, compiled)


def _cut(step: CallStep, room: int) -> tuple[CallStep, int]:
    size = len(step.stdout) + len(step.stderr)
    if size <= room:
        return step, room - size
    # An equal share each, and what one does not need is the other's.
    err = min(len(step.stderr), max(room // 2, room - len(step.stdout)))
    out = min(len(step.stdout), room - err)
    cut = {
        "stdout": step.stdout[:out],
        "stderr": step.stderr[:err],
        "dropped_bytes": step.dropped_bytes + size - out - err,
    }
    return step.model_copy(update=cut), 0

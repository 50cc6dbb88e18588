"""Messages keep their meaning: what was written once can still be read.

`samples/` holds one JSON text for each class, as a service sent it when the class
was new. A sample is never changed; a new field needs a default. The sample of a
new class is written by `python tests/unit/common/test_messages.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common import messages
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import (
    ExecStart,
    FunctionCall,
    JobSubmit,
    Message,
    SandboxesAct,
    SandboxSpec,
)
from sandfleet_common.subjects import TABLE

SAMPLES = Path(__file__).parent / "samples"
CLASSES: dict[str, type[Message]] = {
    name: kind
    for name, kind in sorted(vars(messages).items())
    if isinstance(kind, type) and issubclass(kind, Message) and name not in ("Message", "Request")
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_stored_sample_is_still_read(name: str) -> None:
    path = SAMPLES / f"{name}.json"
    assert path.exists(), f"write one: python {Path(__file__).name}"
    stored: dict[str, Any] = json.loads(path.read_text())
    message = CLASSES[name].decode(path.read_bytes())
    written = json.loads(message.model_dump_json())
    assert _part_of(stored, written), f"{name} reads its sample as {written}"


def _part_of(stored: Any, written: Any) -> bool:
    """Whether everything stored is still there, with the same value."""
    if isinstance(stored, dict) and isinstance(written, dict):
        return all(k in written and _part_of(v, written[k]) for k, v in stored.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(stored, list) and isinstance(written, list):
        return len(stored) == len(written) and all(map(_part_of, stored, written))  # pyright: ignore[reportUnknownArgumentType]
    return stored == written


def test_every_sample_belongs_to_a_class() -> None:
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(CLASSES)


def test_every_class_of_the_table_is_exported() -> None:
    for subject in TABLE:
        assert subject.body in CLASSES.values() and subject.reply in CLASSES.values()


@pytest.mark.parametrize("name", CLASSES)
def test_fields_from_the_future_are_ignored(name: str) -> None:
    stored: dict[str, Any] = json.loads((SAMPLES / f"{name}.json").read_text())
    text = json.dumps(stored | {"from_the_future": {"x": 1}})
    assert CLASSES[name].decode(text.encode()) == CLASSES[name].decode(json.dumps(stored).encode())


@pytest.mark.parametrize("name", CLASSES)
def test_messages_are_frozen_and_survive_the_wire(name: str) -> None:
    message = CLASSES[name].decode((SAMPLES / f"{name}.json").read_bytes())
    assert message.model_config.get("frozen")
    assert CLASSES[name].decode(message.encode()) == message


@given(st.binary(max_size=200))
def test_bytes_are_bytes(data: bytes) -> None:
    message = ExecStart(sandbox_id="sb", argv=["cat"], stdin=data)
    assert ExecStart.decode(message.encode()).stdin == data


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b"", "message"),
        (b"[]", "message"),
        (b"{}", "count"),
        (b'{"count": 0}', "count"),
        (b'{"count": 1, "job_id": "a b"}', "job_id"),
        (b'{"count": 1, "spec": {"resources": {"cpu": 0}}}', "spec.resources.cpu"),
        (b'{"count": 1, "spec": {"env": {"a=b": ""}}}', "spec.env"),
    ],
)
def test_a_message_that_does_not_fit_names_the_field(payload: bytes, field: str) -> None:
    with pytest.raises(BadRequest) as caught:
        JobSubmit.decode(payload)
    assert caught.value.fields["field"] == field
    assert "\n" not in caught.value.message


def test_values_a_user_gave_are_refused_in_one_sentence() -> None:
    with pytest.raises(BadRequest, match="environment"):
        SandboxSpec.of(environment="")
    with pytest.raises(BadRequest, match="NUL"):
        SandboxSpec.of(environment="a\0b")


def test_what_does_not_fit_is_named_as_a_reader_would() -> None:
    with pytest.raises(BadRequest) as caught:
        FunctionCall.of(environment="e", code="", files={"../x": b""})
    assert caught.value.message.startswith("files['../x']: must be a path")
    with pytest.raises(BadRequest) as caught:
        SandboxesAct.of(action="pause")
    assert caught.value.message.startswith("say which sandboxes")


def _value(schema: dict[str, Any], defs: dict[str, Any], name: str) -> Any:
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    if "anyOf" in schema:
        return _value(schema["anyOf"][0], defs, name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][-1]
    kind = schema.get("type")
    if kind == "object":
        known = schema.get("properties")
        if known is None:
            extra = schema.get("additionalProperties")
            return {"NAME": _value(extra if isinstance(extra, dict) else {}, defs, name)}  # pyright: ignore[reportUnknownArgumentType]
        return {k: _value(v, defs, k) for k, v in known.items()}
    if kind == "array":
        return [_value(schema.get("items", {}), defs, name)]
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return least + 1 if kind == "integer" else least + 0.5
    if kind == "boolean":
        return not schema.get("default", False)
    return "eA==" if schema.get("format") in ("binary", "base64url", "base64") else _text(name)


def _text(name: str) -> str:
    return {"sandbox_id": "sb-n1-01h00000000000000000000000", "path": "/tmp/x"}.get(name, name)


def main() -> None:
    """Write samples of classes that have none, from their schemas."""
    SAMPLES.mkdir(exist_ok=True)
    for name, kind in CLASSES.items():
        path = SAMPLES / f"{name}.json"
        if path.exists():
            continue
        schema = kind.model_json_schema()
        sample = _value(schema, schema.get("$defs", {}), name)
        try:
            kind.decode(json.dumps(sample).encode())
        except BadRequest as problem:
            sys.stderr.write(f"{name}: {problem}: write it by hand\n")
        path.write_text(json.dumps(sample, indent=1) + "\n")


if __name__ == "__main__":
    main()

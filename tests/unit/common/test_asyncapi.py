"""docs/asyncapi.yaml is what the code says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml
from jsonschema import Draft202012Validator

from sandfleet_common.asyncapi import document, text
from sandfleet_common.messages import ExecStart
from sandfleet_common.subjects import TABLE

FILE = Path(__file__).parents[3] / "docs" / "asyncapi.yaml"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == text(), (
        "run: python -m sandfleet_common.asyncapi > docs/asyncapi.yaml"
    )


def test_the_text_says_what_the_data_say() -> None:
    assert yaml.safe_load(text()) == document()


def test_every_subject_is_described() -> None:
    addresses = [channel["address"] for channel in document()["channels"].values()]
    assert addresses == [subject.pattern for subject in TABLE]


def test_every_reference_leads_somewhere() -> None:
    found = document()
    for reference in _references(found):
        place: Any = found
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_the_schemas_are_schemas_and_take_a_message() -> None:
    found = document()
    for schema in found["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    whole = {"$ref": "#/components/schemas/ExecStart", "components": found["components"]}
    body = ExecStart(sandbox_id="sb-n1-x", argv=["true"]).model_dump(mode="json")
    Draft202012Validator(whole).validate(body)
    assert not Draft202012Validator(whole).is_valid({"sandbox_id": "sb-n1-x", "argv": []})


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        own = [fields["$ref"]] if isinstance(fields.get("$ref"), str) else []
        return own + [r for inner in fields.values() for r in _references(inner)]
    if isinstance(value, list):
        return [r for inner in cast(list[Any], value) for r in _references(inner)]
    return []

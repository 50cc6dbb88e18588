"""docs/openapi.yaml is what the code says, and true of every route."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml
from jsonschema import Draft202012Validator

from sandfleet_common.messages import SandboxInfo, SandboxSpec
from sandfleet_common.routes import ROUTES
from sandfleet_common.states import State
from sandfleet_gateway.openapi import document, text

FILE = Path(__file__).parents[3] / "docs" / "openapi.yaml"


def test_the_file_is_current() -> None:
    assert FILE.read_text() == text(), (
        "run: python -m sandfleet_gateway openapi > docs/openapi.yaml"
    )


def test_the_text_says_what_the_data_say() -> None:
    assert yaml.safe_load(text()) == document()


def test_every_route_is_described_with_its_path_fields() -> None:
    paths = document()["paths"]
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        named = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert named == route.path_fields()
        assert str(route.status) in operation["responses"]


def test_operations_have_names_of_their_own() -> None:
    names = [o["operationId"] for path in document()["paths"].values() for o in path.values()]
    assert len(names) == len(set(names))


def test_every_reference_leads_somewhere() -> None:
    found = document()
    for reference in _references(found):
        place: Any = found
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]


def test_an_answer_fits_its_schema() -> None:
    found = document()
    answer = found["paths"]["/v1/sandboxes/{sandbox_id}"]["get"]["responses"]["200"]
    schema = answer["content"]["application/json"]["schema"]
    info = SandboxInfo(
        sandbox_id="sb-n1-x", node="n1", state=State.RUNNING, spec=SandboxSpec(), created_at=1.0
    )
    validator = Draft202012Validator({**schema, "components": found["components"]})
    validator.validate(info.model_dump(mode="json"))
    assert not validator.is_valid({"sandbox_id": "sb-n1-x"})


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        own = [fields["$ref"]] if isinstance(fields.get("$ref"), str) else []
        return own + [r for inner in fields.values() for r in _references(inner)]
    if isinstance(value, list):
        return [r for inner in cast(list[Any], value) for r in _references(inner)]
    return []

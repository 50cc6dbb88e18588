"""The bus described as AsyncAPI 3.0, from the table of subjects and the messages.

`python -m sandfleet_common.asyncapi > docs/asyncapi.yaml` writes it down; a test
fails when that file is not what the code says.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from pydantic.json_schema import models_json_schema

from . import messages
from .descriptions import PlainSchemas, dump
from .subjects import ACCESS, STREAMS, TABLE, Subject

Schema = dict[str, Any]

_ABOUT = """\
Every subject of Sandfleet's services, on NATS. A body is JSON, without fields that hold
their defaults; bytes in it are base64. A reader ignores fields that it does not know. A
request that fails is answered with a Failure under the header `Sf-Failure`, which holds
its code.

The frames of a command's stream are binary and described in `sandfleet_common/streams.py`:
the client's go to `sf.v1.node.{node}.io.{stream}`, the node's to the inbox that the client
named in ExecAttach.
"""


def document() -> Schema:
    """Return the description."""
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Sandfleet bus", "version": "1", "description": _ABOUT},
        "defaultContentType": "application/json",
        "channels": {_name(subject): _channel(subject) for subject in TABLE},
        "operations": {_name(subject): _operation(subject) for subject in TABLE},
        "components": {
            "messages": {kind.__name__: _message(kind) for kind in _kinds()},
            "schemas": _schemas(),
        },
        "x-jetstream": {
            stream.name: {
                "subjects": list(stream.subjects),
                "work_queue": stream.work_queue,
                "max_bytes": stream.max_bytes,
                "max_age_seconds": stream.max_age_seconds,
                "duplicate_seconds": stream.duplicate_seconds,
            }
            for stream in STREAMS
        },
        "x-users": {
            user: {
                "publish": list(access.publish),
                "subscribe": list(access.subscribe),
                "answers": access.answers,
            }
            for user, access in ACCESS.items()
        },
    }


def text() -> str:
    """Return the description as YAML."""
    return dump(document())


def _name(subject: Subject[Any, Any]) -> str:
    words = subject.pattern.split(".")[2:]
    return "-".join(word for word in words if not word.startswith("{") and word != "op")


def _kinds() -> list[type[messages.Message]]:
    pairs = ((subject.body, subject.reply) for subject in TABLE)
    kinds = {kind.__name__: kind for pair in pairs for kind in pair}
    kinds[messages.Failure.__name__] = messages.Failure
    return [kinds[name] for name in sorted(kinds)]


def _channel(subject: Subject[Any, Any]) -> Schema:
    channel: Schema = {"address": subject.pattern, "summary": subject.summary}
    if holes := subject.holes():
        channel["parameters"] = {hole: {"description": f"A {hole}'s name"} for hole in holes}
    # The reply comes to an inbox, but AsyncAPI wants it among a channel's messages.
    kinds = [subject.body] if _is_told(subject) else [subject.body, subject.reply, messages.Failure]
    channel["messages"] = {
        kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds
    }
    return channel


def _operation(subject: Subject[Any, Any]) -> Schema:
    name = _name(subject)
    operation: Schema = {
        "action": "send",
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{subject.body.__name__}"}],
    }
    if not _is_told(subject):
        operation["reply"] = {
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [
                {"$ref": f"#/channels/{name}/messages/{kind.__name__}"}
                for kind in (subject.reply, messages.Failure)
            ],
        }
    return operation


def _is_told(subject: Subject[Any, Any]) -> bool:
    """Return whether a subject's messages are told to whoever listens, and not answered."""
    return not issubclass(subject.body, messages.Request) or any(
        subject.pattern in stream.subjects for stream in STREAMS
    )


def _message(kind: type[messages.Message]) -> Schema:
    return {"payload": {"$ref": f"#/components/schemas/{kind.__name__}"}}


def _schemas() -> Schema:
    _, top = models_json_schema(
        [(kind, "validation") for kind in _kinds()],
        ref_template="#/components/schemas/{model}",
        schema_generator=PlainSchemas,
    )
    return cast(Schema, top["$defs"])


if __name__ == "__main__":
    sys.stdout.write(text())

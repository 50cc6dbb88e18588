"""Where a node delivers what a client asks for."""

from __future__ import annotations

import pytest

from sandfleet_common.errors import BadRequest
from sandfleet_node.clientstreams import check_inbox


def test_an_inbox_is_accepted() -> None:
    assert check_inbox("_INBOX.trainer.01abc.XYZ-9_") == "_INBOX.trainer.01abc.XYZ-9_"


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX",
        "_INBOX.>",
        "_INBOX.*.x",
        "_INBOX.a b",
        "_INBOX.a..b",
        "_INBOX.a\r\nPUB x 0",
        "sf.v1.node.heartbeat",
        "x_INBOX.a",
    ],
)
def test_a_subject_that_is_no_inbox_is_refused(subject: str) -> None:
    with pytest.raises(BadRequest, match="must be an inbox"):
        check_inbox(subject)

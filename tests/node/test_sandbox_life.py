"""A sandbox's life on a real node: created, used, ended."""

from __future__ import annotations

import pytest
from node.nodes import RunningNode, output

pytestmark = [pytest.mark.root, pytest.mark.integration]


async def test_a_sandbox_runs_a_command_and_is_stopped(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(sandbox, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (state.state, state.exit_code) == ("exited", 3)
    assert output(state, "stdout") == b"out\n"
    assert output(state, "stderr") == b"err\n"
    info = await node.stop(sandbox)
    assert (info.state, info.reason) == ("stopped", "stopped by its user")

"""Asking the node's programs about this host: `doctor`, base layer, cleaning up.

They are run, not imported: the SDK does not depend on the services.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sandfleet_common.errors import Broken, Conflict, NotFound, Unreachable

from .layout import Layout

_CHECK_SECONDS = 60
_CLEAN_SECONDS = 120


class Finding(BaseModel):
    """One line of `sandfleet doctor`."""

    model_config = ConfigDict(frozen=True)

    id: str
    status: str
    """ok, warn or fail."""
    found: str
    mend: str = ""


_FINDINGS = TypeAdapter(list[Finding])


def examine(layout: Layout) -> dict[str, Finding]:
    """Return what the doctor found, by line.

    Raises:
        Broken: it could not be asked.
    """
    argv = [sys.executable, "-P", "-m", "sandfleet_node.doctor", "--json"]
    done = subprocess.run(
        [*argv, "--state", str(layout.state)],
        capture_output=True, text=True, check=False, timeout=_CHECK_SECONDS,
    )  # fmt: skip
    if "No module named" in done.stderr:
        raise NotFound("the platform's services are not installed: pip install 'sandfleet[local]'")
    try:
        findings = _FINDINGS.validate_json(done.stdout)
    except ValidationError:
        raise Broken(f"the doctor failed: {done.stderr.strip()[-400:]}") from None
    return {finding.id: finding for finding in findings}


def demand_fit(findings: Mapping[str, Finding]) -> None:
    """Go on only if this host can run sandboxes.

    Raises:
        Conflict: it cannot; the message has each failing line and how to mend it.
    """
    failing = [f for f in findings.values() if f.status == "fail"]
    if failing:
        lines = "\n".join(f"  {f.id}: {f.found}. To mend: {f.mend}" for f in failing)
        raise Conflict(
            f"this host is not fit yet, says `sandfleet doctor`:\n{lines}",
            doctor=[f.id for f in failing],
        )


def build_base(
    layout: Layout, findings: Mapping[str, Finding], progress: Callable[[str], None]
) -> None:
    """Build the base layer if the doctor found none; one that lies in another store is not ours.

    Raises:
        Unreachable: it could not be built.
    """
    found = findings.get("base-layer")
    if (found is not None and found.status == "ok") or os.environ.get("SANDFLEET_NODE_STORE_URL"):
        return
    argv = [sys.executable, "-P", "-m", "sandfleet_node.layers", "build-base"]
    with subprocess.Popen(
        [*argv, "--state", str(layout.state)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stderr is not None
        last = ""
        for line in child.stderr:
            last = line.strip()
            progress(last)
        if child.wait() != 0:
            raise Unreachable(f"{last} (doctor line `base-layer`)")


def clean(env: Mapping[str, str]) -> None:
    """End and remove what a node that is not running has left: sandboxes, launcher, cgroups.

    Raises:
        Broken: something is still there.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sandfleet_node", "clean"],
        env=dict(env), cwd="/", capture_output=True, text=True, check=False,
        timeout=_CLEAN_SECONDS,
    )  # fmt: skip
    if done.returncode != 0:
        raise Broken(f"cleaning up after the node failed: {done.stderr.strip()[-400:]}")

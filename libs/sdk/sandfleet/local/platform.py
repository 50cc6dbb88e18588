"""Bringing a local platform up and down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import host
from .configuration import environment, write_all
from .endpoints import Endpoints, find
from .layout import Layout, write_private
from .parts import NATS, PARTS, SERVICES, STOP_ORDER, Part, command
from .ports import HOST, assign
from .processes import Process, alive, recorded, start, stop
from .readiness import make_streams, wait_ready
from .state import status

Progress = Callable[[str], None]
_PORTS = (*(part.name for part in PARTS), "http")


def up(state: Path, *, progress: Progress, build: bool = True) -> Endpoints:
    """Start what does not run yet of the platform of a state directory.

    Args:
        state: the state directory, made if there is none.
        progress: told what happens, one line at a time.
        build: build the base layer when it is missing, which takes a minute.

    Returns:
        Where it listens.

    Raises:
        Conflict: this host lacks something; the message names the doctor's lines.
        Unreachable: a part did not start; the message has the end of its log. What this
            call had started is ended again.
    """
    layout = Layout(state)
    layout.make()
    with layout.locked(progress):
        endpoints = find(layout.state)
        if endpoints is not None and all(_is_as_wanted(p, layout, endpoints) for p in PARTS):
            progress("already up")
            return endpoints
        progress("checking this host")
        findings = host.examine(layout)
        host.demand_fit(findings)
        if build:
            host.build_base(layout, findings, progress)
        return _start(layout, _wanted(findings, progress), progress)


def _is_as_wanted(part: Part, layout: Layout, endpoints: Endpoints) -> bool:
    return part.name not in endpoints.pids or alive(layout.record(part.name)) is not None


def _wanted(findings: Mapping[str, host.Finding], progress: Progress) -> list[Part]:
    """Return the parts to run: on a host without eBPF all but the sensor."""
    blind = [
        findings[line]
        for line in ("ebpf", "sensor")
        if line in findings and findings[line].status != "ok"
    ]
    for finding in blind:
        progress(f"no security sensor: doctor line `{finding.id}`: {finding.found}")
    return [part for part in PARTS if not (blind and part.name == "sensor")]


def _start(layout: Layout, wanted: Sequence[Part], progress: Progress) -> Endpoints:
    running = {p.name: found for p in wanted if (found := alive(layout.record(p.name)))}
    held = {*running, "http"} if "gateway" in running else {*running}
    ports = assign(layout.config / "ports.json", _PORTS, held)
    passwords = write_all(layout, ports)
    missing = [part for part in wanted if part.name not in running]
    is_fresh = not running
    try:
        servers = [part for part in missing if not part.is_service]
        _start_all(servers, layout, ports, running, progress)
        if NATS in servers:
            make_streams(layout, ports["nats"], passwords["admin"])
        services = [part for part in missing if part.is_service]
        _start_all(services, layout, ports, running, progress)
        endpoints = _endpoints(layout, ports, running)
        write_private(layout.endpoints, endpoints.model_dump_json(indent=2) + "\n")
    except BaseException:
        progress("that failed; ending what was started")
        _stop_all(missing, layout, progress)
        if is_fresh:  # else there may be sandboxes that another try still adopts
            _clean(layout)
        raise
    return endpoints


def _start_all(
    parts: Sequence[Part],
    layout: Layout,
    ports: Mapping[str, int],
    running: dict[str, Process],
    progress: Progress,
) -> None:
    """Start parts side by side and wait until all are ready."""
    if parts:
        progress(f"starting {', '.join(part.name for part in parts)}")
    for part in parts:
        running[part.name] = start(
            layout.record(part.name),
            layout.log_of(part.name),
            command(part, layout),
            environment(part.name, layout),
        )
    for part in parts:
        wait_ready(part, running[part.name], ports[part.name], layout)


def _endpoints(
    layout: Layout, ports: Mapping[str, int], running: Mapping[str, Process]
) -> Endpoints:
    return Endpoints(
        nats=f"nats://{HOST}:{ports['nats']}",
        redis=f"redis://{HOST}:{ports['redis']}/0",
        gateway=f"http://{HOST}:{ports['http']}",
        password_file=layout.passwords / "trainer",
        api_key_file=layout.api_key,
        metrics={part.name: ports[part.name] for part in SERVICES if part.name in running},
        pids={name: process.pid for name, process in running.items()},
    )


def down(state: Path, *, progress: Progress) -> None:
    """End the platform of a state directory with all its sandboxes; nothing up is no error.

    Raises:
        Broken: something could not be removed; the message says what.
    """
    layout = Layout(state)
    if not layout.run.is_dir():
        progress("nothing is up")
        return
    with layout.locked(progress):
        if not status(layout.state):
            progress("nothing is up")
            return
        _stop_all(STOP_ORDER, layout, progress)
        _clean(layout)
        layout.endpoints.unlink(missing_ok=True)


def _stop_all(parts: Sequence[Part], layout: Layout, progress: Progress) -> None:
    """End parts, in the order in which that is orderly."""
    for part in STOP_ORDER:
        record = layout.record(part.name)
        if part in parts and recorded(record) is not None:
            progress(f"stopping {part.name}")
            if not stop(record, part.stop_seconds):
                progress(f"{part.name} did not end within {part.stop_seconds:g} s; killed")


def _clean(layout: Layout) -> None:
    """Remove what a node that died has left; after an orderly end that is nothing."""
    if (layout.state / "node" / layout.node_name()).exists():
        host.clean(environment("node", layout))

"""Processes that outlive who started them, are known again, and can be ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from sandfleet.local import processes
from sandfleet.local.processes import Process
from sandfleet_common.errors import NotFound

ENV = {"PATH": os.environ["PATH"]}
OBEDIENT = "import time\nprint('up', flush=True)\ntime.sleep(600)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + OBEDIENT


@pytest.fixture
def record(tmp_path: Path) -> Generator[Path]:
    yield tmp_path / "part.pid"
    processes.stop(tmp_path / "part.pid", 0)


def run(record: Path, code: str) -> Process:
    log = record.with_suffix(".log")
    process = processes.start(record, log, [sys.executable, "-c", code], ENV)
    while not log.read_text():
        time.sleep(0.01)
    return process


def test_a_started_process_is_nobodys_child_and_has_its_own_session(record: Path) -> None:
    process = run(record, OBEDIENT)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[1]) != os.getpid()
    assert int(fields[3]) == os.getsid(process.pid) != os.getsid(0)
    assert processes.alive(record) == process


def test_it_writes_to_its_log_and_reads_nothing(record: Path) -> None:
    run(record, "import sys\nprint(repr(sys.stdin.read()), flush=True)\n" + OBEDIENT)
    assert record.with_suffix(".log").read_text().startswith("''\n")


def test_it_has_no_descriptor_of_ours(record: Path, tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        process = run(record, OBEDIENT)
    held = {os.readlink(p) for p in Path(f"/proc/{process.pid}/fd").iterdir()}  # noqa: PTH115
    assert held == {"/dev/null", str(record.with_suffix(".log"))}


def test_it_minds_signals_as_a_fresh_process_does(record: Path) -> None:
    process = run(record, OBEDIENT)
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(next(x for x in status.splitlines() if x.startswith("SigIgn")).split()[1], 16)
    # Those of the C library cannot be set by a program.
    ignored = {number for number in signal.valid_signals() if mask >> (number - 1) & 1}
    # Python itself ignores these two.
    assert ignored <= {signal.SIGPIPE, signal.SIGXFSZ}


def test_a_process_ends_when_it_is_asked_to(record: Path) -> None:
    process = run(record, OBEDIENT)
    assert processes.stop(record, 10)
    assert not process.is_alive()
    assert not record.exists()


def test_one_that_will_not_end_is_killed(record: Path) -> None:
    process = run(record, STUBBORN)
    assert not processes.stop(record, 0.2)
    assert not process.is_alive()


def test_a_process_that_got_the_number_of_ours_is_left_alone(record: Path) -> None:
    mine = Process.model_validate_json(processes.starter.record_of(os.getpid()))
    stranger = mine.model_copy(update={"started": mine.started - 1})
    record.write_text(stranger.model_dump_json())
    assert processes.alive(record) is None
    assert processes.stop(record, 10)


def test_a_process_of_before_the_last_boot_is_not_ours(record: Path) -> None:
    mine = Process.model_validate_json(processes.starter.record_of(os.getpid()))
    record.write_text(mine.model_copy(update={"boot": "another"}).model_dump_json())
    assert processes.alive(record) is None


def test_a_program_that_cannot_run_is_an_error_at_once(record: Path) -> None:
    with pytest.raises(NotFound, match="cannot run /no/such/program"):
        processes.start(record, record.with_suffix(".log"), ["/no/such/program"], ENV)


def test_the_end_of_a_log_is_what_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {n}" for n in range(5000)) + "\n\n")
    assert processes.last_lines(log, 2) == ["line 4998", "line 4999"]
    assert processes.last_lines(tmp_path / "none") == []

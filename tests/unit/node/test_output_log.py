"""The file of one command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_node.outputlog import LogDamaged, OutputLog

Pieces = list[tuple[bool, bytes]]


def _log(path: Path, *pieces: tuple[bool, bytes], stdin: bytes = b"") -> OutputLog:
    log = OutputLog(str(path))
    log.begin(b'{"about": 1}', stdin)
    for is_stderr, data in pieces:
        log.append(log.end, is_stderr, data)
    return log


def test_output_is_read_back_from_any_position(tmp_path: Path) -> None:
    log = _log(tmp_path / "1", (False, b"abc"), (False, b"def"), (True, b"xyz"))
    assert log.read(0, 100) == [(False, b"abcdef"), (True, b"xyz")]
    assert log.read(2, 3) == [(False, b"cde")]
    assert log.read(5, 2) == [(False, b"f"), (True, b"x")]
    assert log.read(9, 100) == []
    log.close()


def test_output_that_comes_twice_is_kept_once(tmp_path: Path) -> None:
    log = _log(tmp_path / "1", (False, b"abc"))
    assert not log.append(0, False, b"abc")
    assert log.append(1, False, b"bcd")
    assert log.read(0, 100) == [(False, b"abcd")]
    log.close()


def test_output_with_a_gap_before_it_is_refused(tmp_path: Path) -> None:
    log = _log(tmp_path / "1", (False, b"abc"))
    with pytest.raises(ValueError, match="does not follow"):
        log.append(4, False, b"x")
    log.close()


def test_a_log_is_recovered_and_goes_on(tmp_path: Path) -> None:
    first = _log(tmp_path / "1", (False, b"abc"), stdin=b"typed")
    first.close()
    log, found = OutputLog.recover(str(tmp_path / "1"))
    assert (found.about, found.end, log.stdin()) == (b'{"about": 1}', None, b"typed")
    log.append(3, True, b"more")
    log.finish(b'{"end": 1}')
    log, found = OutputLog.recover(str(tmp_path / "1"))
    assert found.end == b'{"end": 1}'
    assert log.read(0, 100) == [(False, b"abc"), (True, b"more")]
    log.close()


def test_an_ended_log_can_be_read_and_holds_no_descriptor(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    log = _log(tmp_path / "1", (False, b"abc"))
    log.finish(b"{}")
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert log.read(1, 10) == [(False, b"bc")]
    log.remove()
    log.remove()
    with pytest.raises(FileNotFoundError):
        log.read(0, 10)


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_record_cut_short_is_dropped(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("log") / "1"
    log = _log(path, (False, b"a" * 40), (True, b"b" * 40))
    log.close()
    os.truncate(path, min(cut, path.stat().st_size))
    try:
        log, _ = OutputLog.recover(str(path))
    except LogDamaged:
        assert cut < 28, "what was asked is whole, so the log is"
        return
    assert log.end in (0, 40, 80)
    log.append(log.end, False, b"next")
    assert b"".join(data for _, data in log.read(0, 1000)).endswith(b"next")
    log.close()


@given(
    pieces=st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=20_000)), max_size=40),
    position=st.integers(0, 400_000),
    limit=st.integers(0, 100_000),
)
def test_every_window_of_output_is_the_same_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory, pieces: Pieces, position: int, limit: int
) -> None:
    log = _log(tmp_path_factory.mktemp("log") / "1", *pieces)
    whole = [(is_stderr, byte) for is_stderr, data in pieces for byte in data]
    found = [(is_stderr, b) for is_stderr, data in log.read(position, limit) for b in data]
    assert found == whole[position : position + limit]
    log.close()


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"hello, I am not a log at all")
    with pytest.raises(LogDamaged):
        OutputLog.recover(str(tmp_path / "1"))

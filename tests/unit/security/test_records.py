"""Records of the sensor program: read whole, cut anywhere, never trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from struct import Struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_security import records
from sandfleet_security.records import (
    BEAT,
    CALL,
    DROPPED,
    EXEC,
    HEADER,
    READY,
    Beat,
    Call,
    Dropped,
    Exec,
    Reader,
    Ready,
    RecordError,
    RecordFlag,
    RecordType,
)

NATIVE = Path(__file__).resolve().parents[3] / "native"


def packed(kind: int, layout: Struct, *values: Any, flags: int = 0) -> bytes:
    """Return a record as the sensor program writes it."""
    size = HEADER.size + layout.size
    return HEADER.pack(size, kind, flags, 1_500_000_000, 77) + layout.pack(*values)


CALL_BYTES = packed(
    1, CALL, b"sb-n1-x", 10, 11, 1000, 165, b"mount", 1, 2, 3, 4, 5, 6, -1, flags=0x24
)
EXEC_BYTES = packed(2, EXEC, b"sb-n1-x", 10, 11, 1000, 0, b"sh", b"/bin/sh", flags=16)
BEAT_BYTES = packed(4, BEAT, 1, 2, 3, 4)


def test_a_call_is_read_with_all_its_fields() -> None:
    (call,) = Reader().feed(CALL_BYTES)
    assert isinstance(call, Call)
    assert call.header.flags == RecordFlag.AT_INIT | RecordFlag.URGENT
    assert (call.header.time_ns, call.header.cgroup) == (1_500_000_000, 77)
    assert (call.sandbox, call.pid, call.tid, call.uid) == ("sb-n1-x", 10, 11, 1000)
    assert (call.number, call.program) == (165, "mount")
    assert (call.arguments, call.result) == ((1, 2, 3, 4, 5, 6), -1)


def test_a_program_start_is_read_with_all_its_fields() -> None:
    (start,) = Reader().feed(EXEC_BYTES)
    assert isinstance(start, Exec)
    assert start.header.flags == RecordFlag.UNLINKED
    assert (start.pid, start.tid, start.uid, start.program) == (10, 11, 1000, "sh")
    assert start.path == "/bin/sh"


def test_counts_beats_and_greetings_are_read() -> None:
    stream = packed(3, DROPPED, b"sb-n1-x", -2, 0, 900) + BEAT_BYTES + packed(5, READY, 1, 0)
    dropped, beat, ready = Reader().feed(stream)
    assert isinstance(dropped, Dropped)
    assert (dropped.number, dropped.count) == (-2, 900)
    assert isinstance(beat, Beat)
    assert (beat.reported, beat.rate_limited, beat.ring_full, beat.unread) == (1, 2, 3, 4)
    assert isinstance(ready, Ready)
    assert ready.protocol == records.PROTOCOL


@given(st.lists(st.integers(1, 700), max_size=20))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = CALL_BYTES + EXEC_BYTES + BEAT_BYTES
    reader = Reader()
    found: list[object] = []
    for cut in cuts:
        found += reader.feed(stream[:cut])
        stream = stream[cut:]
    found += reader.feed(stream)
    assert [type(record) for record in found] == [Call, Exec, Beat]


@given(st.binary(max_size=600))
def test_noise_is_records_or_a_record_error(data: bytes) -> None:
    try:
        Reader().feed(data)
    except RecordError:
        return


@given(kind=st.sampled_from(list(RecordType)), flags=st.integers(0, 65535), data=st.data())
def test_any_content_of_a_well_sized_record_is_read(
    kind: RecordType, flags: int, data: st.DataObject
) -> None:
    layout = {1: CALL, 2: EXEC, 3: DROPPED, 4: BEAT, 5: READY}[kind]
    body = data.draw(st.binary(min_size=layout.size, max_size=layout.size))
    (record,) = Reader().feed(HEADER.pack(HEADER.size + layout.size, kind, flags, 0, 0) + body)
    if isinstance(record, Call | Exec):
        assert record.program.isprintable()
        record.program.encode()


@pytest.mark.parametrize("size", [0, 1, 23, 4097, 2**32 - 1])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(RecordError, match=f"claims {size} bytes"):
        Reader().feed(HEADER.pack(size, 1, 0, 0, 0))


def test_a_size_that_does_not_fit_its_type_is_refused() -> None:
    with pytest.raises(RecordError, match="type 4 has 57 bytes"):
        Reader().feed(HEADER.pack(57, 4, 0, 0, 0) + bytes(33))


def test_an_unknown_type_is_skipped_and_counted() -> None:
    reader = Reader()
    (beat,) = reader.feed(HEADER.pack(30, 99, 0, 0, 0) + bytes(6) + BEAT_BYTES)
    assert isinstance(beat, Beat)
    assert reader.unknown == 1


def test_a_name_that_cannot_be_shown_is_escaped() -> None:
    assert records.text(b"a\x1b[2J\xffb\0rest") == r"a\x1b[2J\xffb"
    assert records.text("naïve".encode()) == "naïve"


def test_records_are_laid_out_as_in_c() -> None:
    if not shutil.which("gcc") or not shutil.which("make"):
        pytest.skip("doctor line `compiler`: gcc and make are missing")
    done = subprocess.run(
        ["make", "-s", "-C", str(NATIVE / "bpf"), "layout"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    layout: dict[str, int] = json.loads(done.stdout)
    assert layout == _as_python_has_it()


def _as_python_has_it() -> dict[str, int]:
    found = {
        "SN_PROTOCOL": records.PROTOCOL,
        "SN_SANDBOX_MAX": records.SANDBOX_MAX,
        "SN_PROGRAM_MAX": records.PROGRAM_MAX,
        "SN_PATH_MAX": records.PATH_MAX,
        "SN_RECORD_MAX": records.RECORD_MAX,
        "SN_NR_FOREIGN": records.NR_FOREIGN,
        "SN_NR_EXEC": records.NR_EXEC,
        "sn_header": HEADER.size,
    }
    found |= {f"SN_{kind.name}": int(kind) for kind in RecordType}
    found |= {f"SN_FLAG_{flag.name}": int(flag) for flag in RecordFlag}
    found |= _offsets("sn_header", HEADER, 0, "size type flags time_ns cgroup")
    for name, layout, fields in (
        ("sn_call", CALL, "sandbox pid tid uid nr program args - - - - - result"),
        ("sn_exec", EXEC, "sandbox pid tid uid - program path"),
        ("sn_dropped", DROPPED, "sandbox nr - count"),
        ("sn_beat", BEAT, "reported rate_limited ring_full unread"),
        ("sn_ready", READY, "protocol -"),
    ):
        found[name] = HEADER.size + layout.size
        found |= _offsets(name, layout, HEADER.size, fields)
    return found


def _offsets(name: str, layout: Struct, base: int, fields: str) -> dict[str, int]:
    """Return the offset of each field, found by where a change of it shows in the bytes."""
    names = fields.split()
    zero: list[Any] = list(layout.unpack(bytes(layout.size)))
    offsets: dict[str, int] = {}
    for index, field in enumerate(names):
        changed = [*zero]
        changed[index] = b"\x01" if isinstance(zero[index], bytes) else 1
        if field != "-":
            offsets[f"{name}.{field}"] = base + layout.pack(*changed).index(1)
    return offsets

"""When a request is sent again, and what is told when it is not."""

from __future__ import annotations

import pickle

import pytest

from sandfleet import CommandFailed, Interrupted, NodeLost, Result, SandboxGone
from sandfleet.calls import LONGEST_PAUSE_SECONDS, ended, may_repeat, pause
from sandfleet.chunks import CHUNK_BYTES
from sandfleet.command import LONGEST_QUIET_SECONDS, QUIET_SECONDS, quiet_seconds
from sandfleet.results import result_of
from sandfleet.sandbox import argv_of
from sandfleet.watching import differences
from sandfleet_common import subjects as s
from sandfleet_common.errors import Busy, NoCapacity, TimedOut, Unreachable
from sandfleet_common.messages import (
    Chunk,
    ExecState,
    FileEntry,
    FileType,
    SandboxInfo,
    SandboxSpec,
)
from sandfleet_common.states import Origin, State


@pytest.mark.parametrize(
    "subject",
    [
        s.EXEC_START,
        s.SANDBOX_CREATE,
        s.FILE_WRITE,
        s.STOP,
        s.PAUSE,
        s.RESUME,
        s.SET_PHASE,
        s.SANDBOXES_ACT,
    ],
)
def test_what_has_a_name_is_sent_again_when_its_answer_was_lost(
    subject: s.Subject[ExecState, ExecState],
) -> None:
    assert may_repeat(subject, TimedOut("lost"))


@pytest.mark.parametrize("subject", [s.EXEC_SIGNAL, s.FILE_REMOVE, s.FILE_RENAME])
def test_what_has_no_name_is_sent_again_only_when_nobody_heard_it(
    subject: s.Subject[ExecState, ExecState],
) -> None:
    assert not may_repeat(subject, TimedOut("lost"))
    assert may_repeat(subject, Unreachable("nobody"))
    assert may_repeat(subject, Busy("full"))


def test_no_capacity_is_an_answer() -> None:
    assert not may_repeat(s.SANDBOX_CREATE, NoCapacity("full"))


def test_pauses_grow_to_a_limit_and_are_spread() -> None:
    assert [pause(n, 1.0) for n in (1, 2, 3)] == [0.05, 0.1, 0.2]
    assert pause(50, 1.0) == LONGEST_PAUSE_SECONDS
    assert pause(50, 0.0) == LONGEST_PAUSE_SECONDS / 2


def test_a_stream_is_looked_after_less_often_when_that_brings_nothing() -> None:
    assert quiet_seconds(0) == QUIET_SECONDS
    assert quiet_seconds(1) == 2 * QUIET_SECONDS
    assert quiet_seconds(100) == LONGEST_QUIET_SECONDS


def info(origin: Origin) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id="sb-n-01k8zq3v5w9x2y4a6b8c0d2e4f",
        node="n",
        state=State.FAILED,
        spec=SandboxSpec(),
        created_at=0,
        reason="it was so",
        origin=origin,
    )


def test_an_ended_sandbox_says_why_and_by_whom() -> None:
    gone = ended(info(Origin.PLATFORM))
    assert isinstance(gone, SandboxGone)
    assert "it was so" in gone.message
    assert gone.fields["origin"] == "platform"
    assert isinstance(ended(info(Origin.NODE_LOST)), NodeLost)


def state(**values: object) -> ExecState:
    given = {"sandbox_id": "s", "exec_id": "e", "state": "exited", "started_at": 1.0, **values}
    return ExecState.model_validate(given)


def test_a_result_keeps_both_streams_apart() -> None:
    chunks = [
        Chunk(stream="stdout", data=b"a"),
        Chunk(stream="stderr", data=b"b"),
        Chunk(stream="stdout", data=b"c"),
    ]
    result = result_of(state(exit_code=0, ended_at=3.5), chunks)
    assert (result.stdout, result.stderr, result.duration, result.ok) == (b"ac", b"b", 2.5, True)


def test_a_lost_command_is_an_error_and_not_a_result() -> None:
    with pytest.raises(Interrupted, match="power"):
        result_of(state(state="lost", reason="power failed"), [])


def test_a_command_that_ran_out_of_time_did_not_succeed() -> None:
    assert not Result(exit_code=0, timed_out=True).ok


def test_a_failed_command_survives_pickling_with_its_result() -> None:
    error = CommandFailed(Result(exit_code=2, stderr=b"why\n"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, CommandFailed)
    assert (again.result, str(again)) == (error.result, str(error))


def test_text_runs_in_a_shell_and_a_list_does_not() -> None:
    assert argv_of("a | b") == ["/bin/sh", "-c", "a | b"]
    assert argv_of(("a", "|")) == ["a", "|"]


def entry(size: int = 1, mode: int = 0o644, kind: FileType = FileType.FILE) -> FileEntry:
    return FileEntry(
        name="f", path="f", type=kind, size=size, mode=mode, uid=0, gid=0, modified_at=0
    )


def test_two_looks_at_a_directory_tell_what_happened() -> None:
    before = {"gone": entry(), "same": entry(), "grown": entry(), "closed": entry()}
    after = {"same": entry(), "grown": entry(2), "closed": entry(mode=0o600), "new": entry()}
    assert [(kind.value, path) for kind, path in differences(before, after)] == [
        ("chmod", "closed"),
        ("remove", "gone"),
        ("write", "grown"),
        ("create", "new"),
    ]


def test_a_piece_of_a_file_fits_into_a_message() -> None:
    assert CHUNK_BYTES * 4 / 3 < 4 * 1024 * 1024

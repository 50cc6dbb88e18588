"""The wire format: what goes out comes back, what is malformed is refused, C and Python agree."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sandfleet_common import wire
from sandfleet_common.wire import EventKind, Frame, FrameFlag, FrameType, Tag, WireError

NATIVE = Path(__file__).resolve().parents[3] / "native"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to read wire.h with")
    program = tmp_path_factory.mktemp("layout") / "layout"
    source = NATIVE / "tests" / "layout.c"
    subprocess.run([compiler, "-I", NATIVE / "include", "-o", program, source], check=True)
    return json.loads(subprocess.run([program], check=True, capture_output=True).stdout)


def test_constants_agree_with_the_header(layout: dict[str, int]) -> None:
    said = {name: value for name, value in layout.items() if name.startswith("constant.")}
    assert said == {
        "constant.PROTOCOL": wire.PROTOCOL,
        "constant.FRAME_DATA_MAX": wire.FRAME_DATA_MAX_BYTES,
        "constant.WINDOW": wire.WINDOW_BYTES,
        "constant.PROCESSES_MAX": wire.PROCESSES_MAX,
        "constant.WRITES_MAX": wire.WRITES_MAX,
        "constant.WATCHES_MAX": wire.WATCHES_MAX,
        "constant.LAUNCHER_MAX": wire.LAUNCHER_MAX_BYTES,
    }


@pytest.mark.parametrize(
    ("prefix", "mirror"),
    [("type", FrameType), ("flag", FrameFlag), ("tag", Tag), ("event", EventKind)],
)
def test_an_enumeration_agrees_with_the_header(
    layout: dict[str, int],
    prefix: str,
    mirror: type[FrameType] | type[FrameFlag] | type[Tag] | type[EventKind],
) -> None:
    said = {n.split(".", 1)[1]: v for n, v in layout.items() if n.startswith(f"{prefix}.")}
    assert said == {member.name: int(member) for member in mirror}


def test_structures_agree_with_the_header(layout: dict[str, int]) -> None:
    sizes = {n.split(".", 1)[1]: v for n, v in layout.items() if n.startswith("size.")}
    assert sizes == {
        "sf_frame": wire.HEADER.size,
        "sf_field": wire.FIELD.size,
        "sf_entry": wire.ENTRY.size,
        "sf_process": wire.PROCESS.size,
    }


def test_every_member_lies_where_python_looks_for_it(layout: dict[str, int]) -> None:
    widths = {"H": 2, "I": 4, "Q": 8}
    structs = {
        "sf_frame": wire.HEADER,
        "sf_field": wire.FIELD,
        "sf_entry": wire.ENTRY,
        "sf_process": wire.PROCESS,
    }
    for name, struct in structs.items():
        offsets = [v for n, v in layout.items() if n.startswith(f"offset.{name}.")]
        letters = _expand(struct.format.removeprefix("<"))
        expected = [sum(widths[x] for x in letters[:i]) for i in range(len(letters))]
        assert offsets == expected, name


def _expand(form: str) -> str:
    """Return a struct format without its repeat counts."""
    letters, count = "", ""
    for char in form:
        if char.isdigit():
            count += char
        else:
            letters += char * int(count or "1")
            count = ""
    return letters


def test_a_frame_comes_back_as_it_was() -> None:
    packet = wire.pack_frame(FrameType.STDIN, 7, FrameFlag.EOF, 1 << 40, b"abc")
    assert wire.unpack_frame(packet) == Frame(FrameType.STDIN, 7, FrameFlag.EOF, 1 << 40, b"abc")


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\0" * 23,
        wire.pack_frame(FrameType.ACK) + b"x",
        wire.pack_frame(FrameType.STDIN, payload=b"abc")[:-1],
        wire.HEADER.pack(0, 999, 0, 0, 0, 0),
        wire.HEADER.pack(0, 1, 0x8000, 0, 0, 0),
        wire.HEADER.pack(0, 1, 0, 0, 1, 0),
        wire.HEADER.pack(0xFFFFFFFF, 1, 0, 0, 0, 0),
    ],
    ids=["empty", "short", "long", "cut", "type", "flag", "reserved", "size"],
)
def test_a_malformed_frame_is_refused(packet: bytes) -> None:
    with pytest.raises(WireError):
        wire.unpack_frame(packet)


def test_a_payload_longer_than_a_frame_is_refused() -> None:
    with pytest.raises(WireError, match="65536"):
        wire.pack_frame(FrameType.STDIN, payload=b"x" * 65537)


@pytest.mark.parametrize(("id", "position"), [(-1, 0), (1 << 32, 0), (0, -1), (0, 1 << 64)])
def test_a_number_that_does_not_fit_the_header_is_refused(id: int, position: int) -> None:
    with pytest.raises(WireError):
        wire.pack_frame(FrameType.STDIN, id, position=position)


def test_fields_come_back_with_their_types() -> None:
    payload = wire.pack_fields(
        [(Tag.ARG, "é"), (Tag.ARG, b"\xff"), (Tag.TIMEOUT_MS, 1 << 40), (Tag.ROWS, 24)]
    )
    assert wire.unpack_fields(payload) == [
        (Tag.ARG, "é".encode()),
        (Tag.ARG, b"\xff"),
        (Tag.TIMEOUT_MS, 1 << 40),
        (Tag.ROWS, 24),
    ]


def test_text_with_surrogate_escapes_keeps_its_bytes() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    assert wire.unpack_fields(wire.pack_fields([(Tag.PATH, name)])) == [(Tag.PATH, b"\xff\xfe")]


@pytest.mark.parametrize(
    ("tag", "value"),
    [(Tag.ROWS, "24"), (Tag.PATH, 5), (Tag.ROWS, 1 << 32), (Tag.LIMIT, -1)],
)
def test_a_value_that_does_not_suit_its_tag_is_refused(tag: Tag, value: int | str) -> None:
    with pytest.raises(WireError):
        wire.pack_fields([(tag, value)])


@pytest.mark.parametrize(
    "payload",
    [
        b"\0",
        wire.FIELD.pack(Tag.ARG, 0, 5) + b"abcd",
        wire.FIELD.pack(Tag.ARG, 1, 0),
        wire.FIELD.pack(999, 0, 0),
        wire.FIELD.pack(Tag.ROWS, 0, 3) + b"abc",
        wire.FIELD.pack(Tag.ENTRY, 0, 3) + b"abc",
        wire.FIELD.pack(Tag.PROCESS, 0, 3) + b"abc",
        wire.FIELD.pack(Tag.ARG, 0, 0xFFFFFFFF),
    ],
    ids=["short", "long", "reserved", "tag", "number", "entry", "process", "wrap"],
)
def test_malformed_fields_are_refused(payload: bytes) -> None:
    with pytest.raises(WireError):
        wire.unpack_fields(payload)


def _field(tag: Tag, raw: bytes) -> bytes:
    return wire.FIELD.pack(tag, 0, len(raw)) + raw


def test_an_entry_is_read() -> None:
    raw = wire.ENTRY.pack(5, 9, 0o120777, 1, 2, 4, 6, 0) + b"linktarget"
    assert wire.unpack_fields(_field(Tag.ENTRY, raw)) == [
        (Tag.ENTRY, wire.Entry(b"link", b"target", 5, 9, 0o120777, 1, 2))
    ]


@pytest.mark.parametrize(("name_size", "target_size"), [(4, 7), (0xFFFFFFFF, 0), (11, 0)])
def test_an_entry_whose_texts_do_not_fill_it_is_refused(name_size: int, target_size: int) -> None:
    raw = wire.ENTRY.pack(5, 9, 0, 1, 2, name_size, target_size, 0) + b"linktarget"
    with pytest.raises(WireError):
        wire.unpack_fields(_field(Tag.ENTRY, raw))


def test_a_process_is_read() -> None:
    raw = wire.PROCESS.pack(2, 1, 1000, 7, 4096, 10, ord("S"), 8) + b"sleep\x005\0"
    assert wire.unpack_fields(_field(Tag.PROCESS, raw)) == [
        (Tag.PROCESS, wire.ProcessEntry(2, 1, 1000, 7, 4096, 10, "S", (b"sleep", b"5")))
    ]


def test_a_process_without_a_command_line_has_no_arguments() -> None:
    raw = wire.PROCESS.pack(2, 1, 0, 0, 0, 0, ord("Z"), 0)
    [(_, entry)] = wire.unpack_fields(_field(Tag.PROCESS, raw))
    assert isinstance(entry, wire.ProcessEntry)
    assert entry.arguments == ()


def test_a_process_whose_state_is_no_letter_is_refused() -> None:
    with pytest.raises(WireError):
        wire.unpack_fields(_field(Tag.PROCESS, wire.PROCESS.pack(2, 1, 0, 0, 0, 0, 1 << 24, 0)))


def test_a_message_comes_back_in_order_with_keys_that_repeat() -> None:
    pairs: list[tuple[str, str | int]] = [("op", "create"), ("lower", "a"), ("lower", "b=c")]
    assert wire.unpack_message(wire.pack_message([*pairs, ("uid", 5)])) == [*pairs, ("uid", "5")]


def test_a_message_may_be_a_mapping() -> None:
    assert wire.pack_message({"op": "hello", "seq": 1}) == b"op=hello\0seq=1\0"


@pytest.mark.parametrize("pair", [("", "x"), ("a=b", "x"), ("a", "x\0y"), ("a\0", "x")])
def test_a_pair_that_cannot_be_said_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(WireError):
        wire.pack_message([pair])


def test_a_message_longer_than_the_launcher_takes_is_refused() -> None:
    with pytest.raises(WireError):
        wire.pack_message({"upper": "x" * wire.LAUNCHER_MAX_BYTES})


@pytest.mark.parametrize("packet", [b"a=b", b"ab\0", b"=b\0", b"a=b\0\0"])
def test_a_malformed_message_is_refused(packet: bytes) -> None:
    with pytest.raises(WireError):
        wire.unpack_message(packet)

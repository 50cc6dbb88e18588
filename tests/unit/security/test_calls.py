"""Names of system calls agree with the kernel's headers and with what C watches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandfleet_security.calls import I386, X86_64, call_name, held_back_name

WATCHED = Path(__file__).resolve().parents[3] / "native/bpf/watched.h"


@pytest.mark.parametrize(("header", "table"), [("unistd_64.h", X86_64), ("unistd_32.h", I386)])
def test_numbers_are_the_kernels(header: str, table: dict[int, str]) -> None:
    found = [path for path in Path("/usr/include").glob(f"*/asm/{header}") if "x86" in str(path)]
    if not found:
        pytest.skip("doctor line `compiler`: linux-libc-dev is not installed")
    numbers = re.findall(r"#define __NR_(\w+)\s+(\d+)", found[0].read_text())
    kernel = {int(number): name for name, number in numbers}
    assert {number: kernel.get(number) for number in table} == table


def test_every_watched_call_has_a_name_and_the_other_way_round() -> None:
    watched = {int(n) for n in re.findall(r"^\s*\[(\d+)\] = WATCHED", WATCHED.read_text(), re.M)}
    assert watched == set(X86_64)


def test_a_call_without_a_name_is_named_by_its_number() -> None:
    assert call_name(20, is_i386=True) == "i386-20"
    assert call_name(7) == "x86_64-7"


def test_what_was_held_back_has_a_name() -> None:
    assert [held_back_name(n) for n in (-1, -2, 101)] == ["foreign", "exec", "ptrace"]

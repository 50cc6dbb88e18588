"""Rules: what they fit, and what a mistake in one says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sandfleet_security
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import Fact, Severity
from sandfleet_security.rules import Match, Rule, load_rules, parse_rules

SHIPPED = Path(sandfleet_security.__file__).parent / "rules"
RULES = {rule.id: rule for rule in load_rules(SHIPPED)}
SANDBOX = "sb-n1-01h00000000000000000000000"

GOOD = """
- id: some-rule
  title: Something happened
  severity: high
  score: 1
  window_seconds: 60
  match: {kinds: [mount]}
"""


def fact(kind: str, *arguments: int, **fields: Any) -> Fact:
    values: dict[str, Any] = {"program": "python3", "pid": 9, "uid": 0, "at": 1.0, "result": -1}
    return Fact(sandbox_id=SANDBOX, kind=kind, arguments=list(arguments), **values | fields)


def fired(found: Fact) -> set[str]:
    return {name for name, rule in RULES.items() if rule.fits(found)}


@pytest.mark.parametrize(
    ("found", "rules"),
    [
        (fact("ptrace", 16, 1, notes=["at-init"]), {"trace-agent"}),
        (fact("ptrace", 0x4206, 1, notes=["at-init"], program="strace"), {"trace-agent"}),
        (fact("ptrace", 16, 77), {"trace-process"}),
        (fact("process_vm_readv", 1, notes=["at-init"]), {"read-agent"}),
        (fact("process_vm_writev", 1, notes=["at-init"], result=8), {"read-agent"}),
        (fact("process_vm_writev", 44, result=8), {"write-process-memory"}),
        (fact("pidfd_getfd", 3, 4), {"steal-descriptor"}),
        (fact("mount", 0, 0), {"mount"}),
        (fact("umount2", 0, 0), {"unmount"}),
        (fact("fsopen", 0, 0), {"new-mount-api"}),
        (fact("pivot_root", 0, 0), {"pivot-root"}),
        (fact("open_by_handle_at", 3), {"open-by-handle"}),
        (fact("setns", 3, 0), {"enter-namespace"}),
        (fact("unshare", 0x10000000), {"new-user-namespace"}),
        (fact("clone3", 0x10020000), {"new-user-namespace"}),
        (fact("unshare", 0x40000000), {"new-namespace"}),
        (fact("finit_module", 3), {"load-module"}),
        (fact("bpf", 5), {"ebpf"}),
        (fact("keyctl", 0), {"keyring"}),
        (fact("perf_event_open", 0), {"perf-events-refused"}),
        (fact("perf_event_open", 0, result=3), {"perf-events"}),
        (fact("userfaultfd", 0), {"userfaultfd"}),
        (fact("io_uring_setup", 8, result=3), {"io-uring"}),
        (fact("socket", 40, 1), {"host-socket"}),
        (fact("socket", 0x1_0000_0028, 1), {"host-socket"}),
        (fact("socket", 31, 3), {"rare-socket"}),
        (fact("i386-20", notes=["i386"]), {"calls-of-32-bits"}),
        (fact("x86_64-39", notes=["x32"]), {"calls-of-x32"}),
        (fact("exec", path="/proc/self/fd/3", notes=["unlinked"]), {"program-without-file"}),
        (fact("held-back", notes=["ptrace"], count=5000), {"flood-of-calls"}),
    ],
    ids=lambda value: value.kind if isinstance(value, Fact) else "",
)
def test_a_shipped_rule_fires_alone(found: Fact, rules: set[str]) -> None:
    assert fired(found) == rules


@pytest.mark.parametrize(
    "found",
    [
        fact("exec", path="/usr/bin/python3", result=0),
        fact("ptrace", 0),  # PTRACE_TRACEME
        fact("ptrace", 24, 77),  # PTRACE_SYSCALL
        fact("ptrace", 16, 77, notes=["shares-parent"]),  # LeakSanitizer
        fact("ptrace", 0x4206, 77, program="strace"),
        fact("process_vm_readv", 77, program="strace"),
        fact("held-back", notes=["exec"], count=5000),
        fact("held-back", notes=["ptrace"], count=10),
    ],
    ids=lambda value: value.kind,
)
def test_what_developers_do_fires_nothing(found: Fact) -> None:
    assert fired(found) == set()


def test_a_refused_io_uring_is_low_because_libuv_asks_for_it() -> None:
    (name,) = fired(fact("io_uring_setup", 8))
    assert RULES[name].severity is Severity.LOW


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("severity: high", "severity: awful", "bad.yaml: rule some-rule, field severity: Input"),
        ("score: 1", "score: -1", "field score: Input should be greater than or equal to 0"),
        ("kinds: [mount]", "kinds: [mounts]", "no fact is of the kind 'mounts'"),
        ("kinds: [mount]", "kind: [mount]", "field match.kind: Extra inputs are not permitted"),
        ("{kinds: [mount]}", "{}", "field match: it has no condition and would fit every fact"),
        ("{kinds: [mount]}", "{notes: [odd]}", "no fact has the note 'odd'"),
        ("{kinds: [mount]}", "{arguments: {0: {}}}", "give either `equals` or `bits`"),
        ("{kinds: [mount]}", "{arguments: {9: {bits: 1}}}", "less than or equal to 5"),
        ("id: some-rule", "id: Some Rule", "rule Some Rule, field id: String should match"),
        ("id: some-rule", "name: x", "bad.yaml: rule number 1, field id: Field required"),
        ("match:", "match: [", "bad.yaml is not YAML: while parsing"),
    ],
)
def test_a_mistake_is_named_by_file_rule_and_field(before: str, after: str, said: str) -> None:
    assert before in GOOD
    with pytest.raises(BadRequest) as caught:
        parse_rules("bad.yaml", GOOD.replace(before, after, 1))
    assert said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_is_no_list_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"bad\.yaml: file: Input should be a valid list"):
        parse_rules("bad.yaml", "id: some-rule")


def test_two_rules_with_one_id_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(BadRequest, match=r"b\.yaml: rule some-rule, field id: a\.yaml has it too"):
        load_rules(tmp_path)


def test_a_directory_without_rules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="there are no rules"):
        load_rules(tmp_path)


def test_all_conditions_must_be_met() -> None:
    match = Match(kinds=("exec",), programs=("py*",), paths=("/tmp/*",))
    assert match.fits(fact("exec", path="/tmp/x"))
    assert not match.fits(fact("exec", path="/usr/x"))
    assert not match.fits(fact("exec", path="/tmp/x", program="sh"))
    assert not match.fits(fact("exec"))


def test_an_argument_that_is_not_there_does_not_fit() -> None:
    match = Match.model_validate({"arguments": {3: {"equals": [0]}}})
    assert not match.fits(fact("mount", 0))


def test_an_exception_takes_a_fact_out() -> None:
    text = GOOD + "  except: [{programs: [sudo]}]\n"
    rule: Rule = parse_rules("x.yaml", text)[0]
    assert rule.fits(fact("mount"))
    assert not rule.fits(fact("mount", program="sudo"))

"""Rules of what snapshots leave out: what they match, and how they are written."""

from __future__ import annotations

from importlib.resources import files

import pytest

from sandfleet_common.errors import BadRequest
from sandfleet_node.snapshots.rules import Rules


@pytest.fixture(scope="module")
def rules() -> Rules:
    text = (files("sandfleet_node.snapshots") / "scrub.txt").read_text()
    return Rules.parse(text, "scrub.txt")


@pytest.mark.parametrize(
    "path",
    [
        "root/.ssh/id_ed25519",
        ".ssh/id_rsa",
        "home/user/.netrc",
        "home/user/work/.npmrc",
        "home/user/.pypirc",
        "root/.git-credentials",
        "root/.aws/credentials",
        "root/.docker/config.json",
        "root/.bash_history",
        "root/.cache/pip",
        "run/lock/x",
        "tmp/pip-build-abc",
        "var/tmp/x",
        "var/lib/apt/lists/deb_InRelease",
        "var/cache/apt/archives/gcc.deb",
        "run/sandfleet",
    ],
)
def test_secrets_and_residue_are_left_out(rules: Rules, path: str) -> None:
    assert rules.matches(path.encode())
    assert rules.reason(path.encode())


@pytest.mark.parametrize(
    "path",
    [
        "tmp",
        "run",
        "var/tmp",
        "var/lib/apt/lists",
        "root/.ssh",
        "root/.ssh/known_hosts",
        "root/.ssh/config",
        "work/tmp/x",
        "home/user/netrc",
        "home/user/.netrc.txt",
        "usr/lib/python3/site-packages/pip",
        "root/.aws",
        "etc/ssh/sshd_config",
        "root/.docker/config.json.d/x",
    ],
)
def test_what_only_looks_like_them_stays(rules: Rules, path: str) -> None:
    assert not rules.matches(path.encode())
    assert rules.reason(path.encode()) is None


def test_every_rule_that_comes_with_the_node_has_a_reason(rules: Rules) -> None:
    assert {rule.kind for rule in rules.rules} == {"secret", "residue", "platform"}
    assert all(rule.reason for rule in rules.rules)


def test_without_scrubbing_only_the_platforms_own_is_left_out(rules: Rules) -> None:
    own = rules.of_kinds(["platform"])
    assert own.matches(b"run/sandfleet")
    assert not own.matches(b"root/.netrc")
    assert not own.matches(b"tmp/x")


def test_a_star_ends_at_a_slash_and_two_do_not() -> None:
    rules = Rules.parse("secret a/*.k # x\nsecret b/** # x\nsecret **/c/?d # x", "test")
    assert rules.matches(b"a/one.k")
    assert not rules.matches(b"a/one/two.k")
    assert rules.matches(b"b/one/two")
    assert rules.matches(b"c/1d")
    assert rules.matches(b"deep/down/c/1d")
    assert not rules.matches(b"deep/down/c/12d")
    assert not rules.matches(b"xc/1d")


def test_names_of_any_bytes_are_matched() -> None:
    rules = Rules.parse("secret **/k* # x\nsecret d.t # x", "test")
    assert rules.matches(b"a\nb/k\xff\n")
    assert not rules.matches(b"dxt")


def test_no_rules_match_nothing() -> None:
    assert not Rules(()).matches(b"")
    assert not Rules(()).matches(b"root/.netrc")


@pytest.mark.parametrize(
    "line", ["secret /root/x # why", "secret x", "mystery x # why", "secret x #"]
)
def test_a_line_that_is_no_rule_is_named(line: str) -> None:
    with pytest.raises(BadRequest, match="my-rules, line 2") as caught:
        Rules.parse(f"# a comment\n{line}\n", "my-rules")
    assert caught.value.code == "bad_request"

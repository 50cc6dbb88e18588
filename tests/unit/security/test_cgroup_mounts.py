"""Where cgroup v2 is, from the text of mountinfo."""

from __future__ import annotations

from sandfleet_security.cgroups import find_cgroup2

HYBRID = """\
30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
40 30 0:36 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
"""


def test_on_a_hybrid_host_it_is_beside_the_others() -> None:
    assert find_cgroup2(HYBRID) == "/sys/fs/cgroup/unified"


def test_without_it_there_is_none() -> None:
    assert find_cgroup2(HYBRID.replace("cgroup2", "tmpfs")) is None


def test_a_path_with_a_space_is_unescaped() -> None:
    assert find_cgroup2(r"40 30 0:36 / /a\040b rw - cgroup2 none rw") == "/a b"


def test_lines_that_make_no_sense_are_skipped() -> None:
    assert find_cgroup2("\n - cgroup2\nx\n") is None

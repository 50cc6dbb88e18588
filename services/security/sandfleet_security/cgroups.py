"""Where cgroup v2 is mounted. Pure."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\([0-7]{3})")


def find_cgroup2(mountinfo: str) -> str | None:
    """Return the first mount point of cgroup v2 in the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) >= 5 and after.split()[:1] == ["cgroup2"]:
            return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
    return None

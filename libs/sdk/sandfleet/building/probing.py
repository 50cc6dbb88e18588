"""Says what a tree is: distribution, libc, Python. Runs inside a sandbox, alone: only Python.

python3 -c "$(cat probing.py)" ROOT

Nothing of the tree is run. Prints one line of JSON.
"""

# Paths are plain text, as the kernel is told them: they are many, and hostile.

import json
import os
import re
import sys

MOST_BYTES = 16 * 1024 * 1024
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
PROGRAMS = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/venv/bin")


def content(path: str) -> bytes:
    """Return the beginning of a file; nothing when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with open(fd, "rb") as file:
            return file.read(MOST_BYTES)
    except OSError:
        return b""


def names(folder: str) -> list[str]:
    """Return what is in a directory; nothing when it is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def distribution() -> str:
    """Return its name and release, `debian bookworm`; empty when it does not say."""
    text = (content("/etc/os-release") or content("/usr/lib/os-release")).decode(errors="replace")
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    values = {name: value.strip().strip("\"'") for name, value in pairs.items()}
    release = values.get("VERSION_CODENAME") or values.get("VERSION_ID") or ""
    return f"{values.get('ID', '')} {release}".strip()


def libc() -> str:
    """Return `musl` or `glibc 2.36`; empty when there is none."""
    for folder in LIBRARIES:
        if any(name.startswith("ld-musl-") for name in names(folder)):
            return "musl"
    for folder in LIBRARIES:
        for inner in ("", *(name for name in names(folder) if name.endswith("-linux-gnu"))):
            found = re.search(
                rb"GNU C Library [^\n]{0,100}version ([0-9]+\.[0-9]+)",
                content(os.path.join(folder, inner, "libc.so.6")),
            )
            if found:
                return f"glibc {found[1].decode()}"
    return ""


def python() -> str:
    """Return the version of its Python, `3.11`; empty when there is none."""
    for folder in PROGRAMS:
        found = [re.fullmatch(r"python(3\.[0-9]+)", name) for name in names(folder)]
        versions = [match[1] for match in found if match]
        if versions:
            return max(versions, key=lambda text: int(text.split(".")[1]))
    return ""


def main(root: str) -> int:
    """Print what is known of a tree."""
    os.chroot(root)
    os.chdir("/")
    found = {"distribution": distribution(), "libc": libc(), "python": python()}
    sys.stdout.write(json.dumps({name: value for name, value in found.items() if value}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

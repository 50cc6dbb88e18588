"""A Debian root file system with Python, made by debootstrap and cleaned.

Everything runs in mount and process namespaces of its own, so that a failure or a
kill leaves no mount and no process. The mirror is the one apt on this host uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.errors import NotFound, Unreachable

PACKAGES = ("python3", "procps")
"""Beyond the essential ones; what a base should have, and not what a toolkit can add."""
USER = "user"
USER_ID = 1000
_RELEASE = re.compile(r"'(\S+?)/dists/([^/']+)/InRelease'")
_EMPTIED = (
    "dev", "run", "tmp", "proc", "sys", "var/tmp", "var/log", "var/lib/apt/lists",
    "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig",
    "usr/share/man", "usr/share/info", "usr/share/lintian", "usr/share/locale",
)  # fmt: skip
_REMOVED = (
    "debootstrap", "etc/resolv.conf", "etc/hostname", "etc/machine-id", "var/lib/dbus/machine-id",
    "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Release:
    """Which Debian to build, and from where."""

    suite: str
    number: str
    """As in VERSION_ID, "12"."""
    mirror: str


def parse_os_release(text: str) -> dict[str, str]:
    """Return the variables of /etc/os-release."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("\"'") for name, _, value in pairs}


def parse_mirrors(text: str) -> dict[str, str]:
    """Return the mirror of each suite, from what `apt-get update --print-uris` prints."""
    found: dict[str, str] = {}
    for match in _RELEASE.finditer(text):
        found.setdefault(match.group(2), match.group(1))
    return found


def host_release() -> Release:
    """Return this host's release and the mirror its apt is set up with.

    Raises:
        NotFound: the host is not a Debian, or its apt has no source for its release.
    """
    system = parse_os_release(Path("/etc/os-release").read_text())
    suite = system.get("VERSION_CODENAME", "")
    if system.get("ID") != "debian" or not suite or "apt-get" not in _tools():
        raise NotFound(
            f"a base layer is built on Debian, and this is {system.get('PRETTY_NAME', 'not')}; "
            "copy the `layers` directory of a state directory from a host that has it"
        )
    done = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, check=False
    )
    mirror = parse_mirrors(done.stdout).get(suite)
    if mirror is None:
        raise NotFound(f"apt on this host has no source for {suite}; see /etc/apt/sources.list.d")
    return Release(suite=suite, number=system.get("VERSION_ID", "0"), mirror=mirror)


def _tools() -> set[str]:
    return {n for n in ("apt-get", "debootstrap", "unshare", "mkfs.erofs") if shutil.which(n)}


def bootstrap(
    release: Release, tree: Path, cache: Path, log: Path, progress: Callable[[str], None]
) -> None:
    """Fill `tree` with a minimal system of `release`; packages are kept in `cache`.

    Raises:
        NotFound: a tool is missing.
        Unreachable: debootstrap failed; the message has its last lines.
    """
    if missing := {"debootstrap", "unshare"} - _tools():
        raise NotFound(f"not installed: {', '.join(sorted(missing))}; apt-get install debootstrap")
    cache.mkdir(parents=True, exist_ok=True)
    tree.mkdir(parents=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    argv += [f"--cache-dir={cache}", release.suite, str(tree), release.mirror]
    status = _isolated(argv, log, {**os.environ, **_proxy()}, progress)
    if status != 0:
        inner = tree / "debootstrap" / "debootstrap.log"
        text = (inner if inner.exists() else log).read_text(errors="replace").strip()
        raise Unreachable(
            f"debootstrap of {release.suite} failed with status {status}: "
            + " | ".join(text.splitlines()[-3:])
        )


def _isolated(
    argv: list[str], log: Path, env: Mapping[str, str], progress: Callable[[str], None]
) -> int:
    """Run a program in fresh mount and process namespaces; they end with this process."""
    shield = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    with (
        log.open("w") as kept,
        subprocess.Popen(
            [*shield, *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                kept.write(line)
                kept.flush()
                progress(line.removeprefix("I: ").strip())
        except BaseException:
            child.kill()
            raise
        return child.wait()


def _proxy() -> dict[str, str]:
    """Return apt's proxy as debootstrap's wget wants it; nothing when there is none."""
    shell = ["apt-config", "shell", "PROXY", "Acquire::http::Proxy"]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    match = re.search(r"PROXY='(.+)'", done.stdout)
    return {"http_proxy": match.group(1)} if match else {}


def finish(tree: Path, log: Path) -> str:
    """Add the user, compile Python's library and clean up; returns Python's version.

    Compiled files are marked as never checked against their source: all times in an
    image are 0, so a check by time would fail, and every start compile anew.
    """
    script = (
        f"useradd --create-home --shell /bin/bash --uid {USER_ID} {USER} && "
        # useradd writes today's date, which would make every build another layer
        f"sed -i -E 's/^([^:]*:[^:]*:)[0-9]*:/\\119000:/' /etc/shadow && "
        "python3 -m compileall -q -f --invalidation-mode unchecked-hash "
        "/usr/lib/python3 /usr/lib/python3.[0-9]* && "
        "python3 -c 'import platform; print(\"python\", platform.python_version())'"
    )
    seen: list[str] = []
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    status = _isolated(["chroot", str(tree), "/bin/sh", "-c", script], log, env, seen.append)
    if status != 0:
        raise Unreachable(f"setting up the base failed: {' | '.join(seen[-3:])}")
    clean(tree)
    return seen[-1].removeprefix("python ")


def clean(tree: Path) -> None:
    """Remove what belongs to one machine or one build, and what nobody reads in a sandbox."""
    for name in _EMPTIED:
        folder = tree / name
        if folder.is_dir():
            for entry in folder.iterdir():
                _remove(entry)
    for name in _REMOVED:
        _remove(tree / name)
    for path in (tree / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for path in (tree / "var/lib/dpkg").glob("*-old"):
        path.unlink()
    (tree / "etc/machine-id").touch()
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

"""How this machine's package managers are set up: asked of themselves, never assumed."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import re
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from .orders import Forward, RuleGiven
from .outfit import Found, certificates_of
from .policy import Reach, Rule, normal_host

_ASK_SECONDS = 15.0
_PAGE_SECONDS = 5.0
_PAGE_BYTES_MAX = 4 * 1024 * 1024
_BUNDLE_BYTES_MAX = 4 * 1024 * 1024
_LINKED_HOSTS_MAX = 8
_PAGE_OF = "pip"
"""A package that every index has."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html, text/html"
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"']+)["']""", re.IGNORECASE)
_LOOPBACK = ("localhost", "127.", "[::1]")
_PIP = """
import json
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
settings = Configuration(isolated=False)
settings.load()
merged = {}
for name, value in settings.items():
    merged.update(value if isinstance(value, dict) else {name: value})
print(json.dumps({"default": PyPI.simple_url, "settings": merged}))
"""
_PIP_SECTIONS = ("global", "install", "download", ":env:")
"""Later ones win."""


class _Unknown(Exception):
    """Something could not be found out; its text is a sentence."""


async def discover() -> Found:
    """Ask apt, pip and npm where they get packages and whom they trust."""
    apt, pip, npm = await asyncio.gather(_apt(), _pip(), _npm())
    problems = [str(part) for part in (apt, pip, npm) if isinstance(part, _Unknown)]
    sites = [] if isinstance(apt, _Unknown) else apt[0]
    pip_told = {} if isinstance(pip, _Unknown) else pip
    npm_told = {} if isinstance(npm, _Unknown) else npm
    indexes = _indexes(pip_told)
    bundle_paths = [str(pip_told.get("cert") or ""), str(npm_told.get("cafile") or "")]
    certificates = await asyncio.to_thread(_certificates, bundle_paths)
    linked, unread = await _linked(indexes, certificates)
    registry = str(npm_told.get("registry") or "")
    configured = str(pip_told.get("index-url") or "")
    return Found(
        rules=tuple(_rules([*sites, *indexes, registry], linked)),
        forward=_forward("" if isinstance(apt, _Unknown) else apt[1]),
        pip_index=configured if _is_remote(configured) else "",
        pip_extra_indexes=tuple(_urls(pip_told.get("extra-index-url"))),
        npm_registry=registry if _is_remote(registry) else "",
        certificates=certificates,
        problems=(*problems, *unread),
    )


# ------------------------------------------------------------------- managers


async def _apt() -> tuple[list[str], str] | _Unknown:
    """Return the URLs of apt's sources, and the proxy it goes through."""
    if shutil.which("apt-get") is None:
        return [], ""
    try:
        told = await _ask("apt-get", "indextargets", "--format", "$(REPO_URI)")
        shell = await _ask("apt-config", "shell", "PROXY", "Acquire::http::Proxy")
    except _Unknown as problem:
        return problem
    proxy = re.search(r"PROXY='(http://[^']+)'", shell)
    return list(dict.fromkeys(told.split())), proxy.group(1) if proxy else ""


async def _pip() -> dict[str, Any] | _Unknown:
    """Return pip's settings, its default index as `default`; of the first Python with pip."""
    problem = _Unknown("no Python with pip was found")
    for python in dict.fromkeys((sys.executable, shutil.which("python3") or sys.executable)):
        try:
            told = json.loads(await _ask(python, "-c", _PIP))
        except (_Unknown, ValueError) as found:
            problem = _Unknown(f"pip's settings are unknown: {found}")
            continue
        return {"default": told["default"], **pip_settings(told["settings"])}
    return problem


def pip_settings(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, out of `section.name`; what is closer to a command wins."""
    found: dict[str, Any] = {}
    for section in _PIP_SECTIONS:
        for name, value in told.items():
            if name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = value
    return found


async def _npm() -> dict[str, Any] | _Unknown:
    """Return npm's settings; none where it is not installed."""
    if shutil.which("npm") is None:
        return {}
    try:
        told = json.loads(await _ask("npm", "config", "ls", "--json"))
    except (_Unknown, ValueError) as problem:
        return _Unknown(f"npm's settings are unknown: {problem}")
    return told if isinstance(told, dict) else {}  # pyright: ignore[reportUnknownVariableType]


async def _ask(*argv: str) -> str:
    """Return what a program prints.

    Raises:
        _Unknown: it failed, or did not end.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd="/",
        )
    except OSError as problem:
        raise _Unknown(f"{argv[0]}: {problem}") from None
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            told, complaint = await process.communicate()
    except TimeoutError:
        raise _Unknown(f"{argv[0]} did not end") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode != 0:
        said = complaint.decode(errors="replace").strip().splitlines()
        raise _Unknown(f"{argv[0]} failed: {said[-1] if said else process.returncode}")
    return told.decode(errors="replace")


# ----------------------------------------------------------------------- urls


def _urls(value: Any) -> list[str]:
    """Return the URLs of a setting that pip takes several in, those of the network only."""
    words = value.split() if isinstance(value, str) else []
    return [word for word in words if _is_remote(word)]


def _is_remote(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return False
    return not parts.netloc.rpartition("@")[2].startswith(_LOOPBACK)


def _indexes(told: Mapping[str, Any]) -> list[str]:
    first = str(told.get("index-url") or told.get("default") or "")
    return [url for url in (first, *_urls(told.get("extra-index-url"))) if _is_remote(url)]


def _place(url: str) -> tuple[str, int] | None:
    """Return the host and port of a URL."""
    try:
        parts = urlsplit(url)
        host, port = normal_host(parts.hostname or ""), parts.port
    except ValueError:
        return None
    if host is None or parts.scheme not in ("http", "https"):
        return None
    return host, port or (443 if parts.scheme == "https" else 80)


def _rules(named: Iterable[str], linked: Iterable[str]) -> list[RuleGiven]:
    """Return a rule for each host: of what the machine is set up with, and what that links to."""
    found: dict[tuple[str, int], RuleGiven] = {}
    for urls, reach in ((named, Reach.SITE), (linked, Reach.PUBLIC)):
        for url in urls:
            place = _place(url) if _is_remote(url) else None
            if place is not None and place not in found:
                found[place] = RuleGiven.of(Rule(*place, reach))
    return list(found.values())


def _forward(apt_proxy: str) -> Forward:
    """Return the proxy that this machine needs, as its environment or its apt says."""
    told = urllib.request.getproxies()
    direct = tuple(name.strip() for name in told.get("no", "").split(",") if name.strip())
    return Forward(http=told.get("http") or apt_proxy, https=told.get("https", ""), direct=direct)


# ---------------------------------------------------------------- index pages


async def _linked(indexes: Iterable[str], certificates: bytes) -> tuple[list[str], list[str]]:
    """Return where the pages of indexes link to, and sentences on those that cannot be read."""
    found: list[str] = []
    problems: list[str] = []
    for index in indexes:
        try:
            page = f"{index.rstrip('/')}/{_PAGE_OF}/"
            found += hosts_linked(await asyncio.to_thread(_read_page, page, certificates), page)
        except (OSError, ValueError, urllib.error.URLError) as problem:
            problems.append(f"a package index cannot be read: {problem}")
    return found, problems


def _read_page(url: str, certificates: bytes) -> str:
    context = ssl.create_default_context()
    if certificates:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT})
    with urllib.request.urlopen(request, timeout=_PAGE_SECONDS, context=context) as answer:
        return answer.read(_PAGE_BYTES_MAX).decode("utf-8", "replace")


def hosts_linked(page: str, url: str) -> list[str]:
    """Return one URL for each host that an index page, JSON or HTML, links files at."""
    links: list[str]
    try:
        links = [str(file["url"]) for file in json.loads(page)["files"]]
    except (ValueError, KeyError, TypeError):
        links = [html.unescape(link) for link in _LINK.findall(page)]
    found: dict[tuple[str, int], str] = {}
    for link in links:
        with contextlib.suppress(ValueError):
            whole = urljoin(url, link)
            place = _place(whole)
            if place is not None and len(found) < _LINKED_HOSTS_MAX:
                found.setdefault(place, whole)
    return list(found.values())


# --------------------------------------------------------------- certificates


def _certificates(paths: Iterable[str]) -> bytes:
    """Return the certificates of the bundles that package managers and OpenSSL use here."""
    places = [*paths, ssl.get_default_verify_paths().cafile or ""]
    texts: dict[Path, bytes] = {}
    for place in places:
        path = Path(place).resolve() if place else None
        if path is None or path in texts or not path.is_file():
            continue
        with contextlib.suppress(OSError), path.open("rb") as file:
            texts[path] = file.read(_BUNDLE_BYTES_MAX)
    return certificates_of(texts.values())

"""Which store there is: by the settings of a node, or by a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sandfleet_common.errors import BadRequest

from .directory import DirectoryStore
from .store import Store


def open_store(url: str) -> Store:
    """Return the store at a URL; nothing is read yet.

    Args:
        url: `file:///path`, or a path.

    Raises:
        BadRequest: there are no stores of this kind.
    """
    parts = urlsplit(url)
    if parts.scheme in ("", "file") and not parts.netloc and parts.path.startswith("/"):
        return DirectoryStore(Path(unquote(parts.path)))
    raise BadRequest(f"{url[:200]!r} is not the URL of a store: use file:///path")

"""Which store there is: by the settings of a node, or by a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from sandfleet_common.errors import BadRequest

from .directory import DirectoryStore
from .objects import open_objects
from .store import Store


def open_store(url: str, endpoint: str = "", timeout_seconds: float = 30) -> Store:
    """Return the store at a URL; nothing is read yet.

    Args:
        url: `file:///path`, or `s3://bucket/prefix`.
        endpoint: of an object store other than Amazon's, `http://host:port`.
        timeout_seconds: one request to an object store may take so long.

    Raises:
        BadRequest: there are no stores of this kind.
    """
    parts = urlsplit(url)
    if parts.scheme in ("s3", "memory"):
        return open_objects(url, endpoint, timeout_seconds)
    if parts.scheme in ("", "file") and not parts.netloc and parts.path.startswith("/"):
        return DirectoryStore(Path(unquote(parts.path)))
    raise BadRequest(
        f"{url[:200]!r} is not the URL of a store: use file:///path or s3://bucket/prefix"
    )

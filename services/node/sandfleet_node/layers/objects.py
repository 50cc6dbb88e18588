"""A store in an object store: S3 and what speaks like it, through obstore.

    layers/<hex>/index  meta  data/00000 ...  manifest.json     a layer; the manifest comes last
    environments/<name>/<version>.json ...                      records, as in a directory

The data of a layer lies in parts of 32 MiB. An upload that was cut off goes on with the parts
that are missing. One that is there is read and compared with the index before it is trusted: the
uploader's files, perhaps the only good copy, go when it is done. Who reads verifies every chunk
against the index, and so against the digest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import MemoryStore, S3Store
from pydantic import ValidationError

from sandfleet_common.errors import BadRequest, Broken, Denied, NotFound, Unreachable
from sandfleet_common.messages import Layer, LayerKind

from .index import Index, index_of, parse
from .leases import Leases
from .store import LayerFiles, Notes, Part, Progress, StoredLayer, check_kind, check_name, hex_of

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

PART_BYTES = 32 * 1024**2
_UPLOADS = 4
"""Parts on their way at once."""
_CONNECT_SECONDS = 3
_TRIES = 4
ResultT = TypeVar("ResultT")


def open_objects(url: str, endpoint: str = "", timeout_seconds: float = 30) -> ObjectStore:
    """Return the store at `s3://bucket/prefix`; nothing is asked yet.

    Credentials and region are those of the environment (AWS_ACCESS_KEY_ID and so on).

    Args:
        url: `s3://bucket/prefix`, or `memory://` for a store that ends with the process.
        endpoint: of a server other than Amazon's, `http://host:port`.
        timeout_seconds: one request may take so long, and all tries of it together as well.

    Raises:
        BadRequest: the URL is none of a store.
    """
    parts = urlsplit(url)
    if parts.scheme == "memory":
        return ObjectStore(MemoryStore(), timeout_seconds)
    if parts.scheme != "s3" or not parts.netloc:
        raise BadRequest(f"{url[:200]!r} is not the URL of a bucket: use s3://bucket/prefix")
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "timeout": timedelta(seconds=timeout_seconds),
        "allow_http": endpoint.startswith("http://"),
    }
    retry: RetryConfig = {
        "max_retries": _TRIES - 1,
        "retry_timeout": timedelta(seconds=timeout_seconds),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "base": 2},
    }
    more: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    objects = S3Store(
        parts.netloc,
        prefix=parts.path.strip("/") or None,
        client_options=client,
        retry_config=retry,
        virtual_hosted_style_request=False,
        **more,
    )
    return ObjectStore(objects, timeout_seconds)


class ObjectStore:
    """Layers and records as objects. All methods but `files` talk to the server."""

    def __init__(self, objects: S3Store | MemoryStore, timeout_seconds: float) -> None:
        self._objects = objects
        self._timeout_seconds = timeout_seconds

    async def _asked(self, answer: Awaitable[ResultT], what: str) -> ResultT:
        """Wait for an answer, bounded, and say in our words what went wrong."""
        try:
            async with asyncio.timeout(self._timeout_seconds + _CONNECT_SECONDS):
                return await answer
        except FileNotFoundError:
            raise NotFound(f"{what} is not in the store") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise Denied("the store refuses this node's credentials") from None
        except TimeoutError:
            raise Unreachable("the store does not answer") from None
        except (AlreadyExistsError, NotSupportedError):
            raise
        except BaseError as problem:
            first = (str(problem).splitlines() or ["?"])[0][:200]
            raise Unreachable(f"the store does not answer: {first}") from None

    # --------------------------------------------------------------- records

    async def record(self, kind: str, name: str) -> bytes | None:
        """Return a record; None when there is none."""
        try:
            return await self._get(f"{check_kind(kind)}/{check_name(name)}.json", name)
        except NotFound:
            return None

    async def put_record(self, kind: str, name: str, data: bytes, *, new: bool = False) -> bool:
        """Write a record whole; with `new` only if there is none, else return False.

        A server that cannot write conditionally is asked before; of two who write the same
        new record at the same moment both may then be told that it is theirs.
        """
        path = f"{check_kind(kind)}/{check_name(name)}.json"
        if not new:
            await self._put(path, data)
            return True
        try:
            await self._asked(self._objects.put_async(path, data, mode="create"), name)
        except AlreadyExistsError:
            return False
        except NotSupportedError:
            if await self._size(path) is not None:
                return False
            await self._put(path, data)
        return True

    async def remove_record(self, kind: str, name: str) -> None:
        """Remove a record; none is no error."""
        await self._remove([f"{check_kind(kind)}/{check_name(name)}.json"])

    async def names(self, kind: str, prefix: str = "") -> list[str]:
        """Return the names of all records of a kind that begin with `prefix`, sorted."""
        folder, slash, _ = prefix.rpartition("/")
        within = f"{check_kind(kind)}/{folder}{slash}"
        found = [path.removeprefix(f"{kind}/") for path, _, _ in await self._listed(within)]
        names = (name.removesuffix(".json") for name in found if name.endswith(".json"))
        return sorted(name for name in names if name.startswith(prefix))

    # ---------------------------------------------------------------- layers

    def files(self, digest: str) -> LayerFiles | None:
        """Return None: nothing here can be mounted where it lies."""
        hex_of(digest)
        return None

    async def layer(self, digest: str) -> Layer:
        """Return what is known of a layer.

        Raises:
            NotFound: it is not in the store.
            Broken: its manifest is damaged.
        """
        content = await self._get(f"layers/{hex_of(digest)}/manifest.json", f"layer {digest}")
        try:
            return Layer.model_validate_json(content)
        except ValidationError:
            raise Broken(f"the manifest of layer {digest} is damaged") from None

    async def index(self, digest: str) -> bytes:
        """Return a layer's index, which fits its digest.

        Raises:
            NotFound: it is not in the store.
            Broken: it is damaged.
        """
        content = await self._get(f"layers/{hex_of(digest)}/index", f"layer {digest}")
        parse(content, digest)
        return content

    async def read(self, digest: str, part: Part, offset: int, length: int) -> bytes:
        """Return bytes of a layer's meta or data, not verified, fewer at its end.

        Raises:
            NotFound: they are not in the store.
        """
        folder = f"layers/{hex_of(digest)}"
        if part == "meta":
            return await self._range(f"{folder}/meta", offset, length, digest)
        pieces: list[bytes] = []
        while length > 0:
            number, within = divmod(offset, PART_BYTES)
            size = min(length, PART_BYTES - within)
            path = f"{folder}/data/{number:05}"
            pieces.append(await self._range(path, within, size, digest))
            if len(pieces[-1]) < size:
                break
            offset, length = offset + size, length - size
        return b"".join(pieces)

    async def layers(self) -> list[StoredLayer]:
        """Return all layers that are there whole."""
        sizes: dict[str, int] = {}
        times: dict[str, float] = {}
        for path, size, at in await self._listed("layers/"):
            _, name, *rest = path.split("/")
            sizes[name] = sizes.get(name, 0) + size
            if rest == ["manifest.json"]:
                times[name] = at
        return [StoredLayer(f"sha256:{name}", sizes[name], at) for name, at in times.items()]

    async def sweep(self, older_than_seconds: float) -> None:
        """Remove what uploads that were given up have left."""
        newest: dict[str, float] = {}
        whole: set[str] = set()
        for path, _, at in await self._listed("layers/"):
            _, name, *rest = path.split("/")
            newest[name] = max(at, newest.get(name, 0.0))
            if rest == ["manifest.json"]:
                whole.add(name)
        before = time.time() - older_than_seconds
        left = {
            f"sha256:{name}" for name, at in newest.items() if name not in whole and at < before
        }
        if not left:
            return
        leases = Leases(self)
        async with leases.condemned(left):  # a late try of such an upload may go on just now
            for digest in left - await leases.live(time.time()):
                await self.remove_layer(digest)

    async def remove_layer(self, digest: str) -> None:
        """Remove a layer: its manifest first, so that nobody takes what is left for a layer."""
        folder = f"layers/{hex_of(digest)}"
        await self._remove([f"{folder}/manifest.json"])
        await self._remove([path for path, _, _ in await self._listed(f"{folder}/")])

    async def add(
        self,
        folder: Path,
        kind: LayerKind,
        *,
        created_at: float,
        description: str = "",
        notes: Notes | None = None,
        progress: Progress | None = None,
    ) -> Layer:
        """Upload a folder with `meta` and `data`; the two files are removed when it is done.

        What an earlier try has sent, and is there unharmed, is not sent again. The same bytes,
        added twice or by two at once, are one layer.

        Raises:
            Unreachable: the store does not answer; a later try goes on from here.
            OSError: the files cannot be read.
        """
        index = await asyncio.to_thread(index_of, folder / "meta", folder / "data")
        layer = Layer(
            digest=index.digest,
            kind=kind,
            size_bytes=index.size_bytes,
            meta_bytes=index.meta_bytes,
            created_at=created_at,
            description=description,
            notes=notes or {},
        )
        manifest = f"layers/{hex_of(layer.digest)}/manifest.json"
        # Nobody may remove what an earlier try has sent while the rest is on its way.
        async with Leases(self).held([layer.digest]):
            if await self._size(manifest) is None:
                await self._send(manifest.rpartition("/")[0], folder, index, progress)
            else:
                layer = await self.layer(layer.digest)
            # Written anew also when it is there: for a collection the layer is young again.
            await self._put(manifest, layer.model_dump_json(indent=2).encode())
        for name in ("meta", "data"):
            (folder / name).unlink(missing_ok=True)
        return await self.layer(layer.digest)

    async def _send(
        self, place: str, folder: Path, index: Index, progress: Progress | None
    ) -> None:
        """Upload everything of a layer but its manifest."""
        present = {path: size for path, size, _ in await self._listed(f"{place}/")}
        gate, done = asyncio.Semaphore(_UPLOADS), 0

        async def send(path: str, file: Path, offset: int, size: int) -> None:
            nonlocal done
            async with gate:
                if present.get(path) != size or not await self._is_whole(path, index, offset):
                    await self._put(path, await asyncio.to_thread(_piece, file, offset, size))
            done += size
            if progress is not None:
                progress(done, index.size_bytes)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(send(f"{place}/meta", folder / "meta", 0, index.meta_bytes))
                for number, offset in enumerate(range(0, index.data_bytes, PART_BYTES)):
                    size = min(PART_BYTES, index.data_bytes - offset)
                    path = f"{place}/data/{number:05}"
                    group.create_task(send(path, folder / "data", offset, size))
        except ExceptionGroup as problems:
            raise problems.exceptions[0] from None
        await self._put(f"{place}/index", index.encode())

    async def _is_whole(self, path: str, index: Index, offset: int) -> bool:
        """Return whether an object is what the index says; its size is known to be right."""
        try:
            content = await self._get(path, path)
        except NotFound:
            return False  # removed since it was listed
        if path.endswith("/meta"):
            return await asyncio.to_thread(index.is_meta, content)
        return await asyncio.to_thread(_are_chunks, index, offset, content)

    # --------------------------------------------------------------- objects

    async def _get(self, path: str, what: str) -> bytes:
        async def get() -> bytes:
            answer = await self._objects.get_async(path)
            return bytes(await answer.bytes_async())

        return await self._asked(get(), what)

    async def _range(self, path: str, start: int, length: int, digest: str) -> bytes:
        got = self._objects.get_range_async(path, start=start, length=length)
        return bytes(await self._asked(got, f"part of layer {digest}"))

    async def _put(self, path: str, data: bytes) -> None:
        await self._asked(self._objects.put_async(path, data, use_multipart=False), path)

    async def _size(self, path: str) -> int | None:
        try:
            return (await self._asked(self._objects.head_async(path), path))["size"]
        except NotFound:
            return None

    async def _listed(self, within: str) -> list[tuple[str, int, float]]:
        """Return path, size and time of every object below a folder."""

        async def collect() -> list[tuple[str, int, float]]:
            found: list[tuple[str, int, float]] = []
            async for page in self._objects.list_async(within.rstrip("/")):
                found += [(o["path"], o["size"], o["last_modified"].timestamp()) for o in page]
            return found

        return [
            entry for entry in await self._asked(collect(), within) if entry[0].startswith(within)
        ]

    async def _remove(self, paths: list[str]) -> None:
        if not paths:
            return
        try:
            await self._asked(self._objects.delete_async(paths), paths[0])
        except NotFound:
            return


def _piece(file: Path, offset: int, size: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(offset)
        return opened.read(size)


def _are_chunks(index: Index, offset: int, content: bytes) -> bool:
    """Return whether bytes from an offset in a layer's data, a multiple of chunks, are its own."""
    view, first = memoryview(content), offset // index.chunk_bytes
    starts = range(0, len(view), index.chunk_bytes)
    return all(
        index.is_chunk(first + number, view[at : at + index.chunk_bytes])
        for number, at in enumerate(starts)
    )

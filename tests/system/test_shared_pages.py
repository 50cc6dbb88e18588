"""Sandboxes of different environments on one node have one page cache for the layers they share."""

from __future__ import annotations

from uuid import uuid4

import pytest

from sandfleet import AsyncClient, AsyncSandbox, SandboxSpec

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]

_PAGES = """
import ctypes, mmap, os, sys

path, wish = sys.argv[1:]
fd = os.open(path, os.O_RDONLY)
size = os.fstat(fd).st_size
if wish == "drop":
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
elif wish == "read":
    while os.read(fd, 1 << 20):
        pass
elif wish == "count":
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    pages = -(-size // mmap.PAGESIZE)
    present = (ctypes.c_ubyte * pages)()
    assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), present) == 0
    print(sum(page & 1 for page in present), pages)
"""
_LARGEST = """
import os

found = []
for name in os.scandir("/usr/bin"):
    if name.is_file(follow_symlinks=False) and "python" not in name.name:
        found.append((name.stat().st_size, name.path))
print(max(found)[1])
"""


async def python(sandbox: AsyncSandbox, *words: str) -> str:
    return (await sandbox.run(["python3", "-I", "-S", "-c", *words], check=True)).text.strip()


async def test_what_one_environments_sandbox_reads_is_in_memory_for_anothers(
    client: AsyncClient,
) -> None:
    name = f"test-{uuid4().hex[:12]}"
    async with await client.create() as first:
        path = await python(first, _LARGEST)
        await first.run("mkdir /opt/toolkit; echo tool > /opt/toolkit/file", check=True)
        snapshot = await first.snapshot()
        await client.environments.publish(name, snapshot.info_now.layers)
        await snapshot.remove()
        async with await client.create(SandboxSpec(environment=name)) as second:
            assert second.info_now.node == first.info_now.node
            assert (await second.run("cat /opt/toolkit/file")).text == "tool\n"

            await python(first, _PAGES, path, "drop")
            here, pages = map(int, (await python(second, _PAGES, path, "count")).split())
            assert pages > 100
            assert here < pages / 10, "nobody else uses it: it is out of memory"
            await python(first, _PAGES, path, "read")
            here, pages = map(int, (await python(second, _PAGES, path, "count")).split())
            assert here == pages, "the second sandbox has not read a byte of it"

            # Its own copy is another matter: what is written is shared with nobody.
            await second.run(["sh", "-c", f"cp {path} /root/copy; sync"], check=True)
            await python(second, _PAGES, "/root/copy", "drop")
            await python(first, _PAGES, path, "read")
            here, pages = map(int, (await python(second, _PAGES, "/root/copy", "count")).split())
            assert here < pages
    await client.environments.remove(name)

"""Folders of records go with the last record in them, whoever writes meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandfleet_node.layers.directory import DirectoryStore


async def test_a_name_leaves_no_folder_behind(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for version in ("1", "2"):
        assert await store.put_record("environments", f"name/{version}", b"{}", new=True)
    folder = tmp_path / "environments" / "name"
    await store.remove_record("environments", "name/1")
    assert folder.exists()
    await store.remove_record("environments", "name/2")
    await store.remove_record("environments", "name/2")
    assert not folder.exists()
    assert await store.names("environments") == []


async def test_who_writes_while_others_remove_finds_what_was_written(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)

    async def come_and_go(number: int) -> None:
        for _ in range(50):
            name = f"name/{number}"
            assert await store.put_record("environments", name, b"{}", new=True)
            assert await store.record("environments", name) == b"{}"
            await store.remove_record("environments", name)

    await asyncio.gather(*(come_and_go(number) for number in range(4)))
    assert not (tmp_path / "environments" / "name").exists()

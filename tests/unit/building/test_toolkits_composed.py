"""Toolkits: which layers a list of packages becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandfleet.building.keys import group_key
from sandfleet.building.stages import Command, Files, Ground, Group
from sandfleet.building.toolkits import Addition, Kit, addition_group, package_groups
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import LayerKind

GROUND = Ground(("sha256:" + "0" * 64,), {"PATH": "/opt/bin:/bin"})


def kit_of(kind: str, name: str) -> Kit:
    packages: dict[str, Any] = {kind: [name]}
    return Kit(**packages)


def script(group: Group) -> str:
    (command,) = group.actions
    assert isinstance(command, Command)
    assert command.user is None
    assert ("PATH", "/opt/bin:/bin") in command.env
    return command.argv[-1]


def test_each_kind_is_a_layer_and_the_order_is_always_the_same() -> None:
    groups = package_groups(Kit(pip=["b", "a==1"], npm=["@x/y@2"], apt=["gcc"]), GROUND)
    assert [group.title.split()[0] for group in groups] == ["apt", "npm", "npm", "pip", "pip"]
    assert {group.kind for group in groups} == {LayerKind.TOOLKIT}
    assert "-- gcc\n" in script(groups[0])
    assert "npm install --global" in script(groups[2])
    assert script(groups[4]).endswith("-- a==1 b")


def test_the_same_packages_have_the_same_key_in_whatever_order() -> None:
    def key(*names: str) -> str:
        return group_key(GROUND.layers, package_groups(Kit(apt=names), GROUND)[-1], {})

    assert key("a", "b") == key("b", "a", "b")
    assert key("a") != key("b")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("apt", "-o=Dir=/x"),
        ("apt", "gcc;rm"),
        ("apt", "GCC"),
        ("pip", "--index-url=x"),
        ("pip", "a $(b)"),
        ("pip", "git+https://x"),
        ("npm", "../x"),
        ("npm", "a`b`"),
        ("npm", "x" * 201),
    ],
)
def test_what_is_no_package_is_refused(kind: str, name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        package_groups(kit_of(kind, name), GROUND)
    assert f"--{kind}" in caught.value.message


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("apt", "libc6:amd64=2.36-9+deb12u4"),
        ("apt", "g++"),
        ("pip", "numpy==2.1.0"),
        ("pip", "uvicorn[standard]>=0.30"),
        ("npm", "@types/node@^20.1.0"),
    ],
)
def test_versions_and_extras_are_part_of_a_name(kind: str, name: str) -> None:
    assert name in script(package_groups(kit_of(kind, name), GROUND)[-1])


def test_a_directory_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*")
    (tmp_path / "file").write_text("x")
    group, context = addition_group(Addition(tmp_path, "/work/"))
    (files,) = group.actions
    assert isinstance(files, Files)
    assert (files.target, files.unpacks) == ("/work/", False)
    assert "file" in context.entries()


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    group, context = addition_group(Addition(tmp_path / "a.tar.gz", "/", is_archive=True))
    (files,) = group.actions
    assert isinstance(files, Files)
    assert (files.target, files.unpacks, files.sources) == ("/", True, ("a.tar.gz",))
    assert [entry.path for entry in context.match("a.tar.gz")] == ["a.tar.gz"]

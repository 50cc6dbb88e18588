"""What `python -m sandfleet_common.access` writes."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from deployment import validate_manifest

from sandfleet_common import access
from sandfleet_common.subjects import ACCESS
from sandfleet_gateway.keys import find_key, parse_keys


def test_each_user_gets_its_own_directory_with_its_own_password(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    passwords = {name: (tmp_path / name / "password").read_text() for name in ACCESS}
    assert len(set(passwords.values())) == len(ACCESS)
    config = json.loads((tmp_path / "nats" / "nats.conf").read_text())
    users = {u["user"]: u["password"] + "\n" for u in config["authorization"]["users"]}
    assert users == passwords


def test_running_it_again_keeps_the_passwords(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    before = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    access.main(["--out", str(tmp_path)])
    assert {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_files_are_for_their_owner_only_unless_shared(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path / "own")])
    access.main(["--out", str(tmp_path / "shared"), "--shared"])
    own = {p.stat().st_mode & 0o777 for p in (tmp_path / "own").rglob("*") if p.is_file()}
    shared = {p.stat().st_mode & 0o777 for p in (tmp_path / "shared").rglob("*") if p.is_file()}
    assert (own, shared) == ({0o400}, {0o444})


def test_only_services_with_live_state_are_told_where_redis_is(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path), "--redis", "cache:7000"])
    told = set[str]()
    for name in ACCESS:
        section = tomllib.loads((tmp_path / name / "settings.toml").read_text())[name]
        if "redis_url" in section:
            assert section["redis_url"].endswith("@cache:7000/0")
            told.add(name)
    assert told == set(access.REDIS_USERS)


def test_the_redis_file_holds_no_password(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    text = (tmp_path / "redis" / "users.acl").read_text()
    for name in access.REDIS_USERS:
        assert (tmp_path / name / "password").read_text().strip() not in text


def test_kubernetes_secrets_are_valid_and_hold_the_same_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    access.main(["--secrets", "sandfleet"])
    found = json.loads(capsys.readouterr().out)
    access.main(["--out", str(tmp_path)])
    written = {
        f"sandfleet-{place.name}": {file.name for file in place.iterdir()}
        for place in tmp_path.iterdir()
    }
    assert {s["metadata"]["name"]: set(s["stringData"]) for s in found["items"]} == written
    for secret in found["items"]:
        validate_manifest(secret)


def test_the_gateway_knows_the_clients_key_by_its_hash_only(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    key = (tmp_path / "client" / "password").read_text().strip()
    keys, wrong = parse_keys((tmp_path / "gateway" / "api-keys").read_text())
    assert (find_key(keys, key), wrong) == ("client", [])
    assert not any(key in file.read_text() for file in (tmp_path / "gateway").iterdir())

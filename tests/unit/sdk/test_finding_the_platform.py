"""Where the platform is: what was given, then the environment, then this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandfleet import BadRequest, NotFound
from sandfleet.endpoints import GatewayPlace, NatsPlace, find, local_gateway


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "key").write_text("key\n")
    (tmp_path / "run" / "endpoints.json").write_text(
        json.dumps(
            {
                "nats": "nats://127.0.0.1:1234",
                "redis": "redis://127.0.0.1:1235/0",
                "gateway": "http://127.0.0.1:1236",
                "user": "trainer",
                "password_file": str(tmp_path / "password"),
                "api_key_file": str(tmp_path / "key"),
                "metrics": {},
                "pids": {},
            }
        )
    )
    return tmp_path


def test_what_the_caller_gives_wins(state: Path) -> None:
    env = {"SANDFLEET_URL": "http://other", "SANDFLEET_STATE_DIR": str(state)}
    found = find(nats="nats://me:word@host:5", environment=env)
    assert found == NatsPlace(("nats://host:5",), "me", "word")


def test_the_environment_names_a_gateway(state: Path) -> None:
    env = {"SANDFLEET_URL": "https://fleet/", "SANDFLEET_API_KEY": "k"}
    assert find(environment=env) == GatewayPlace("https://fleet", "k")


def test_nats_in_the_environment_comes_before_a_gateway() -> None:
    env = {"SANDFLEET_URL": "https://fleet", "SANDFLEET_NATS": "nats://u:p%40q@a:1,b:2"}
    assert find(environment=env) == NatsPlace(("nats://a:1", "nats://b:2"), "u", "p@q")


def test_else_it_is_the_one_on_this_machine(state: Path) -> None:
    found = find(environment={"SANDFLEET_STATE_DIR": str(state)})
    assert found == NatsPlace(("nats://127.0.0.1:1234",), "trainer", "secret")
    assert local_gateway(state) == GatewayPlace("http://127.0.0.1:1236", "key")


def test_a_state_directory_that_was_given_comes_before_the_environment(state: Path) -> None:
    found = find(state=state, environment={"SANDFLEET_NATS": "nats://elsewhere:1"})
    assert isinstance(found, NatsPlace)
    assert found.servers == ("nats://127.0.0.1:1234",)


def test_none_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="sandfleet up"):
        find(environment={"SANDFLEET_STATE_DIR": str(tmp_path)})


@pytest.mark.parametrize("wrong", ["", "http://x", "nats://", ","])
def test_a_malformed_address_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest):
        find(nats=wrong, environment={})


def test_two_addresses_are_one_too_many() -> None:
    with pytest.raises(BadRequest):
        find(nats="nats://a:1", url="http://b", environment={})


def test_a_password_does_not_show_in_what_is_printed() -> None:
    assert "word" not in repr(find(nats="nats://me:word@host:5", environment={}))

"""The servers' configuration, from the table of subjects."""

from __future__ import annotations

import json
from pathlib import Path

from sandfleet_common.access import redis_users, server_config
from sandfleet_common.subjects import ACCESS

PASSWORDS = {name: f"secret-of-{name}" for name in ACCESS}


def test_every_user_has_a_password_and_exactly_its_permissions() -> None:
    text = server_config(PASSWORDS, host="127.0.0.1", port=4222, store=Path("/x"))
    users = json.loads(text)["authorization"]["users"]
    assert [user["user"] for user in users] == list(ACCESS)
    for user in users:
        access = ACCESS[user["user"]]
        assert user["password"] == PASSWORDS[user["user"]]
        assert user["permissions"]["publish"] == {"allow": list(access.publish)}
        own = f"_INBOX.{user['user']}.>"
        assert user["permissions"]["subscribe"] == {"allow": [own, *access.subscribe]}
        assert ("allow_responses" in user["permissions"]) == access.answers


def test_the_monitoring_port_is_closed_unless_asked_for() -> None:
    text = server_config(PASSWORDS, host="127.0.0.1", port=1, store=Path("/x"))
    assert "http" not in json.loads(text)
    text = server_config(PASSWORDS, host="h", port=1, store=Path("/x"), monitor_port=8222)
    assert json.loads(text)["http"] == "h:8222"


def test_redis_learns_no_password_and_nobody_is_the_default_user() -> None:
    text = redis_users(PASSWORDS)
    assert not any(password in text for password in PASSWORDS.values())
    assert "user default off resetpass ~* &* +@all" in text.splitlines()
    assert "user probe on nopass resetkeys resetchannels -@all +ping" in text.splitlines()

"""Settings that every service has; each adds its own in its `config.py`.

A value comes from the environment (`SANDFLEET_<SERVICE>_<NAME>`), else from the
TOML file named by `SANDFLEET_CONFIG` (section `[<service>]`), else it is the
default. An unknown key in the file, or a value that does not fit, stops the
start and is named.
"""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .bus import BusSettings
from .logs import Level
from .store import StoreSettings


class ServiceSettings(BaseSettings):
    """What every service needs to know."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    nats_servers: str = "nats://127.0.0.1:4222"
    """NATS servers, separated by commas."""
    nats_user: str = ""
    """Empty: the service's own name."""
    nats_password_file: Path | None = None
    """File with the password; wins over nats_password."""
    nats_password: SecretStr = SecretStr("")
    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_seconds: float = Field(default=10, ge=0)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take nothing but what `load` gives: a PORT or HOST in the environment is not ours."""
        return (init_settings,)

    def level(self) -> Level:
        """Return the log level."""
        return Level[self.log_level.upper()]

    def bus(self, service: str, name: str | None = None) -> BusSettings:
        """Return where the bus is and who `service` is there."""
        password = (
            self.nats_password_file.read_text().strip()
            if self.nats_password_file is not None
            else self.nats_password.get_secret_value()
        )
        return BusSettings(
            servers=tuple(s.strip() for s in self.nats_servers.split(",") if s.strip()),
            user=self.nats_user or service,
            password=password,
            name=name or service,
        )

    def store(self) -> StoreSettings:
        """Return where Redis is."""
        return StoreSettings(url=self.redis_url.get_secret_value())


SettingsT = TypeVar("SettingsT", bound=ServiceSettings)


def load(kind: type[SettingsT], service: str) -> SettingsT:
    """Read a service's settings, or end the process with one clear sentence per mistake."""
    prefix = f"SANDFLEET_{service.upper()}_"
    values: dict[str, Any] = {}
    path = os.environ.get("SANDFLEET_CONFIG")
    if path:
        try:
            section = tomllib.loads(Path(path).read_text()).get(service, {})
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            sys.exit(f"{service}: cannot read {path}: {problem}")
        if not isinstance(section, dict):
            sys.exit(f"{service}: {path} has no section [{service}] but a value of that name")
        values.update(cast(dict[str, Any], section))
    for name in os.environ:
        if name.startswith(prefix):
            values[name.removeprefix(prefix).lower()] = os.environ[name]
    try:
        settings = kind(**values)
    except ValidationError as problem:
        for error in problem.errors(include_url=False, include_input=False):
            where = ".".join(str(part) for part in error["loc"])
            known = error["type"] != "extra_forbidden"
            what = error["msg"] if known else "there is no such setting"
            sys.stderr.write(f"{service}: setting {where}: {what}\n")
        sys.exit(2)
    try:
        settings.bus(service)
    except OSError as problem:
        sys.exit(f"{service}: setting nats_password_file: cannot be read: {problem}")
    return settings

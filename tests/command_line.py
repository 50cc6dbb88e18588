"""The command `sandfleet` as its users meet it: a process with output, errors and a status."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from sdk_ways import trainer_address
from servers import Servers


@dataclass(frozen=True, slots=True)
class Done:
    """How it ended."""

    status: int
    out: bytes
    err: str


@dataclass(frozen=True, slots=True)
class Cli:
    """Runs `sandfleet` in an environment."""

    environment: dict[str, str]

    @classmethod
    def on(cls, servers: Servers) -> Cli:
        """Return one that finds the platform on these servers, and has a wide screen."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SANDFLEET_")}
        return cls(inherited | {"SANDFLEET_NATS": trainer_address(servers), "COLUMNS": "200"})

    async def start(
        self,
        *arguments: str,
        stdin: int = asyncio.subprocess.PIPE,
        stdout: int = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        """Start it."""
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandfleet.cli", *arguments,
            stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.PIPE, env=self.environment,
        )  # fmt: skip

    async def __call__(self, *arguments: str, given: bytes = b"") -> Done:
        """Run it to its end."""
        process = await self.start(*arguments)
        out, err = await process.communicate(given)
        assert process.returncode is not None
        return Done(process.returncode, out, err.decode())

"""Environments: the named stacks of layers that sandboxes are created from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from sandfleet_common import messages as m
from sandfleet_common import subjects as s

from .calls import call
from .connection import Connection

PAGE_ENVIRONMENTS = 500
COLLECT_SECONDS = 60.0


class AsyncEnvironments:
    """All environments there are: `client.environments`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, environment: str) -> m.EnvironmentInfo:
        """Return an environment with its layers, `name`, `name:version` or a snapshot's id.

        Raises:
            NotFound: there is none; says which there are.
        """
        body = m.EnvironmentGet.of(environment=environment)
        return await call(self._connection.transport, s.ENVIRONMENT_GET, body)

    async def list(
        self, *, prefix: str = "", versions: bool = False
    ) -> AsyncIterator[m.EnvironmentSummary]:
        """Yield environments by name: the newest version of each, or all `versions`.

        names = [environment.name async for environment in client.environments.list()]
        """
        after: str | None = None
        while True:
            body = m.EnvironmentList.of(
                prefix=prefix, versions=versions, limit=PAGE_ENVIRONMENTS, after=after
            )
            page = await call(self._connection.transport, s.ENVIRONMENT_LIST, body)
            for environment in page.environments:
                yield environment
            after = page.next
            if after is None:
                return

    async def publish(
        self,
        name: str,
        layers: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        notes: Mapping[str, str] | None = None,
        source: str = "",
    ) -> m.EnvironmentInfo:
        """Name a stack of layers, digests with the top first; the same again is no new version.

            snapshot = await sandbox.snapshot()
            await client.environments.publish("prepared", snapshot.info_now.layers)

        `name` may be `name:version`; without, the version is the one after the newest.

        Raises:
            NotFound: a layer is not in the store.
            Conflict: the version is taken by something else.
        """
        plain, _, version = name.partition(":")
        body = m.EnvironmentPublish.of(
            name=plain,
            version=version or None,
            layers=list(layers),
            env=dict(env or {}),
            user=user,
            workdir=workdir,
            notes=dict(notes or {}),
            source=source,
        )
        return await call(self._connection.transport, s.ENVIRONMENT_PUBLISH, body)

    async def remove(self, environment: str) -> None:
        """Forget `name:version`, or with `name` all its versions; sandboxes go on.

        Raises:
            NotFound: there is none.
        """
        body = m.EnvironmentRemove.of(environment=environment)
        await call(self._connection.transport, s.ENVIRONMENT_REMOVE, body)

    async def collect(
        self, *, dry_run: bool = False, keep_seconds: float = 86_400
    ) -> m.StoreCollected:
        """Remove layers that no environment, snapshot or live sandbox needs.

        Those that came less than `keep_seconds` ago stay: somebody may be about to name them.
        """
        body = m.StoreCollect.of(dry_run=dry_run, keep_seconds=keep_seconds)
        return await call(
            self._connection.transport,
            s.STORE_COLLECT,
            body,
            within=2 * COLLECT_SECONDS,
            held=COLLECT_SECONDS,
        )

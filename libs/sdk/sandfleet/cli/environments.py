"""env: environments."""

from __future__ import annotations

import click

from . import session
from .building import build, import_image


@click.group(cls=session.TaughtGroup)
def env() -> None:
    """Build environments, list them, look into them.

    An environment is a named stack of layers that sandboxes are created from.
    """


for _command in (build, import_image):
    env.add_command(_command)

"""completion: what a shell needs to complete `sandfleet`, sandbox ids included."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from . import session

PROGRAM = "sandfleet"
VARIABLE = "_SANDFLEET_COMPLETE"


@click.command(cls=session.Taught)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Sandbox ids are completed, too.

    eval "$(sandfleet completion bash)"            # in ~/.bashrc
    eval "$(sandfleet completion zsh)"             # in ~/.zshrc
    sandfleet completion fish > ~/.config/fish/completions/sandfleet.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())

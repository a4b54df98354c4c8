"""`rookery completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from relay.cli import rookery
from relay.errors import UserError

_VARIABLE = "_ROOKERY_COMPLETE"
"""click answers when it is set, in `rookery.main`."""


@click.command(
    "completion",
    epilog="Example: rookery completion bash > ~/.local/share/bash-completion/completions/rookery",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes `rookery` in bash (4.4 or newer), zsh or fish.

    bash, in ~/.bashrc: eval "$(rookery completion bash)". zsh, in ~/.zshrc: the same with zsh,
    after compinit. fish: rookery completion fish > ~/.config/fish/completions/rookery.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise UserError(f"this version of click has no completion for {shell}")
    # Not `found.source`: that of bash runs bash to find out its version.
    click.echo(ShellComplete.source(found(rookery, {}, "rookery", _VARIABLE)))

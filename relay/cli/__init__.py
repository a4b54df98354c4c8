"""The command line: its commands, its exit codes, and how it says what went wrong.

Exit codes (contract §2): 0 done · 1 refused, or faults found · 2 bad usage · 130 Ctrl-C. What a
user can put right is said in one line on stderr; a traceback is a bug of ours. A command may return
its exit code. A module is imported when its command is asked for, so `rookery --help` is quick.
"""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from relay import __version__
from relay.errors import RookeryError, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("init", "make a data folder: settings, policies, the relay's key"),
    "serve": ("serve", "run the relay"),
    "keygen": ("init", "make one new key pair"),
    "export": ("exporting", "write stored events as JSON lines"),
    "import": ("importing", "read JSON lines of events into a folder"),
    "sync": ("sync", "make a folder or relay and another relay alike"),
    "policy": ("policy", "check, show, explain and test who may do what"),
    "group": ("group", "create and manage NIP-29 groups"),
    "memory": ("memory", "look after what agents know: get, set, list, search, forget"),
    "config": ("config", "say how agents behave, in a group or everywhere"),
    "context": ("context", "print what a model would be given, and why"),
    "aman": ("aman", "look after the memory of an Aman agent"),
    "anamnesis": ("anamnesis", "share memories, vouch for them, correct and recall them"),
    "session": ("session", "keep the sessions of coding agents, and get them back"),
    "mcp": ("mcp", "give a coding agent its memory: an MCP server"),
    "nmem": ("nmem", "search and look after what coding agents did"),
    "hook": ("hook", "remember what a coding agent does: called by its hooks"),
    "stats": ("stats", "show how much is stored, by kind, author and group"),
}
"""command → (module in relay.cli, what it does). The module holds a click command of that name."""


class LazyCommands(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"relay.cli.{COMMANDS[cmd_name][0]}")
        for value in vars(module).values():
            if isinstance(value, click.Command) and value.name == cmd_name:
                return value
        raise LookupError(f"{module.__name__} has no click command named {cmd_name!r}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and (near := get_close_matches(name, COMMANDS, n=1)):
            ctx.fail(f"No such command {name!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every module to ask for its help.
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])


@click.command(
    cls=LazyCommands,
    name="rookery",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: rookery serve --data ./data",
)
@click.version_option(__version__, prog_name="rookery", message="%(prog)s %(version)s")
def rookery() -> None:
    """A self-hosted Nostr group relay that remembers."""


def run(args: Sequence[str]) -> int:
    """Run one command; its exit code."""
    for position, arg in enumerate(args, 1):
        if not _is_text(arg) and not os.path.lexists(arg):
            # What names no file would be signed, and an event is UTF-8.
            _complain(f"rookery: argument {position} is not UTF-8")
            return 2
    try:
        code = rookery.main(args=list(args), prog_name="rookery", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        _complain(error.format_message())
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "rookery"
        _complain(f"{where}: {error.format_message()} (see `{where} --help`)")
        return error.exit_code
    except click.ClickException as error:
        _complain(f"rookery: {error.format_message()}")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except UserError as error:
        _complain(f"rookery: {error}")
        return error.code
    except RookeryError as error:
        _complain(f"rookery: {error}")
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        _complain(f"rookery: {error.filename}: {error.strerror}")
        return 1
    return code if isinstance(code, int) else 0


def _is_text(arg: str) -> bool:
    """Not so where the shell gave bytes that are no UTF-8: Python keeps them as lone surrogates."""
    try:
        arg.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complain(text: str) -> None:
    from relay.cli.options import printable

    # It may repeat what a relay said.
    click.echo("\n".join(map(printable, text.split("\n"))), file=sys.stderr)

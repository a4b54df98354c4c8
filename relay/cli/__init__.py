"""The command line: commands, exit codes, error output.

Exit codes: 0 success · 1 refused, or faults found · 2 usage error · 130 Ctrl-C. Errors a user can
fix are one line on stderr; a traceback is a bug. A command may return its exit code. Modules are
imported when their command runs, so that `rookery --help` is fast.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from relay import __version__
from relay.errors import RookeryError, UserError, masked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem

SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Relay": {
        "init": ("init", "create a data folder: settings, policies, relay key"),
        "serve": ("serve", "run the relay"),
        "policy": ("policy", "check, show, explain and test the policies; list refusals"),
        "import": ("importing", "store events from JSON lines in a data folder"),
        "export": ("exporting", "write stored events as JSON lines"),
        "sync": ("sync", "synchronise a data folder or relay with another relay"),
    },
    "People": {
        "keygen": ("init", "create a key pair"),
        "key": ("key", "show the public key of a key file; give the relay a new key"),
        "profile": ("profile", "set the displayed name of a key"),
        "group": ("group", "create, join and manage NIP-29 groups"),
        "chat": ("chat", "read and write messages of a group in the terminal"),
        "member": ("member", "members of the relay: list, add, remove, invite"),
        "ban": ("member", "ban keys from the relay"),
        "unban": ("member", "lift bans; `ban --list` shows them"),
        "allow": ("member", "make keys members of the relay"),
        "forget": ("forget", "delete events at a relay, with a receipt of their erasure"),
    },
    "Memory": {
        "memory": ("memory", "read and edit agents' memory: get, set, list, search, forget"),
        "config": ("config", "configure how agents behave: globally, per group or per user"),
        "context": ("context", "print the context a model would get, and why"),
        "aman": ("aman", "read and edit the memory of an Aman agent"),
        "anamnesis": ("anamnesis", "publish, vouch for, supersede and recall Anamnesis memories"),
    },
    "Coding agents": {
        "session": ("session", "store and export sessions of coding agents"),
        "mcp": ("mcp", "run an MCP server that gives a coding agent its memory"),
        "nmem": ("nmem", "search and manage the nmem history of coding agents"),
        "hook": ("hook", "record a coding agent's actions; called by its hooks"),
    },
    "Operation": {
        "demo": ("demo", "make a data folder with a made-up team, to look at"),
        "console": ("console", "open the web console, signed in with a key file"),
        "doctor": ("doctor", "find faults of a relay, with their cures"),
        "status": ("status", "show the relay's activity: rates, refusals, queries, free disk"),
        "top": ("status", "the same, again every second"),
        "log": ("log", "print or follow log lines and refusals, with their reasons"),
        "restart": ("restart", "restart a running relay without a refused connection"),
        "stats": ("stats", "show storage use by kind, author and group"),
        "backup": ("backup", "copy a relay into one file, while it runs or not"),
        "restore": ("restore", "make a data folder from a backup, or only try it"),
        "move": ("move", "move the events to PostgreSQL or back, while the relay runs"),
        "verify": ("verify", "check all stored events and tables; repair faults"),
        "compact": ("compact", "apply retention and free disk space"),
        "completion": ("completion", "print a script that completes commands in a shell"),
        "man": ("man", "write manual pages of all commands"),
    },
}
"""Heading of the help → command → (module in relay.cli, summary). The module holds a click command
of that name."""
_MACHINE_FAULTS: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS), ""),
    **dict.fromkeys((errno.ENFILE, errno.ENOMEM), ""),
    errno.EMFILE: ": raise `ulimit -n`, or LimitNOFILE= of the service",
}
"""errno → advice. Told in one line even where the error names no file, as of a write to an open
one."""
_NSEC: Final = re.compile(r"\s*nsec1[a-z0-9]{58}\s*", re.IGNORECASE)
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    name: where for commands in SECTIONS.values() for name, where in commands.items()
}


class LazyCommands(click.Group):
    """A click group that imports a command's module when the command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        collects = gc.isenabled()
        gc.disable()  # an import makes no garbage: 6 % of a start
        try:
            module = import_module(f"relay.cli.{COMMANDS[cmd_name][0]}")
        finally:
            if collects:
                gc.enable()
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
        # click would import every module for its help.
        width = max(map(len, COMMANDS))
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), what) for name, (_, what) in commands.items()]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click would import every module here too.
        from click.shell_completion import CompletionItem

        options = click.Command.shell_complete(self, ctx, incomplete)
        return [
            *(
                CompletionItem(name, help=what)
                for name, (_, what) in COMMANDS.items()
                if name.startswith(incomplete)
            ),
            *options,
        ]


@click.command(
    cls=LazyCommands,
    name="rookery",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: rookery serve --data ./data",
)
@click.version_option(__version__, prog_name="rookery", message="%(prog)s %(version)s")
def rookery() -> None:
    """A self-hosted Nostr group relay with memory for AI agents."""


def run(args: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    _open_streams()
    for position, arg in enumerate(args, 1):
        if not _is_text(arg) and not os.path.lexists(arg):
            # An argument that is no file name may become event content, which must be UTF-8.
            _complain(f"rookery: argument {position} is not UTF-8")
            return 2
        if _NSEC.fullmatch(arg.rpartition("=")[2]) is not None and "--anyway" not in args:
            # Given for a name, an id or a code it would be published.
            where = _command_in(args)
            _complain(
                f"{where}: argument {position}: that is a secret key; a command reads it from a"
                f" file (--key-file FILE) or from ROOKERY_KEY (see `{where} --help`)"
            )
            return 2
    try:
        code = rookery.main(args=list(args), prog_name="rookery", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        _complain(error.format_message())
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else _command_in(args)
        said = " ".join(error.format_message().split())  # click lists choices on lines
        if isinstance(error, click.NoSuchOption) and where == "rookery":
            said += " Options are given after the command."
        _complain(f"{where}: {said} (see `{where} --help`)")
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
        if error.filename is None and error.errno not in _MACHINE_FAULTS:
            raise
        named = "" if error.filename is None else f"{error.filename}: "
        advice = _MACHINE_FAULTS.get(error.errno or 0, "")
        _complain(f"rookery: {named}{error.strerror}{advice}")
        return 1
    except MemoryError:
        _complain("rookery: out of memory: free some, or raise the limit of this process")
        return 1
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Makes a stream /dev/null that was closed when the program began: Python has None for it, and
    the next file to be opened would get its number, and what other programs print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _command_in(args: Sequence[str]) -> str:
    """The command that these arguments name. click's parser does not report it with an error."""
    command: click.Command = rookery
    found, context = ["rookery"], click.Context(rookery, info_name="rookery")
    for arg in args:
        child = command.get_command(context, arg) if isinstance(command, click.Group) else None
        if child is None:
            break
        command = child
        found.append(arg)
    return " ".join(found)


def _is_text(arg: str) -> bool:
    """False for arguments that are not UTF-8: Python decodes them to lone surrogates."""
    try:
        arg.encode()
    except UnicodeEncodeError:
        return False
    return True


def _complain(text: str) -> None:
    from relay.cli.options import Colour, coloured, printable

    # The text may quote a relay, or an argument.
    who, colon, said = "\n".join(map(printable, masked(text).split("\n"))).partition(":")
    who = coloured(f"{who}{colon}", Colour.REFUSED, sys.stderr)
    click.echo(f"{who}{said}", file=sys.stderr)

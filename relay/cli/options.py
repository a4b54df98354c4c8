"""Shared options, key parameters and safe output."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from enum import Enum
from functools import lru_cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, TypeVar

import click
import orjson
from click.core import ParameterSource

from relay.cli.folder_lock import refuse_root, refuse_root_to_make
from relay.errors import UserError, masked
from relay.nostr.nip50 import search_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from relay.client.base import BaseClient

    KeyType = click.ParamType[str]
    Decorated = TypeVar("Decorated", bound=Callable[..., Any])
else:
    KeyType = click.ParamType  # takes no arguments in older versions of click

_WIDE: Final = 200
"""Output width when not on a terminal: a table in a pipe must not wrap keys."""


_OFTEN_WIDE: Final = frozenset(map(chr, (*range(0x1F1E6, 0x1F200), *range(0x1F3FB, 0x1F400))))
"""Letters of flags and skin tones, which rich counts as one cell or none."""


class CommandGroup(click.Group):
    """Its help has the whole first sentence of each command; click's cuts it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(_WIDE))
                    for name, command in found.items()
                    if command is not None and not command.hidden
                ]
            )


def no_data_folder(folder: Path) -> UserError:
    from relay.memory.fence import shell_word  # not for help

    return UserError(
        f"{folder} is no data folder: name the relay's with --data DIR, or make one with `rookery"
        f" init {shell_word(folder)} --owner KEY`"
    )


_MAX_UNNAMED: Final = 10_000
"""Files and folders of a data folder that nobody has named. A relay's has some twenty, and those of
its policies: of a pushed version at most 256."""

RESTORING: Final = ".rookery-restoring-"
"""The folder that `restore` unpacks into begins with it."""


def refuse_half_restored(folder: Path) -> None:
    """Raises UserError for a folder that a killed `restore` has filled in part.

    It moves the settings last: a folder that has them is complete, whatever else was unpacked in
    it.
    """
    if not (folder / "rookery.toml").exists() and any(folder.glob(f"{RESTORING}*/*")):
        raise UserError(
            f"a restore into {folder} has not finished: if no restore is running, empty the"
            " folder and run `rookery restore` again"
        )


def checked_folder(ctx: click.Context, param: click.Parameter, folder: Path) -> Path:
    """Callback of an option for a data folder. Raises UserError."""
    _refuse_secret(folder)
    if not ctx.resilient_parsing:
        refuse_root_to_make(folder)
        _refuse_unusable(ctx, param, folder)
    return folder


def _existing(ctx: click.Context, param: click.Parameter, folder: Path) -> Path:
    _refuse_secret(folder)
    if not ctx.resilient_parsing:
        if not folder.is_dir():
            raise no_data_folder(folder)
        refuse_root(folder)
        _refuse_unusable(ctx, param, folder)
    return folder


def _refuse_secret(folder: Path) -> None:
    if masked(str(folder)) != str(folder):
        raise UserError("--data: this is a secret; the relay's data folder is needed", code=2)


def _refuse_unusable(ctx: click.Context, param: click.Parameter, folder: Path) -> None:
    refuse_half_restored(folder)
    if ctx.get_parameter_source(str(param.name)) is ParameterSource.DEFAULT:
        refuse_unnamed(folder)


def refuse_unnamed(folder: Path) -> None:
    """For `./data`, which nobody has named and which may be of a cloned repository or an archive:
    in what a link in it names commands would read, write and delete, and for a pipe they would
    wait. Raises UserError, also for more than can be looked through."""
    from relay.cli.database import refuse_password_from_elsewhere  # with it, the settings

    refuse_password_from_elsewhere(folder)
    fault = _unnamed_fault(folder)
    if fault is not None:
        from relay.memory.fence import shell_word  # not for help

        raise UserError(f"{fault}: if {folder} is yours, name it with --data {shell_word(folder)}")


def _unnamed_fault(folder: Path) -> str | None:
    if folder.is_symlink():
        return f"{folder} is a symbolic link"
    own_socket, left, unread = folder / "control.sock", _MAX_UNNAMED, [str(folder)]
    while unread:
        below = unread.pop()
        try:
            with os.scandir(below) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return f"{folder} has more than {_MAX_UNNAMED} files and folders"
                    if entry.is_symlink():
                        return f"{entry.path} is a symbolic link"
                    if entry.is_dir(follow_symlinks=False):
                        unread.append(entry.path)
                    elif not (
                        entry.is_file(follow_symlinks=False)
                        or (Path(entry.path) == own_socket and own_socket.is_socket())
                    ):
                        return f"{entry.path} is neither a file nor a folder"
        except (FileNotFoundError, NotADirectoryError):
            continue  # of `folder` whoever needs it reports it; another was removed meanwhile
        except OSError as error:
            return f"{below} cannot be looked through: {error.strerror}"
    return None


DATA_VARIABLE: Final = "ROOKERY_DATA"

new_folder_option, folder_option = (
    click.option(
        "--data",
        "folder",
        default="data",
        envvar=DATA_VARIABLE,
        show_default=True,
        metavar="DIR",
        type=click.Path(file_okay=False, path_type=Path),
        callback=callback,
        help="The relay's data folder.",
    )
    for callback in (checked_folder, _existing)
)
"""The second: of a folder that is there."""


def limit_option(default: int, most: int | None = None) -> Callable[[Decorated], Decorated]:
    """`--limit N`."""
    return click.option(
        "--limit",
        type=WholeNumber(1, most),
        default=default,
        show_default=True,
        metavar="N",
        help="Maximum number of results.",
    )


def format_option(plain: str) -> Callable[[Decorated], Decorated]:
    """`--format`: `plain` (the default), or fenced text for a model (G-23)."""
    return click.option(
        "--format",
        "form",
        type=click.Choice([plain, "context"]),
        default=plain,
        show_default=True,
        help="context: each text between <memory> and </memory>, for a model.",
    )


anyway_option = click.option(
    "--anyway", is_flag=True, help="Write secrets, recalled text and near-duplicates too."
)


def report_kept_out(client: BaseClient) -> None:
    """Print on stderr what was not written, and why."""
    for each in client.kept_out:
        click.echo(f"kept out: {printable(str(each))}; --anyway writes it", err=True)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class Server(NamedTuple):
    """Where a command connects, and with which key. None: from environment and settings."""

    relay: str | None = None
    key_file: Path | None = None


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--relay` and `--key-file`, given to the command as `server`."""

    @click.option("--relay", metavar="URL", help="Relay URL, ws:// or wss://.")
    @click.option(
        "--key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with the secret key to sign with: nsec or 64 hex.",
    )
    @wraps(command)
    def with_server(relay: str | None, key_file: Path | None, **others: object) -> object:
        return command(server=Server(relay, key_file), **others)

    return with_server


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`server_options`, and `--json`, given as `as_json`."""
    return server_options(json_option(command))


class WholeNumber(click.IntRange):
    """As `click.IntRange`, with an error that names the valid range."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"{value!r} is not {self._wanted()}", param, ctx)
        is_enough = self.min is None or number >= self.min
        if not (is_enough and (self.max is None or number <= self.max)):
            self.fail(f"{number} is not {self._wanted()}", param, ctx)
        return number

    def _wanted(self) -> str:
        if self.max is not None:
            return f"a whole number from {self.min or 0} to {self.max}"
        return "a whole number" if self.min is None else f"a whole number, {self.min} or more"

    def _describe_range(self) -> str:
        # click's own, for --help, says `x<=None` without bounds.
        return "" if self.min is self.max is None else super()._describe_range()


class Number(click.FloatRange):
    """As `click.FloatRange`, with an error that names the valid range."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not {self._wanted()}", param, ctx)

    def _wanted(self) -> str:
        if self.max is not None:
            return f"a number from {self.min or 0:g} to {self.max:g}"
        return f"a number above {self.min or 0:g}"


def text_of_stdin(read: Callable[[], str]) -> str:
    """`read`: a method of stdin. Raises UserError."""
    try:
        text = read()
        text.encode()  # in some locales Python makes lone surrogates of other bytes
    except UnicodeError:
        raise UserError("stdin is not UTF-8 text") from None
    return text


def confirm(question: str) -> None:
    """Raises UserError unless the answer is yes; click.Abort at Ctrl-C."""
    try:
        is_agreed = click.confirm(question, err=True)
    except click.Abort as abort:
        if not isinstance(abort.__context__, EOFError):
            raise
        raise UserError(
            "nothing was changed: no answer was given; use --yes to skip the question"
        ) from None
    except UnicodeDecodeError:
        is_agreed = False
    if not is_agreed:
        raise UserError("nothing was changed")


class Words(KeyType):
    """Search terms: empty terms would match everything."""

    name = "words"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if search_from(value) is None:
            self.fail("contains no word to search for", param, ctx)
        return value


_CONTROL: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON does not escape and terminals interpret: DEL, C1, bidi controls, line
separators."""


def print_json(value: object) -> None:
    """One value on one line."""
    click.echo(shown_json(orjson.dumps(value)))


def shown_json(raw: bytes) -> str:
    """The same JSON, with what a terminal would interpret escaped."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", raw.decode())


def print_counts(counts: Mapping[str, int], *, as_json: bool) -> None:
    """`preferences 3, clears 1`, or one JSON document."""
    if as_json:
        print_json(counts)
    else:
        click.echo(", ".join(f"{name} {count}" for name, count in counts.items()))


def printable(text: str) -> str:
    """Text from the network with what a reader would not see replaced: control characters, and
    letters that are shown as nothing."""
    if text.isascii() and text.isprintable():
        return text
    from relay.memory.fence import with_unseen  # not for help

    return with_unseen(text, lambda _: "�")


def printable_lines(text: str) -> str:
    """`printable` for each line. For text in a fence only afterwards: a fence removes the invisible
    characters that this would replace."""
    return "\n".join(map(printable, text.splitlines()))


def chopped(text: str, width: int) -> list[str]:
    """The text cut to lines that no terminal shows wider than this."""
    parts: list[str] = []
    begins = used = 0
    for at, each in enumerate(text):
        cells = _cells(each)
        if used + cells > width and at > begins:
            parts.append(text[begins:at])
            begins, used = at, 0
        used += cells
    return [*parts, text[begins:]]


@lru_cache(maxsize=4096)
def _cells(each: str) -> int:
    """Terminals differ: at least as many as any of them uses."""
    from rich.cells import get_character_cell_size

    category = unicodedata.category(each)
    if category in ("Mn", "Me"):
        # After a variation selector some show the emoji before it in two cells.
        return 1 if each == "\ufe0f" else 0
    if category == "Mc" or each in _OFTEN_WIDE:
        return 2
    return max(1, get_character_cell_size(each))


class Colour(Enum):
    OK = "green"
    WARNING = "yellow"
    REFUSED = "red"


def coloured(text: str, colour: Colour, stream: TextIO | None = None) -> str:
    """In colour if `stream` (default: stdout) is a terminal and NO_COLOR is not set."""
    out = sys.stdout if stream is None else stream
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if is_plain or not out.isatty() else click.style(text, fg=colour.value)


def console() -> Console:
    """A rich console on stdout."""
    from rich.console import Console

    out = partial(Console, markup=False, highlight=False, emoji=False)
    return out() if out().is_terminal else out(width=_WIDE)

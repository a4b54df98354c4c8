"""`rookery man`: manual pages, made from the commands themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relay import __version__
from relay.cli import SECTIONS, rookery
from relay.cli.folder_lock import refuse_root_to_make
from relay.cli.humanize import counted
from relay.files import replace_own_file
from relay.memory.fence import shell_word

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command("man", epilog="Example: rookery man ~/.local/share/man/man1")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def man(folder: Path) -> None:
    """Write a manual page for each command into a folder, such as ~/.local/share/man/man1."""
    refuse_root_to_make(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = pages()
    for name, text in found.items():
        replace_own_file(folder / f"{name}.1", text.encode(), 0o644)
    click.echo(
        f"wrote {counted(len(found), 'page')} to {folder}; try"
        f" `man -l {shell_word(folder / 'rookery.1')}`",
        err=True,
    )


def pages() -> dict[str, str]:
    """Name of a page → its text (roff). Subcommands are on the page of their group."""
    context = click.Context(rookery, info_name="rookery", **rookery.context_settings)
    listed: list[str] = []
    found: dict[str, str] = {}
    for heading, commands in SECTIONS.items():
        listed.append(f".SH {heading.upper()}")
        for name, (_, summary) in commands.items():
            command = rookery.get_command(context, name)
            assert command is not None
            listed += [".TP", f"\\fBrookery\\-{name}\\fP(1)", _roff(summary)]
            own = click.Context(command, info_name=name, parent=context)
            lines = [_header(f"rookery-{name}", summary), *_body(command, own)]
            found[f"rookery-{name}"] = "\n".join(lines) + "\n"
    about = (rookery.help or "").strip()
    found["rookery"] = "\n".join([_header("rookery", about), *listed]) + "\n"
    return found


def _header(name: str, summary: str) -> str:
    title = f'.TH "{name.upper()}" 1 "" "rookery {__version__}" "Rookery"'
    return f"{title}\n.SH NAME\n{_roff(name)} \\- {_roff(summary)}"


def _body(command: click.Command, context: click.Context) -> Iterator[str]:
    """The command, or each command of the group."""
    yield f".SH {_roff(context.command_path.upper())}"
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield from _described(command, context)
        return
    yield from _paragraphs(command.help or "")
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        if not child.hidden:
            yield from _body(child, click.Context(child, info_name=name, parent=context))


def _described(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"\\fB{_roff(context.command_path)}\\fP {_roff(usage)}"
    yield ".PP"
    yield from _paragraphs(command.help or "")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", f"\\fB{_roff(record[0])}\\fP", _roff(record[1]))
    if command.epilog:
        yield from (".PP", _roff(command.epilog))


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield _roff(" ".join(paragraph.split()))


def _roff(text: str) -> str:
    """Escaped: a line may not begin with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text

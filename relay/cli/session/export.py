"""`rookery session export|verify|resume`: the session's file."""

from __future__ import annotations

import os
import re
import sys
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from relay.cli.humanize import counted
from relay.cli.options import (
    Server,
    client_options,
    print_json,
    printable,
    server_options,
)
from relay.cli.session.common import (
    PATH,
    author_option,
    of_session,
    on_relay,
    session_argument,
)
from relay.client.transcripts import Incomplete, NoSession
from relay.client.transcripts.files import session_file
from relay.errors import UserError
from relay.files import atomic_file, make_private, own_file
from relay.memory.transcripts.moved import comparable
from relay.memory.transcripts.paths import Directory, PathTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.client.transcripts import Transcripts
    from relay.memory.transcripts.assembly import Assembly

_MAX_HEAD: Final = 4_096
directory_option = click.option(
    "--cwd",
    metavar="DIR",
    help="Working folder to write into the session.  [default: the original]",
)


@click.command("export", epilog="Example: rookery session export 5b0f6a1e… -o session.jsonl")
@session_argument
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Output file; default: stdout.")
@directory_option
@click.option("--git-branch", metavar="B", help="Replace the branch in every line that names one.")
@click.option(
    "--allow-gaps", is_flag=True, help="Write incomplete sessions, and list the missing parts."
)
@author_option
@server_options
def export_command(
    session: str,
    output: Path | None,
    cwd: str | None,
    git_branch: str | None,
    author: str | None,
    server: Server,
    *,
    allow_gaps: bool,
) -> None:
    """Write the session's file, byte for byte as imported.

    If parts are missing they are listed on stderr and nothing is written, unless --allow-gaps is
    given.
    """

    async def work(transcripts: Transcripts) -> tuple[Assembly, str | None]:
        id_, assembly = await _whole(transcripts, session, author, allow_gaps=allow_gaps)
        return assembly, cwd or await transcripts.directory_of(id_, assembly.author)

    assembly, where = on_relay(server, work)
    if where is None and (assembly.relative or any(line.has_tokens for line in assembly.lines)):
        where = os.path.realpath(Path.cwd())
        click.echo(f"the session's working folder is unknown: using {where} (see --cwd)", err=True)
    directory = None if where is None else Directory(where)
    data = b"".join(assembly.file(directory, git_branch))
    if output is None or output == Path("-"):
        _print(data)
    else:
        make_private(output.parent)
        with atomic_file(output) as file:
            file.write(data)
    for fault in assembly.faults:
        click.echo(printable(fault), err=True)
    for unread in assembly.unread:
        click.echo(f"skipped {unread.event.id[:8]} {printable(unread.why)}", err=True)
    for part, count in sorted(assembly.stripped.items()):
        click.echo(
            f"{count} lines were stripped of {printable(part)} before sending: the file is not"
            " identical to the original",
            err=True,
        )
    _tell_relative(assembly)
    click.echo(_summary(assembly, data), err=True)


def _tell_relative(assembly: Assembly) -> None:
    if assembly.relative:
        click.echo(
            f"{assembly.relative} lines have relative paths, which cannot be restored", err=True
        )


@click.command("verify", epilog="Example: rookery session verify 5b0f6a1e… session.jsonl")
@session_argument
@click.argument("file", type=PATH, metavar="FILE")
@author_option
@client_options
def verify_command(
    session: str,
    file: Path,
    author: str | None,
    server: Server,
    *,
    as_json: bool,
) -> int:
    """Compare a file with the session at the relay, byte for byte."""
    base = session_file(file).opening.base

    async def work(transcripts: Transcripts) -> Assembly:
        return (await _whole(transcripts, session, author, allow_gaps=True))[1]

    assembly = on_relay(server, work)
    differing = None
    with file.open("rb") as ours:
        theirs = assembly.file(Directory(base or "/"))
        for number, (here, there) in enumerate(zip_longest(ours, theirs), 1):
            if here != there:
                differing = number
                break
    if as_json:
        print_json({"identical": differing is None, "line": differing})
    elif differing is None:
        click.echo("identical")
    else:
        click.echo(f"line {differing} differs")
    for fault in assembly.faults:
        click.echo(printable(fault), err=True)
    return 0 if differing is None else 1


@click.command("resume", epilog="Example: rookery session resume 5b0f6a1e… --cwd ~/rook")
@session_argument
@click.option(
    "--cwd", metavar="DIR", help="Working folder to resume in.  [default: the current folder]"
)
@author_option
@server_options
def resume_command(session: str, cwd: str | None, author: str | None, server: Server) -> None:
    """Write the session to claude-code's folder, and print the command to resume it.

    The lines get the paths and the git branch of the working folder. If claude-code already has a
    file of the session, the file is continued. A session of another key is resumed only with
    --author, because a model would treat its text as its own.
    """
    _check_resumable(session)
    here = os.path.realpath(Path.cwd() if cwd is None else Path(cwd).expanduser())

    async def work(transcripts: Transcripts) -> tuple[str, Assembly]:
        try:
            key = author or transcripts.pubkey
            return await _whole(transcripts, session, key, allow_gaps=False)
        except UserError as error:
            if author is None and isinstance(error.__cause__, NoSession):
                raise UserError(f"{error}; --author KEY resumes one of another key") from error
            raise

    id_, assembly = on_relay(server, work)
    _check_resumable(id_)
    lines = list(assembly.file(Directory(here), branch_of(Path(here))))
    _tell_relative(assembly)
    config = os.environ.get("CLAUDE_CONFIG_DIR")
    home = Path(config) if config else Path.home() / ".claude"
    path = home / "projects" / re.sub(r"[^A-Za-z0-9]", "-", here) / f"{id_}.jsonl"
    added = _missing(path, lines, PathTokens(here))
    if added is None:
        raise UserError(f"{path} exists with other content: move it away, or resume it as it is")
    if added:
        make_private(path.parent)
        with os.fdopen(own_file(path, os.O_APPEND), "wb") as opened:
            opened.write(b"".join(added))
        done = "wrote" if len(added) == len(lines) else f"added {counted(len(added), 'line')} to"
        click.echo(f"{done} {path}; in {here} run:", err=True)
    else:
        click.echo(f"{path} exists and continues the session; in {here} run:", err=True)
    click.echo(f"claude --resume {id_}")


def _check_resumable(id_: str) -> None:
    """Raises UserError. The id becomes the name of a file."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", id_) is None:
        raise UserError(f"{printable(id_)} is not a session id that claude-code can resume")


def _missing(path: Path, lines: Sequence[bytes], tokens: PathTokens) -> Sequence[bytes] | None:
    """The lines that a file lacks at its end; None: it belongs to another session. The lines in the
    file may name another branch."""
    if not path.exists():
        return lines
    with path.open("rb") as file:
        present = list(file)
    for here, there in zip(present, lines, strict=False):
        if comparable(here, tokens) != comparable(there, tokens):
            return None
    return lines[len(present) :]


def branch_of(folder: Path) -> str | None:
    """The git branch that a folder is on; None: no repository, or no branch."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        try:
            if git.is_file():  # a work tree of its own
                git = parent / _text_in(git).removeprefix("gitdir:").strip()
            head = _text_in(git / "HEAD")
        except (OSError, UnicodeDecodeError):
            continue
        return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/") else None
    return None


def _text_in(path: Path) -> str:
    """How a small file begins. What somebody else unpacked may be a pipe, or endless. Raises
    OSError, UnicodeDecodeError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        return file.read(_MAX_HEAD).decode().strip()


async def _whole(
    transcripts: Transcripts, session: str, author: str | None, *, allow_gaps: bool
) -> tuple[str, Assembly]:
    """Id and file of `session`, which is as in `of_session`. Raises UserError, Incomplete."""

    async def read(id_: str) -> Assembly:
        found = await transcripts.assembly(id_, author)
        if not found.lines:
            raise NoSession(id_, "archive of session")
        return found

    id_, assembly = await of_session(transcripts, session, read)
    if assembly.notice is not None:
        click.echo(assembly.notice, err=True)
    if assembly.faults and not allow_gaps:
        for fault in assembly.faults:
            click.echo(printable(fault), err=True)
        raise Incomplete(id_, assembly)
    return id_, assembly


def _print(data: bytes) -> None:
    """Byte for byte; on a terminal without what would control it."""
    if sys.stdout.isatty():
        lines = data.decode(errors="replace").split("\n")
        click.echo("\n".join(map(printable, lines)), nl=False)
    else:
        click.echo(data, nl=False)


def _summary(assembly: Assembly, data: bytes) -> str:
    size = f"{counted(len(assembly.lines), 'line')}, {counted(len(data), 'byte')}"
    return f"{size}, sha256 {sha256(data).hexdigest()}"

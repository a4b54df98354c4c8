"""`rookery chat`, and `rookery group say`, `read`, `pin`: messages of a group, in the terminal.

Signs as the owner. Invariants: what others wrote is printed without control characters, and no line
of a message begins like the head of one, also where a terminal wraps it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

import click
from msgspec import structs

from relay.cli.connect import with_client, with_settings
from relay.cli.group_view import group_argument, is_seen, no_group, report, send_edit
from relay.cli.line_editor import LineEditor, raw_terminal
from relay.cli.names import Names, read_names
from relay.cli.options import (
    Server,
    chopped,
    client_options,
    limit_option,
    print_json,
    printable,
    server_options,
    text_of_stdin,
)
from relay.cli.tables import print_nothing_found
from relay.client import PublishRefused
from relay.client.client import MESSAGES
from relay.client.settings import Actor
from relay.errors import UserError
from relay.groups.actions import PIN_TAGS
from relay.memory.bounded import BoundedDict
from relay.memory.fence import shell_word
from relay.memory.junk import known_formats
from relay.memory.snowclaw.history import oldest_first, replied_to
from relay.nostr import kinds
from relay.nostr.event import is_hex64

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from relay.client import Client
    from relay.client.settings import ClientSettings
    from relay.nostr.event import Event

_MAX_SHOWN: Final = 10_000
"""Number of messages kept for `/reply`."""
_INDENT: Final = "    "
_KEPT_BACK: Final = "it has what looks like a secret key or a password"
_HELP: Final = (
    "/reply N TEXT answers message N · /quit ends · //text sends a text that begins with /"
)


@click.command("say", epilog="Example: rookery group say tea 'Who has the kettle?'")
@group_argument
@click.argument("text", metavar="TEXT")
@click.option("--reply", "reply", metavar="EVENT", help="Id of the message to answer.")
@click.option("--anyway", is_flag=True, help="Send the text even if it looks like a secret.")
@client_options
def say(
    group_id: str,
    text: str,
    reply: str | None,
    server: Server,
    *,
    anyway: bool,
    as_json: bool,
) -> None:
    """Send a message (kind 9). TEXT `-` is read from stdin."""
    if text == "-":
        text = text_of_stdin(sys.stdin.read).rstrip("\n")
    if not text.strip():
        raise click.BadParameter("is empty", param_hint="TEXT")
    if not anyway and _has_secret(text):
        raise UserError(f"not sent: {_KEPT_BACK}; --anyway sends it")

    async def work(client: Client) -> Event:
        answered = None if reply is None else await _message(client, group_id, reply)
        return await client.say(group_id, text, answered)

    event = with_client(Actor.OWNER, server, work)
    report(event, event.id, as_json=as_json)


@click.command("read", epilog="Example: rookery group read tea --limit 50")
@group_argument
@limit_option(20, 1_000)
@click.option("--ids", "with_ids", is_flag=True, help="Print the id before each message.")
@client_options
def read(group_id: str, limit: int, server: Server, *, with_ids: bool, as_json: bool) -> None:
    """Print the newest messages, oldest first."""

    async def work(client: Client, settings: ClientSettings) -> tuple[list[Event], Names]:
        found = await _newest(client, group_id, limit)
        if not found and not await is_seen(client, group_id):
            raise no_group(group_id)
        return found, await read_names(client, settings, [event.pubkey for event in found])

    found, names = with_settings(Actor.OWNER, server, work)
    if as_json:
        print_json(
            [
                {
                    "id": event.id,
                    "kind": event.kind,
                    "pubkey": event.pubkey,
                    "name": names.of(event.pubkey),
                    "created_at": event.created_at,
                    "reply_to": replied_to(event),
                    "content": event.content,
                }
                for event in found
            ]
        )
        return
    if not found:
        print_nothing_found(f"`rookery group say {shell_word(group_id)} TEXT` sends a message")
    shown = _Numbers()
    for event in found:
        click.echo(_fitted((f"{event.id}  " if with_ids else "") + shown.added(event, names)))


@click.command("pin", epilog="Example: rookery group pin tea 5f1c…")
@group_argument
@click.argument("events", metavar="[EVENT...]", nargs=-1)
@click.option("--remove", is_flag=True, help="Remove these pins instead.")
@client_options
def pin(
    group_id: str,
    events: tuple[str, ...],
    server: Server,
    *,
    remove: bool,
    as_json: bool,
) -> None:
    """Pin messages by id; without EVENT list the pins."""
    if remove and not events:
        raise click.UsageError("--remove: give the ids of the pins to remove")
    if bad := [event for event in events if not is_hex64(event)]:
        raise click.BadParameter(
            f"{printable(bad[0])[:80]!r} is no event id (64 lowercase hex)", param_hint="EVENT"
        )

    async def work(client: Client) -> list[list[str]]:
        wanted: list[list[str]] = []

        async def made() -> tuple[Event | None, list[list[str]]]:
            nonlocal wanted
            listed = await _pin_list(client, group_id)
            pins = _pins(listed)
            named = dict.fromkeys(events)
            wanted = [tag for tag in pins if tag[1] not in named]
            if remove and len(pins) - len(wanted) < len(named):
                raise UserError(
                    f"not pinned in {group_id}: see `rookery group pin {shell_word(group_id)}`"
                )
            if not remove:
                wanted += [["e", event] for event in named]
            return listed, [["h", group_id], *wanted]

        if not events:
            return _pins(await _pin_list(client, group_id))
        await send_edit(client, kinds.UPDATE_PINS, made)
        return wanted

    pins = with_client(Actor.OWNER, server, work)
    if as_json:
        print_json({"group": group_id, "pins": pins})
    elif not pins:
        print_nothing_found()
    else:
        click.echo("\n".join(printable(tag[1]) for tag in pins))


@click.command("chat", epilog="Example: rookery chat tea")
@click.argument("group_id", metavar="GROUP")
@limit_option(20, 1_000)
@server_options
def chat(group_id: str, limit: int, server: Server) -> int:
    """Read and write messages of a group; `/reply N TEXT` answers message N, `/quit` ends.

    Without a terminal: prints the newest messages, then sends each line of stdin.
    """

    async def work(client: Client, settings: ClientSettings) -> int:
        return await _Conversation(client, settings, group_id).hold(limit)

    return with_settings(Actor.OWNER, server, work)


class _Numbers:
    """Messages shown so far, by the numbers for `/reply`."""

    def __init__(self) -> None:
        self._numbers: BoundedDict[str, int] = BoundedDict(_MAX_SHOWN)
        self._events: BoundedDict[int, Event] = BoundedDict(_MAX_SHOWN)
        """Without what anybody may have made large: an answer needs the id and the author."""
        self._last = 0

    def __contains__(self, event: Event) -> bool:
        return event.id in self._numbers

    def __getitem__(self, number: int) -> Event:
        """Raises KeyError."""
        return self._events[number]

    def added(self, event: Event, names: Names) -> str:
        """The lines that show a message."""
        self._last += 1
        self._numbers[event.id] = self._last
        self._events[self._last] = structs.replace(event, tags=[], content="", raw=b"")
        replied = replied_to(event)
        answer = ""
        if replied is not None:
            number = self._numbers.get(replied)
            answer = " → an earlier message" if number is None else f" → [{number}]"
        first, *rest = map(printable, event.content.rstrip().split("\n"))
        head = f"[{self._last}] {_time(event.created_at)} {names.shown(event.pubkey)}{answer}"
        return "\n".join([f"{head}: {first}", *(f"{_INDENT}{line}" for line in rest)])


class _Conversation:
    """One run of `rookery chat`."""

    def __init__(self, client: Client, settings: ClientSettings, group_id: str) -> None:
        self._client = client
        self._settings = settings
        self._group = group_id
        self._shown = _Numbers()
        self._names = Names(settings.file.names)
        self._asked: BoundedDict[str, None] = BoundedDict(_MAX_SHOWN)
        """Keys whose profile was looked up."""
        self._editor: LineEditor | None = None
        self._refused = 0

    async def hold(self, limit: int) -> int:
        """The exit code: 1 if a message was refused."""
        wanted = {"kinds": list(MESSAGES), "#h": [self._group], "limit": limit}
        async with self._client.subscribe(wanted) as events:
            stored = [event async for event in events.stored()]
            await self._learn(stored)
            for event in oldest_first(stored):
                self._show(event)
            if sys.stdin.isatty() and sys.stdout.isatty():
                with raw_terminal():
                    self._editor = LineEditor()
                    self._print(_HELP)
                    await self._both(events, self._editor.lines())
            else:
                await self._both(events, _piped_lines())
        return 1 if self._refused else 0

    async def _both(self, events: AsyncIterator[Event], lines: AsyncIterator[str]) -> None:
        """Shows what arrives and sends what is typed, until the end of input."""
        showing = asyncio.create_task(self._show_live(events))
        typing = asyncio.create_task(self._send_lines(lines))
        try:
            done, _ = await asyncio.wait([showing, typing], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (showing, typing):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _show_live(self, events: AsyncIterator[Event]) -> None:
        async for event in events:
            if event not in self._shown:
                await self._learn([event])
                self._show(event)

    async def _send_lines(self, lines: AsyncIterator[str]) -> None:
        async for line in lines:
            text, answered = line.strip(), None
            if text in ("/quit", "/exit"):
                return
            if text == "/help":
                self._print(_HELP)
                continue
            if text.startswith("//"):
                text = text[1:]
            elif text.startswith("/"):
                try:
                    text, answered = self._reply_in(text)
                except UserError as error:
                    self._complain(str(error))
                    continue
            if text:
                await self._send(text, answered)

    def _reply_in(self, command: str) -> tuple[str, Event]:
        """Raises UserError."""
        word, _, rest = command.partition(" ")
        if word != "/reply":
            raise UserError(f"unknown command {word[:40]}; {_HELP}")
        number, _, text = rest.strip().partition(" ")
        if not (number.isascii() and number.isdigit() and text.strip()):
            raise UserError("/reply needs the number of a message and a text: /reply 3 thanks")
        try:
            return text.strip(), self._shown[int(number[:9])]
        except KeyError:
            raise UserError(f"there is no message [{number[:9]}]") from None

    async def _send(self, text: str, answered: Event | None) -> None:
        if _has_secret(text):
            self._complain(f"not sent: {_KEPT_BACK}; `rookery group say --anyway` sends it")
            return
        try:
            event = await self._client.say(self._group, text, answered)
        except PublishRefused as refused:
            self._complain(f"not sent: {refused}")
            return
        if event not in self._shown:
            await self._learn([event])
            self._show(event)

    async def _learn(self, events: Sequence[Event]) -> None:
        """Look up the names of authors, each once."""
        new = {event.pubkey for event in events} - set(self._asked)
        if new:
            self._asked.update(dict.fromkeys(new))
            found = await read_names(self._client, self._settings, sorted(new))
            self._names = Names(self._names.own, {**self._names.profiles, **found.profiles})

    def _show(self, event: Event) -> None:
        # Looking up a name may have taken so long that it was shown meanwhile.
        if event not in self._shown:
            self._print(_fitted(self._shown.added(event, self._names)))

    def _complain(self, text: str) -> None:
        self._refused += 1
        if self._editor is None:
            click.echo(printable(text), err=True)
        else:
            self._editor.print_above(printable(text))

    def _print(self, text: str) -> None:
        if self._editor is None:
            click.echo(text)
        else:
            self._editor.print_above(text)


def _fitted(text: str) -> str:
    return wrapped(text, get_terminal_size().columns) if sys.stdout.isatty() else text


def wrapped(text: str, columns: int) -> str:
    """The lines cut as a terminal of this width would, the rest of each indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        first, *rest = chopped(line, columns)
        rest = chopped("".join(rest), max(20, columns - len(_INDENT))) if rest else []
        lines += [first, *(f"{_INDENT}{each}" for each in rest)]
    return "\n".join(lines)


def _has_secret(text: str) -> bool:
    return known_formats().filtered(text).is_redacted


async def _piped_lines() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(text_of_stdin, sys.stdin.readline):
        yield line


async def _newest(client: Client, group_id: str, limit: int) -> list[Event]:
    """Oldest first."""
    wanted = {"kinds": list(MESSAGES), "#h": [group_id], "limit": limit}
    found = await client.query(wanted)
    return oldest_first(found)


async def _message(client: Client, group_id: str, event_id: str) -> Event:
    """Raises UserError."""
    if not is_hex64(event_id):
        raise click.BadParameter(
            f"{printable(event_id)[:80]!r} is no event id (64 lowercase hex)", param_hint="--reply"
        )
    found = await client.query({"ids": [event_id], "#h": [group_id]})
    if not found:
        raise UserError(f"no message {event_id} in {group_id} is readable with this key")
    return found[0]


async def _pin_list(client: Client, group_id: str) -> Event | None:
    """The 39005."""
    found = await client.query({"kinds": [kinds.GROUP_PINS], "#d": [group_id], "limit": 1})
    return found[0] if found else None


def _pins(listed: Event | None) -> list[list[str]]:
    tags = () if listed is None else listed.tags
    return [list(tag) for tag in tags if len(tag) > 1 and tag[0] in PIN_TAGS]


def _time(at: int) -> str:
    """Local date and time."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return str(at)

"""What plug-ins are asked and what they say, whichever way they are reached."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from relay.errors import Prefix
from relay.nostr import kinds
from relay.nostr.event import Event
from relay.verdict import Arrival, Origin, Reject

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("rookery.plugins")

_WORDS: Final = {word.value: word for word in Prefix}
_MAX_TEXT: Final = 500
"""Characters of what an author is told."""
_MAX_LINE: Final = 300
"""Characters of a line in the log."""
_LINES, _LINES_S = 20, 60.0

Rule = Callable[[Event, Arrival], Reject | Awaitable[Reject | None] | None]
"""A Python plug-in: why this event may not be written, or None. Plain or `async`."""


class Asked(NamedTuple):
    """One event, and how it came."""

    event: Event
    arrival: Arrival


class Answering(Protocol):
    """One plug-in at work, asked about one batch at a time."""

    async def answers(self, asked: Sequence[Asked]) -> list[Reject | None]:
        """One for each event, within the deadline; `error:` where there is no answer."""

    async def stop(self) -> None:
        """End it; whoever waits for an answer gets `error:`. May be called again."""


class Standing(Protocol):
    """Hears how a plug-in is."""

    def is_well(self, name: str) -> None: ...

    def has_failed(self, name: str, why: str) -> None:
        """It owed an answer or could not be started; it is asked again when `is_well`."""


def may_object(event: Event, origin: Origin) -> bool:
    """Whether plug-ins are asked about it.

    Not about a request to vanish, which no rule of writing may block (N62-11), and not about one's
    own history: `import --trust` lifts the rules about authors, and nobody can tell whether a
    plug-in is one (contract §2).
    """
    return event.kind != kinds.VANISH and origin is not Origin.TRUSTED_IMPORT


def rule_name(plugin: str) -> str:
    """How it is called where rules are counted and explained."""
    return f'plug-in "{plugin}"'


def objection(text: str, plugin: str = "") -> Reject:
    """What a plug-in tells the author: `text` keeps its word of NIP-01, else it is `blocked:`."""
    word, colon, rest = text.partition(":")
    prefix = _WORDS.get(word.strip()) if colon else None
    said = (text if prefix is None else rest).strip()[:_MAX_TEXT]
    return Reject(prefix or Prefix.BLOCKED, said or "not accepted", rule_name(plugin))


def no_answer(plugin: str) -> Reject:
    """What an author is told while a plug-in owes an answer; why is for the admin alone."""
    return Reject(
        Prefix.ERROR, "a plug-in of this relay does not answer, try again later", rule_name(plugin)
    )


def say(level: int, text: str, plugin: str) -> None:
    """A line of the log about a plug-in."""
    _log.log(level, "%s", text, extra={"plugin": plugin})


class Notes:
    """What a plug-in itself makes the log say: 20 lines a minute of 300 characters, the rest is
    counted."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin
        self._since = 0.0
        self._number = 0

    def add(self, level: int, text: str) -> None:
        now = monotonic()
        if now - self._since > _LINES_S:
            self._tell_left_out()
            self._since, self._number = now, 0
        self._number += 1
        if self._number <= _LINES:
            short = text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…"
            say(level, short, self._plugin)

    def _tell_left_out(self) -> None:
        if self._number > _LINES:
            left_out = self._number - _LINES
            say(logging.WARNING, f"{left_out} more lines were left out", self._plugin)

"""The interface of plug-ins: question, answer, health and log, for processes and functions
alike."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from relay.errors import Prefix, Reject
from relay.facts import Arrival, Origin
from relay.nostr import kinds
from relay.nostr.event import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("rookery.plugins")

_WORDS: Final = {word.value: word for word in Prefix}
_MAX_TEXT: Final = 500
"""Characters of a refusal text."""
_MAX_LINE: Final = 300
"""Characters of a log line."""
_LINES, _LINES_S = 20, 60.0

Rule = Callable[[Event, Arrival], Reject | Awaitable[Reject | None] | None]
"""A Python plug-in: gives the refusal of an event, or None. Plain or `async`."""


class Question(NamedTuple):
    """One event and its arrival."""

    event: Event
    arrival: Arrival


class RunningPlugin(Protocol):
    """One running plug-in; takes one batch at a time."""

    async def answers(self, questions: Sequence[Question]) -> list[Reject | None]:
        """One answer per event, within the deadline; `error:` where the plug-in gave none."""

    async def stop(self) -> None:
        """Stop it; pending questions get `error:`. Idempotent."""


class HealthReport(Protocol):
    """Called when a plug-in fails and when it recovers."""

    def recovered(self, name: str) -> None: ...

    def failed_with(self, name: str, why: str) -> None:
        """It gave no answer or could not be started, until `recovered` is called."""


_NOT_ASKED: Final = frozenset({kinds.VANISH, *kinds.MEMBERSHIP_REQUESTS})


def asks_plugins(event: Event, origin: Origin) -> bool:
    """Whether plug-ins are asked about the event. Not about a request to vanish, which no write
    rule may block (N62-11), a request to join the relay, whose code is secret, or a trusted import:
    `import --trust` skips rules about authors, and a plug-in may be one."""
    return event.kind not in _NOT_ASKED and not origin.is_trusted


def rule_name(plugin: str) -> str:
    """The rule name of a plug-in in metrics and explanations."""
    return f'plug-in "{plugin}"'


def objection(text: str, plugin: str = "") -> Reject:
    """A plug-in's text as a refusal; without a NIP-01 prefix it is `blocked:`."""
    word, colon, rest = text.partition(":")
    prefix = _WORDS.get(word.strip()) if colon else None
    reason = (text if prefix is None else rest).strip()[:_MAX_TEXT]
    return Reject(prefix or Prefix.BLOCKED, reason or "not accepted", rule_name(plugin))


def no_answer(plugin: str) -> Reject:
    """The refusal while a plug-in gives no answer; the cause goes to the admin's log only."""
    return Reject(
        Prefix.ERROR, "a plug-in of this relay does not answer, try again later", rule_name(plugin)
    )


def log_plugin(level: int, text: str, plugin: str) -> None:
    """Log a line about a plug-in."""
    _log.log(level, "%s", text, extra={"plugin": plugin})


class PluginLog:
    """Log output of a plug-in: at most 20 lines a minute of 300 characters; the rest is counted."""

    def __init__(self, plugin: str) -> None:
        self._plugin = plugin
        self._since = 0.0
        self._number = 0

    def add(self, level: int, text: str) -> None:
        now = monotonic()
        if now - self._since > _LINES_S:
            self._log_omitted()
            self._since, self._number = now, 0
        self._number += 1
        if self._number <= _LINES:
            short = text if len(text) <= _MAX_LINE else f"{text[:_MAX_LINE]}…"
            log_plugin(level, short, self._plugin)

    def _log_omitted(self) -> None:
        if self._number > _LINES:
            left_out = self._number - _LINES
            log_plugin(logging.WARNING, f"{left_out} more lines omitted", self._plugin)

"""What a relay owes for each frame, read from the frame alone, and whether it paid."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from relay.nostr import messages
from relay.nostr.event import is_hex64
from relay.nostr.filters import FilterTerms
from relay.nostr.messages import BadCount, BadEvent, BadQuery
from tests import cast
from tests.fuzz.thrown import now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fuzz.thrown import Frame

_LAST = "the last one"
_CLOSED = "after the last one"
_NOTHING = {"ids": ["0" * 64]}
_ANSWERED_VERBS = {
    "EOSE": "REQ",
    "CLOSED": "REQ",
    "COUNT": "REQ",
    "NEG-MSG": "NEG",
    "NEG-ERR": "NEG",
}
"""Frames that answer a message about an id, by what they answer."""


def _in_no_json(data: bytes) -> list[object] | None:
    """The message as far as it can be read: an EVENT's id, the id of a REQ or COUNT."""
    match messages.parse(data, FilterTerms(), 10):
        case BadEvent(id_):
            return ["EVENT", {"id": id_}]
        case BadCount(sub):
            return ["COUNT", sub]
        case BadQuery(sub):
            return ["REQ", sub]
        case _:
            return None


@dataclass
class Ledger:
    """The frames of one example, both ways.

    An EVENT or AUTH whose id can be read is owed one OK, a COUNT one answer; a REQ, NEG-OPEN or
    NEG-MSG one too, unless it was closed or replaced meanwhile; what is no message a NOTICE.
    """

    oks: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Of the messages about one id: ("REQ" | "NEG", id), how many at most."""
    is_open: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Every id that was named, and whether it was not closed after that."""
    notices: int = 0
    heard: list[list[Any]] = field(default_factory=list)

    def sent(self, frame: Frame) -> None:
        try:
            message = orjson.loads(frame.data) if frame.is_text else None
        except orjson.JSONDecodeError:
            message = _in_no_json(frame.data)
        match message:
            case ["PING" | "PONG", *_]:
                pass
            case ["EVENT" | "AUTH", {"id": str(id_)}, *_] if is_hex64(id_):
                self.oks[id_] += 1
            case ["REQ", str(sub), *_]:
                self.most["REQ", sub] += 1
                self.is_open["REQ", sub] = True
            case ["COUNT", str(sub), *_]:
                self.counts[sub] += 1
                self.most["REQ", sub] += 1
            case ["CLOSE", str(sub), *_]:
                self.is_open["REQ", sub] = False
            case ["NEG-OPEN" | "NEG-MSG", str(sub), *_]:
                self.most["NEG", sub] += 1
                self.is_open["NEG", sub] = True
            case ["NEG-CLOSE", str(sub), *_]:
                self.is_open["NEG", sub] = False
            case _:
                self.notices += 1

    def closing(self) -> list[bytes]:
        """What ends all that was opened; once `is_closed`, _NOTHING of it can come any more."""
        verbs = {"REQ": "CLOSE", "NEG": "NEG-CLOSE"}
        closes = [orjson.dumps([verbs[kind], sub]) for kind, sub in self.is_open]
        closes.append(orjson.dumps(["NEG-CLOSE", _LAST]))
        return [*closes, orjson.dumps(["COUNT", _CLOSED, _NOTHING])]

    def check(self) -> None:
        """Once everything that is owed must have come."""
        oks = Counter(message[1] for message in self.heard if message[0] == "OK")
        assert oks == self.oks, self.heard
        answers = Counter(
            (_ANSWERED_VERBS[message[0]], message[1])
            for message in self.heard
            if message[0] in _ANSWERED_VERBS
        )
        for named in answers.keys() | self.most.keys() | self.is_open.keys():
            least = int(self.is_open.get(named, False))
            if named[0] == "REQ":
                least += self.counts[named[1]]
            assert least <= answers[named] <= self.most[named], (named, self.heard)
        notices = [message for message in self.heard if message[0] == "NOTICE"]
        assert len(notices) == self.notices, self.heard
        for message in self.heard:
            self._check_form(message)

    def _check_form(self, message: list[Any]) -> None:
        match message:
            case ["EVENT", str(sub), dict(event)]:
                assert ("REQ", sub) in self.is_open, message
                assert is_hex64(event["id"])
            case ["OK", str(), bool(), str(text)]:
                assert not text.startswith("error:"), message
            case (
                ["CLOSED" | "NEG-ERR", str(), str(text)]
                | ["NEG-ERR", str(), str(text), int()]
                | ["NOTICE", str(text)]
            ):
                assert not text.startswith("error:"), message
                assert ": " in text, message
            case ["EOSE", str()] | ["COUNT", str(), {"count": int()}] | ["NEG-MSG", str(), str()]:
                pass
            case _:
                raise AssertionError(message)


def message_of(payload: bytes) -> list[Any]:
    """A frame of the relay's, read by another parser than its own, as UTF-8."""
    message = json.loads(payload.decode())
    assert isinstance(message, list)
    return message


class Marker:
    """An ordinary client's wishes, sent behind an example: once they are answered, so is it all.

    Events are answered in the order they came, counts when no REQ waits, sets one by one.
    """

    def __init__(self, number: int) -> None:
        self._event = cast.owner.sign(20001, [["n", str(number)]], "", now())
        self.frames = [
            b'["EVENT",' + self._event.raw + b"]",
            orjson.dumps(["COUNT", _LAST, _NOTHING]),
            orjson.dumps(["NEG-OPEN", _LAST, _NOTHING, "6100000200"]),
        ]
        self._owed = {("OK", self._event.id), ("COUNT", _LAST), ("NEG", _LAST)}
        self._topics = {*self._owed, ("COUNT", _CLOSED)}

    def is_answered(self, heard: Sequence[list[Any]]) -> bool:
        return self._owed <= {_topic(message) for message in heard}

    def is_closed(self, heard: Sequence[list[Any]]) -> bool:
        return ["COUNT", _CLOSED, {"count": 0}] in heard

    def is_about(self, message: list[Any]) -> bool:
        """An answer to it, or the event as it came to whoever asks for everything."""
        is_event = message[0] == "EVENT" and message[2]["id"] == self._event.id
        return is_event or _topic(message) in self._topics


def _topic(message: list[Any]) -> tuple[str, str]:
    """A set may be refused, for what may be read can have changed just now: that is an answer."""
    return "NEG" if message[0] in ("NEG-MSG", "NEG-ERR") else message[0], message[1]

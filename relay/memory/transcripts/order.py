"""The order of notes: by reply chain, and by time where the chain is broken (D-12, D-25)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from relay.memory.fields import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.nostr.event import Event

NO_SEQ: Final = 4_294_967_295
_SPOKEN: Final = frozenset({"user", "assistant", "tool_call", "tool_result"})


def order_of(event: Event) -> tuple[int, int, str]:
    """Sort key of notes by time: (milliseconds, seq, id)."""
    ms, seq = whole_number(event.tag("ms")), whole_number(event.tag("seq"))
    return (
        event.created_at * 1000 if ms is None else ms,
        NO_SEQ if seq is None else seq,
        event.id,
    )


@dataclass(frozen=True, slots=True)
class Ordered:
    """Notes in order, each once."""

    events: tuple[Event, ...]
    by_time: int
    """Number of notes placed by time alone: the note before is missing or not named."""
    is_chain: bool
    """Whether each note but the first is the only reply to the one before."""

    @property
    def notice(self) -> str | None:
        """What to tell a reader about the order."""
        if not self.by_time:
            return None
        notes = "1 note is" if self.by_time == 1 else f"{self.by_time} notes are"
        return f"the reply chain is broken: {notes} placed by time"


def ordered(events: Iterable[Event]) -> Ordered:
    """A note follows the one it replies to, whatever their times say. Replies to the same note, and
    parts of a broken chain, are merged by time; of one millisecond, part after part.
    """
    known = {event.id: event for event in sorted(events, key=order_of)}
    before = {id_: reply_target(event) for id_, event in known.items()}
    replies: dict[str, list[str]] = {}
    starts: list[str] = []
    for id_, target in before.items():
        if target is not None and target in known and target != id_:
            replies.setdefault(target, []).append(id_)
        else:
            starts.append(id_)
    # Where the time says nothing, a note that replies to none is the first.
    starts.sort(key=lambda id_: (*order_of(known[id_])[:2], before[id_] is not None, id_))
    keys = _keys(known, replies, starts)
    if len(keys) < len(known):  # a circle of replies, which hashes rule out
        keys |= _keys(known, {}, [id_ for id_ in known if id_ not in keys])
    chain = sorted(known, key=keys.__getitem__)
    return Ordered(
        tuple(known[id_] for id_ in chain),
        _placed_by_time([(known[id_], before[id_]) for id_ in starts]),
        len(starts) == 1 and all(len(found) == 1 for found in replies.values()),
    )


def reply_target(note: Event) -> str | None:
    """The note before (NIP-10): the `e` marked reply, else the one marked root, else the last."""
    found: dict[str, str] = {}
    for tag in note.tags:
        if tag[:1] == ["e"] and len(tag) > 1:
            found[tag[3] if len(tag) > 3 else ""] = tag[1]
    return found.get("reply") or found.get("root") or found.get("")


def _keys(
    known: Mapping[str, Event], replies: Mapping[str, list[str]], starts: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Sort key of each note below `starts`: (time, not before that of the note it replies to;
    position in its chain)."""
    keys: dict[str, tuple[int, int]] = {}
    waiting = [(id_, 0) for id_ in reversed(starts)]
    while waiting:
        id_, earliest = waiting.pop()
        if id_ in keys:
            continue
        ms = max(earliest, order_of(known[id_])[0])
        keys[id_] = ms, len(keys)
        waiting += [(reply, ms) for reply in reversed(replies.get(id_, ()))]
    return keys


def _placed_by_time(starts: Iterable[tuple[Event, str | None]]) -> int:
    """Of the notes that reply to none of the others, the number of those placed by time alone."""
    begun: set[str] = set()
    number = 0
    for note, target in starts:
        if target is None and note.pubkey not in begun:
            begun.add(note.pubkey)  # the first note of this author
        elif target is not None:
            number += 1
        else:
            is_line = note.tag("role") in _SPOKEN or note.has_tag("source-data")
            number += is_line and not note.has_tag("seq")
    return number

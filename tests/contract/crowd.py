"""Events and filters for the contract: every condition matches some events and not others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from relay.access.actors import Actors
from relay.access.read_rules import Match, ReadRule
from relay.access.visibility import Viewer, visibility_for
from relay.groups.group import Groups
from tests import cast
from tests.contract.writing import asked, in_order, unsigned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.access.visibility import Visibility
    from relay.facts import Who
    from relay.nostr.event import Event
    from relay.nostr.filters import Filter

on_module_loop = pytest.mark.asyncio(loop_scope="module")
"""Of every test that asks a store of its module."""

ALICE, BOB, CAROL = cast.alice.pubkey, cast.bob.pubkey, cast.carol.pubkey

ORDERED: Final[dict[str, dict[str, Any]]] = {
    "one kind": {"kinds": [1]},
    "kinds": {"kinds": [1, 7, 9]},
    "one author": {"authors": [ALICE]},
    "authors": {"authors": [ALICE, BOB, CAROL]},
    "authors and kinds": {"authors": [ALICE, BOB], "kinds": [1, 7]},
    "a tag": {"#t": ["a"]},
    "tags": {"#t": ["a", "b", "c"]},
    "two tag names": {"#t": ["a", "b"], "#k": ["a", "b"]},
    "a tag of an author": {"#t": ["a"], "authors": [ALICE]},
    "d": {"#d": ["snow:a", "snow:b"]},
    "d that begins": {"#d": ["snow:"], "kinds": [78, 30078]},
    "d that begins or is": {"#d": ["snow:", "other"], "kinds": [78, 30078], "authors": [BOB]},
    "time": {"since": 2, "until": 4},
    "kind and time": {"kinds": [1], "since": 2, "until": 4},
    "nothing asked": {},
}
"""Filters that match many events, each by another index."""

FILTERS: Final[dict[str, dict[str, Any]]] = {
    **ORDERED,
    "an id": {"ids": ["@5"]},
    "ids": {"ids": ["@5", "@6", "@40", "0" * 64]},
    "ids of an author": {"ids": ["@0", "@1", "@2", "@3"], "authors": [BOB]},
    "ids of a kind with a tag": {"ids": ["@0", "@1", "@2"], "kinds": [1, 9], "#t": ["a"]},
    "a strange author": {"authors": ["0" * 64]},
    "no such kind": {"kinds": [-1, 65535, 2**70]},
    "every kind": {"kinds": list(range(0, 65536, 1))},
    "since alone": {"since": 5},
    "until alone": {"until": 0},
    "no time at all": {"since": 4, "until": 3},
    "a value of no row": {"#t": ["z"]},
    "a letter of no row": {"#z": ["a"]},
    "upper case": {"#T": ["a"]},
    "hk": {"#hk": ["h1", "h2"]},
    "p": {"#p": [ALICE]},
    "p of an author": {"#p": [ALICE, CAROL], "authors": [BOB]},
    "e": {"#e": ["e" * 64]},
    "three tag names": {"#t": ["a", "b"], "#k": ["b", "a"], "#p": [ALICE]},
    "prefix value, but not of the kinds": {"#d": ["snow:"], "kinds": [1, 30078]},
    "prefix value without kinds": {"#d": ["snow:"]},
    "prefix of everything": {"#d": [":"], "kinds": [30078]},
    "prefixes that overlap": {"#d": ["snow:", "snow:a:"], "kinds": [30078]},
    "prefix beside a tag": {"#d": ["snow:"], "kinds": [30078], "#t": ["a"]},
    "prefix beside a rare tag": {"#d": ["snow:"], "kinds": [30078], "#e": ["e" * 64]},
    "prefix and ids": {"#d": ["snow:"], "kinds": [30078], "ids": ["@110", "@111", "@112", "@3"]},
    "prefix of an author": {"#d": ["snow:"], "kinds": [30078], "authors": [ALICE]},
    "prefix and time": {"#d": ["snow:"], "kinds": [30078], "since": 1, "until": 3},
    "many authors": {"authors": [f"{n:064x}" for n in range(100)] + [BOB, ALICE]},
    "many kinds": {"kinds": list(range(2, 60))},
    "many values": {"#t": [str(n) for n in range(100)] + ["a", "b"]},
    "all at once": {
        "ids": ["@0", "@1", "@2", "@3", "@4"],
        "authors": [ALICE, BOB],
        "kinds": [1, 7],
        "since": 0,
        "until": 5,
        "#t": ["a", "b"],
        "#k": ["a"],
    },
}
"""`@N` is the id of the Nth event of the wide crowd."""


def a_crowd() -> list[Event]:
    """Many events with many ties; every condition matches some and not others."""
    events = []
    for number in range(120):
        who = (cast.alice, cast.bob, cast.carol, cast.dave)[number % 4]
        kind = (1, 7, 9, 4, 78)[number % 5]
        tags = [["t", "abcd"[number % 3]], ["k", "abcd"[number // 3 % 4]]]
        if number % 2:
            tags.append(["t", "b"])
        if kind == 78:
            tags.append(["d", ("snow:a", "snow:b", "snow:", "other", "snowman")[number // 5 % 5]])
            tags.append(["hk", str(number)])
        events.append(unsigned(who, kind, tags, str(number), number * 7 % 6))
    return [event for event in events if event.kind != 78] + [
        unsigned(who, 30078, [["d", d], ["t", "a"]], at=at)
        for who in (cast.alice, cast.bob)
        for at, d in enumerate(["snow:a", "snow:b", "snow:", "other", "snow", "snow;", "sno"])
    ]


def filters_for(crowd: Sequence[Event]) -> Iterator[tuple[str, Filter]]:
    """The names and filters of `FILTERS`."""
    for name, conditions in FILTERS.items():
        if "ids" in conditions:
            ids = [crowd[int(id_[1:])].id if id_[0] == "@" else id_ for id_ in conditions["ids"]]
            yield name, asked(**conditions | {"ids": ids})
        else:
            yield name, asked(**conditions)


def a_wide_crowd() -> list[Event]:
    return [
        *a_crowd(),
        unsigned(cast.bob, 1, [["p", ALICE], ["t", "a"], ["k", "b"]]),
        unsigned(cast.bob, 1, [["p", ALICE, "wss://x"], ["p", CAROL], ["p", ALICE]]),
        unsigned(cast.bob, 1, [["e", "e" * 64, "", "reply"]]),
        unsigned(cast.bob, 30078, [["d", "snow:x"], ["e", "e" * 64], ["t", "a"]]),
        unsigned(cast.bob, 30078, [["d", "snow:a:b"]]),
        unsigned(cast.bob, 30078, [["d", ":"], ["t", "a"]]),
        unsigned(cast.carol, 30078, [["e", "e" * 64], ["t", "a"]]),
        unsigned(cast.bob, 1, [["T", "a"]]),
        unsigned(cast.bob, 1, [["hk", "h1"], ["t"], [], ["t", ""]]),
        unsigned(cast.bob, 1, [["hk", "h2"], ["hk", "h1"], ["x", "h1"], ["long", "h1"]]),
        unsigned(cast.bob, 65535),
        unsigned(cast.bob, 0),
    ]


def matching(filter_: Filter, events: Sequence[Event]) -> list[bytes]:
    return in_order(*[event for event in events if filter_.matches(event)])


def seen_by(
    viewer: Viewer, *rules: ReadRule, actors: Actors | None = None, groups: Groups | None = None
) -> Visibility:
    return visibility_for(viewer, rules, actors or Actors(), groups or Groups())


def keys(*pubkeys: str) -> Viewer:
    return Viewer(frozenset(pubkeys))


def rule(match: Match, *readers: Who, **more: object) -> ReadRule:
    return ReadRule("a rule", match, frozenset(readers), **more)  # type: ignore[arg-type]

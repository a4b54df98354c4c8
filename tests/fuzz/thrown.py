"""What hypothesis throws at a relay: frames that are right, nearly right, and nothing at all.

Most begin as a sentence that makes sense in the small world below (two groups, five people), so
that the later checks are reached; then each part may be bent. `Frame` is what stands on the wire;
`Login` is made to a frame when the challenge is known.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from hypothesis import strategies as st

from tests import cast
from tests.unit.nostr.strategies import json_values

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

T = TypeVar("T")

ACTORS = [cast.owner, cast.robot, cast.alice, cast.bob, cast.stranger]
GROUPS = ["tea", "den"]
"""`tea` is private and alice is in it; `den` is open to all."""


def now() -> int:
    """Events are made at the time of their relay: it takes neither old nor early ones."""
    return int(time.time())


@dataclass(frozen=True)
class Frame:
    """One message to the relay."""

    data: bytes
    is_text: bool = True


@dataclass(frozen=True)
class Login:
    """An AUTH; its challenge is the connection's own, or is not."""

    who: SecretKey
    relay: str
    challenge: str | None
    kind: int

    def frame(self, challenge: str) -> Frame:
        tags = [["relay", self.relay], ["challenge", self.challenge or challenge]]
        event = self.who.sign(self.kind, tags, "", now())
        return Frame(b'["AUTH",' + event.raw + b"]")


Thrown = Frame | Login

# -- the small world -------------------------------------------------------------------------------

BEGINNING = 1_700_000_000
NOTES = [who.sign(1, [["t", "tea"]], "hello", BEGINNING) for who in ACTORS]


def setting() -> list[Event]:
    """What a relay under fuzz is told before anything else."""

    def by_owner(kind: int, group: str, *tags: list[str]) -> Event:
        return cast.owner.sign(kind, [["h", group], *tags], "", now())

    tea, den = GROUPS
    return [
        *NOTES,
        by_owner(9007, tea),
        by_owner(9002, tea, ["name", "Tea room"], ["private"], ["restricted"], ["closed"]),
        by_owner(9000, tea, ["p", cast.alice.pubkey], ["p", cast.robot.pubkey, "agent"]),
        by_owner(9007, den),
        by_owner(9002, den, ["name", "Den"]),
        by_owner(9000, den, ["p", cast.bob.pubkey, "admin"]),
    ]


def weighed(*choices: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """One of these, each as often as its weight says; `one_of` counts every branch once."""
    table = [choice for weight, choice in choices for _ in range(weight)]
    return st.integers(0, len(table) - 1).flatmap(lambda number: table[number])


# -- words -----------------------------------------------------------------------------------------

keys = st.sampled_from(ACTORS)
pubkeys = keys.map(lambda key: key.pubkey)
hex64 = st.sampled_from([event.id for event in NOTES]) | st.binary(min_size=32, max_size=32).map(
    bytes.hex
)
words = st.sampled_from(["", "x", "tea", "snow:", '"', "\x00", "é\u2028", "🫖", "a" * 300, "-1"])
odd_texts = words | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
groups = st.sampled_from([*GROUPS, *GROUPS, "none", "", "_", "a b", "x" * 200])
kinds = st.sampled_from(
    [
        0,
        1,
        3,
        4,
        5,
        6,
        7,
        9,
        11,
        12,
        13,
        14,
        16,
        62,
        78,
        1059,
        1063,
        1984,
        9000,
        9001,
        9002,
        9005,
        9007,
        9008,
        9009,
        9010,
        9021,
        9022,
        9735,
        10002,
        10009,
        10050,
        20001,
        21059,
        22242,
        24133,
        27235,
        30023,
        30078,
        30093,
        30094,
        30095,
        39000,
        39001,
        39002,
        39003,
        39004,
        40000,
        65535,
    ]
) | st.integers(0, 65535)
whole = st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**40]) | st.integers()
moments = st.integers(-5, 5) | st.sampled_from([-(10**9), -700, 800, 1000, 10**12])
"""Seconds from now."""

tags = st.one_of(
    st.builds(lambda group: ["h", group], groups),
    st.builds(lambda key: ["p", key], pubkeys),
    st.builds(lambda key, role: ["p", key, role], pubkeys, st.sampled_from(["admin", "agent"])),
    st.builds(lambda id_: ["e", id_], hex64),
    st.builds(lambda kind, key, d: ["a", f"{kind}:{key}:{d}"], kinds, pubkeys, odd_texts),
    st.builds(lambda id_: ["previous", id_[:8]], hex64),
    st.builds(lambda at: ["expiration", str(now() + at)], moments),
    st.builds(lambda number: ["expiration", str(number)], whole),
    st.builds(
        lambda name, text: [name, text],
        st.sampled_from(
            [
                "d",
                "k",
                "name",
                "about",
                "code",
                "relay",
                "hk",
                "v",
                "ts",
                "t",
                "u",
                "method",
                "nonce",
                "parent",
                "child",
                "scope",
                "visibility",
                "expiration",
                "pin",
                "supported_kinds",
                "alt",
            ]
        ),
        odd_texts,
    ),
    st.sampled_from(
        [
            ["-"],
            [],
            [""],
            ["h"],
            ["p"],
            ["e", ""],
            ["d"],
            ["private"],
            ["public"],
            ["closed"],
            ["open"],
            ["hidden"],
            ["restricted"],
            ["relay", "ALL_RELAYS"],
            ["nonce", "1", "20"],
        ]
    ),
    st.lists(odd_texts, max_size=4),
)

# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence:
    """An event to be: who says it, and its parts."""

    who: SecretKey
    kind: int
    tags: list[list[str]]
    content: str = ""


_plain = st.builds(
    lambda who, kind, text: Sentence(who, kind, [], text),
    keys,
    st.sampled_from([0, 1, 3, 7, 10002, 20001, 30023]),
    odd_texts,
)
_in_a_group = st.builds(
    lambda there, kind, text: Sentence(there[0], kind, [["h", there[1]]], text),
    st.sampled_from(
        [
            (cast.owner, "tea"),
            (cast.robot, "tea"),
            (cast.alice, "tea"),
            (cast.stranger, "tea"),
            (cast.owner, "den"),
            (cast.bob, "den"),
            (cast.alice, "den"),
            (cast.stranger, "den"),
        ]
    ),
    st.sampled_from([9, 11, 1, 7, 30023]),
    odd_texts,
)
_moderation = st.builds(
    lambda there, kind, who, tag: Sentence(
        there[0], kind, [["h", there[1]], ["p", who.pubkey], *tag]
    ),
    st.sampled_from(
        [
            (cast.owner, "tea"),
            (cast.owner, "den"),
            (cast.bob, "den"),
            (cast.alice, "tea"),
        ]
    ),
    st.sampled_from([9000, 9000, 9001, 9002, 9005, 9009, 9010]),
    keys,
    st.lists(tags, max_size=1),
)
_coming_and_going = st.builds(
    lambda who, kind, group: Sentence(who, kind, [["h", group]]),
    keys,
    st.sampled_from([9021, 9022]),
    groups,
)
_new_groups = st.builds(
    lambda who, number: Sentence(who, 9007, [["h", f"g{number}"]]), keys, st.integers(0, 10**6)
)
_addressed = st.builds(
    lambda who, kind, d, text: Sentence(who, kind, [["d", d]], text),
    st.sampled_from([cast.robot, cast.robot, cast.owner, cast.alice]),
    st.sampled_from([30078, 30078, 78, 30093, 30095]),
    st.sampled_from(
        [
            "snowclaw:memory:core:x",
            "snowclaw:config:global",
            "app:1",
            "tea:preference",
        ]
    ),
    odd_texts,
)
_deletions = st.builds(lambda who, id_: Sentence(who, 5, [["e", id_]]), keys, hex64)
_wraps = st.builds(
    lambda who, to, kind: Sentence(who, kind, [["p", to]], "AAAA"),
    keys,
    pubkeys,
    st.sampled_from([4, 1059, 24133, 21059]),
)
# Whoever vanishes is gone for good: mostly somebody whom nobody will miss.
_leaving = st.builds(
    lambda kind, tag: Sentence(cast.person("leaver"), kind, [tag]),
    st.sampled_from([62, 62, 1, 9021]),
    st.sampled_from([["relay", "ALL_RELAYS"], ["relay", "ws://elsewhere"], ["h", "den"]]),
)
_any = st.builds(Sentence, keys, kinds, st.lists(tags, max_size=3), odd_texts)
sentences: st.SearchStrategy[Sentence] = weighed(
    (6, _plain),
    (8, _in_a_group),
    (3, _moderation),
    (2, _coming_and_going),
    (2, _new_groups),
    (4, _addressed),
    (2, _deletions),
    (2, _wraps),
    (1, _leaving),
    (4, _any),
)

_numbers = count()


def _said(sentence: Sentence, more: list[list[str]], at: int, kind: int | None) -> Event:
    """Another event each time: hypothesis repeats itself more than people do."""
    every = [*sentence.tags, *more, ["n", str(next(_numbers))]]
    return sentence.who.sign(
        sentence.kind if kind is None else kind, every, sentence.content, now() + at
    )


_rarely_another_kind = weighed((9, st.none()), (1, kinds))
_soon = st.integers(-5, 5)
events: st.SearchStrategy[Event] = weighed(
    (10, st.builds(_said, sentences, st.just([]), _soon, st.none())),
    (5, st.builds(_said, sentences, st.lists(tags, max_size=1), _soon, _rarely_another_kind)),
    (2, st.builds(_said, sentences, st.lists(tags, max_size=6), moments, _rarely_another_kind)),
    (1, st.sampled_from(NOTES)),
)
"""Right in shape, id and signature."""

_FIELDS = ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"]


def _bent(event: Event, field: str, value: object, bend: str) -> object:
    fields: dict[str, object] = orjson.loads(event.raw)
    if bend == "drop":
        del fields[field]
    elif bend == "add":
        fields[f"{field}2"] = value
    else:
        fields[field] = value
    return fields


bent_events = st.builds(
    _bent,
    events,
    st.sampled_from(_FIELDS),
    json_values | whole | odd_texts | hex64,
    st.sampled_from(["set", "set", "drop", "add"]),
)

# -- filters ---------------------------------------------------------------------------------------

_conditions: dict[str, st.SearchStrategy[Any]] = {
    "ids": st.lists(hex64, max_size=3),
    "authors": st.lists(pubkeys, max_size=3),
    "kinds": st.lists(kinds, max_size=4),
    "since": moments.map(lambda at: now() + at) | whole,
    "until": moments.map(lambda at: now() + at) | whole,
    "limit": st.integers(0, 20) | whole,
    "search": st.sampled_from(["tea", "hello x"])
    | odd_texts
    | st.sampled_from(
        [
            '"tea',
            "NEAR(",
            "a OR",
            "*",
            "kind:1 tea",
            "-",
            "^x",
            "tea AND NOT",
            "{a b}: c",
            "''",
            "col:val",
            "a\x00b",
            '"a" "b',
            "(" * 300,
            "language:en x",
            "+",
            "ⅷ 茶",
        ]
    ),
    "#h": st.lists(groups, max_size=2),
    "#p": st.lists(pubkeys, max_size=2),
    "#e": st.lists(hex64, max_size=2),
    "#d": st.lists(st.sampled_from(["snowclaw:", "tea:preference", "tea", ""]), max_size=2),
    "#t": st.lists(odd_texts, max_size=2),
    "#hk": st.lists(odd_texts, max_size=2),
    "#a": st.lists(odd_texts, max_size=2),
}


def _filter_of(conditions: list[tuple[str, object]]) -> dict[str, object]:
    return dict(conditions)


_one = [
    st.tuples(st.just(name), values) for name, values in _conditions.items()
]  # cheaper than `fixed_dictionaries`, which draws for each key that is not there
good_filters = st.lists(st.one_of(_one), max_size=3).map(_filter_of)
odd_filters = st.one_of(
    json_values,
    st.builds(
        lambda filter_, key, value: {**filter_, key: value},
        good_filters,
        st.sampled_from([*_conditions, "#", "#ab", "x", "#1", ""]) | odd_texts,
        json_values | whole,
    ),
)
filters = weighed((3, good_filters), (1, odd_filters))

# -- frames ----------------------------------------------------------------------------------------

subs = st.sampled_from(["a", "b", "c", "a" * 64])
odd_subs = weighed((4, subs), (1, st.sampled_from(["", "a" * 65, "\x00", "🫖"])), (1, json_values))


def _encoded(value: object) -> bytes:
    """As another client's library might write it: with escapes, or with spaces."""
    return json.dumps(value, ensure_ascii=True).encode()


def _array(*values: object) -> Frame:
    return Frame(_encoded(list(values)))


publishes = st.builds(lambda event: Frame(b'["EVENT",' + event.raw + b"]"), events)
queries = st.builds(
    lambda verb, sub, asked: _array(verb, sub, *asked),
    st.sampled_from(["REQ", "REQ", "COUNT"]),
    subs,
    st.lists(good_filters, min_size=1, max_size=3),
)
odd_queries = st.builds(
    lambda verb, sub, asked: _array(verb, sub, *asked),
    st.sampled_from(["REQ", "COUNT"]),
    odd_subs,
    st.lists(filters, max_size=4),
)
closes = st.builds(lambda sub: _array("CLOSE", sub), odd_subs)

# A message of NIP-77 is hex: a protocol byte, then bounds and modes, by varints.
_neg_messages = st.one_of(
    st.sampled_from(["61", "6100000200", "610000", "60", "62000000", "", "6", "zz", "61" * 2000]),
    st.binary(max_size=40).map(lambda tail: "61" + tail.hex()),
    st.builds(
        lambda ids: "61" + "0000" + "02" + f"{len(ids):02x}" + "".join(ids),
        st.lists(hex64, max_size=3),
    ),
    st.builds(lambda print_: "61" + "0000" + "01" + print_, hex64.map(lambda text: text[:32])),
)
negentropies = st.one_of(
    st.builds(
        lambda sub, filter_, said: _array("NEG-OPEN", sub, filter_, said),
        subs,
        good_filters,
        _neg_messages,
    ),
    st.builds(
        lambda sub, filter_, said: _array("NEG-OPEN", sub, filter_, said),
        odd_subs,
        filters,
        _neg_messages | json_values,
    ),
    st.builds(lambda sub, said: _array("NEG-MSG", sub, said), odd_subs, _neg_messages),
    st.builds(lambda sub: _array("NEG-CLOSE", sub), odd_subs),
)
bent_publishes = st.builds(
    lambda verb, fields: _array(verb, fields), st.sampled_from(["EVENT", "AUTH"]), bent_events
)
logins = st.builds(
    Login,
    keys,
    st.sampled_from(["HERE", "HERE", "HERE", "ws://elsewhere", "", "http://[", "é"]),
    st.sampled_from([None, None, None, "another"]),
    st.sampled_from([22242, 22242, 22242, 1]),
)
nonsense = st.one_of(
    json_values.map(_encoded).map(Frame),
    st.lists(json_values, max_size=4).map(_encoded).map(Frame),
    st.builds(
        lambda verb, rest: _array(verb, *rest),
        st.sampled_from(["EVENT", "REQ", "COUNT", "CLOSE", "AUTH", "NEG-OPEN", "OK", "event", ""]),
        st.lists(json_values, max_size=3),
    ),
    st.binary(max_size=40).map(Frame),
    st.builds(Frame, st.binary(max_size=40), st.just(False)),  # noqa: FBT003
    st.sampled_from(
        [
            b"",
            b" ",
            b"\x00",
            b'\xef\xbb\xbf["CLOSE","a"]',
            b'["REQ","\\ud800",{}]',
            b"[" * 5000,
            b"[" * 900 + b"]" * 900,
            b'["REQ","a",' + b'{"a":' * 500,
            b'["CLOSE","a"]["CLOSE","a"]',
            b'["REQ","a",{"since":' + b"9" * 5000 + b"}]",
            b'["REQ","a",{"limit":1e999}]',
            b'["REQ","a",{"limit":NaN}]',
            b'["REQ","a",{"kinds":[1],"kinds":[2]}]',
            b'["REQ","\xff",{}]',
            b'["COUNT","a",{"#t":["\\u0000"]}]',
            b'["EVENT",{"id":"a","id":"b"}]',
            b"\r\n",
        ]
    ).map(Frame),
)


def _torn(frame: Frame, where: int, what: bytes, length: int) -> Frame:
    """The bytes with a piece replaced, from somewhere on."""
    at = where % (len(frame.data) + 1)
    return Frame(frame.data[:at] + what + frame.data[at + length :], frame.is_text)


_PIECES = [
    b"",
    b"",
    b"\x00",
    b"\xff",
    b"[",
    b"]",
    b"{",
    b'"',
    b",",
    b"\\",
    b"9" * 30,
    b"\\ud800",
    b"null",
    b"-",
    b"1e400",
    "é".encode(),
    b"\xed\xa0\x80",
]
torn = st.builds(
    _torn,
    publishes | queries | negentropies | closes,
    st.integers(0, 2000),
    st.sampled_from(_PIECES) | st.binary(max_size=3),
    st.sampled_from([0, 1, 1, 8, 10**6]),
)

frames: st.SearchStrategy[Frame] = weighed(
    (10, publishes),
    (5, queries),
    (2, odd_queries),
    (1, closes),
    (2, negentropies),
    (2, bent_publishes),
    (2, nonsense),
    (3, torn),
)
thrown: st.SearchStrategy[Thrown] = weighed((14, frames), (1, logins))


def ok_reply(thing: Thrown, challenge: str, url: str) -> Frame:
    """The frame, now that it is known where it goes."""
    if isinstance(thing, Frame):
        return thing
    here = Login(thing.who, url, thing.challenge, thing.kind) if thing.relay == "HERE" else thing
    return here.frame(challenge)

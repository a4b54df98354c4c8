"""What was published, and who may read it: the left side of the leak table.

Written from the numbered statements and the memory rules, not from the relay's read rules. A word
stands for keys; who holds one of them reads, unless a key of theirs is banned:

    everyone    with or without a login        group     everyone, of a guarded group its insiders
    insiders    members of the row's group     visible   everyone, of a hidden group its insiders
    admins      who leads it (N29-110)         owner     an owner, and the relay's own key
    author      who signed it                  named     whom a `p` tag names
    known       owners, agents and members of any group        agents    who the policies list
    trusted     a connection from a trusted address            nobody
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from relay.nostr.kinds import GROUP_MEMBER_NOTICES
from tests import cast
from tests.leaks.people import (
    AGENTS,
    ENDS,
    FLAGS,
    HIDDEN,
    JOINABLE,
    KEYS,
    KNOWN,
    MEMBERS,
    OWNERS,
    PUBLIC,
    VIEWERS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

EVERYONE: Final = frozenset(VIEWERS)
PENDING: Final = (False, "restricted: pending review")
TAKEN: Final = (True, "")


SEARCHED: Final = frozenset({1, 9, 11, 1111, 1984, 30023})
"""Kinds whose whole content is found by a search, for those who may read it."""


class Life(Enum):
    STAYS = "is stored and stays"
    GOES = "is deleted, replaced, expired or vanished at the end"
    PASSES = "is ephemeral"


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to be read, and who may."""

    says: str
    proves: str
    event: Event
    readers: frozenset[str]
    """Viewers, of what is sent when it is accepted."""
    life: Life = Life.STAYS
    group: str | None = None
    only_by: frozenset[str] = frozenset()
    """Filter keys; given only to a filter that has one of them."""
    answer: tuple[bool, str] = TAKEN
    word: str = ""
    """The one word of its content and of its `t` tag that no other row has."""

    @property
    def is_searched(self) -> bool:
        """Whether a search for its word must find it."""
        return self.event.kind in SEARCHED and self.word in self.event.content

    def is_for(self, viewer: str, *, stored: bool) -> bool:
        """Whether it is sent to this viewer, live or stored."""
        return viewer in self.readers and (self.life is Life.STAYS or not stored)

    def is_given_to(self, filters: Sequence[dict[str, object]]) -> bool:
        """Whether these filters name what one must name to be given it."""
        return not self.only_by or any(self.only_by.intersection(filter_) for filter_ in filters)


def readers_of(words: str, event: Event, group: str | None) -> frozenset[str]:
    """The viewers that these words stand for."""
    keys: set[str] = set()
    trusted = False
    for word in words.split():
        match word:
            case "everyone":
                return unbanned(EVERYONE)
            case "group" if group in PUBLIC:
                return unbanned(EVERYONE)
            case "visible" if group is not None and group not in HIDDEN:
                return unbanned(EVERYONE)
            case "group" | "visible" | "insiders":
                keys |= MEMBERS[group or ""]
            case "admins":
                keys |= {"admin", "moderator"}
            case "owner":
                keys |= OWNERS
            case "author":
                keys |= {name for name, key in KEYS.items() if key.pubkey == event.pubkey}
            case "named":
                named = set(event.tag_values("p"))
                keys |= {name for name, key in KEYS.items() if key.pubkey in named}
            case "known":
                keys |= KNOWN | OWNERS
            case "agents":
                keys |= AGENTS
            case "trusted":
                trusted = True
            case "nobody":
                pass
            case _:
                raise AssertionError(word)
    return unbanned(
        name
        for name, viewer in VIEWERS.items()
        if keys.intersection(viewer.keys) or (trusted and viewer.is_trusted)
    )


def unbanned(viewers: Iterable[str]) -> frozenset[str]:
    """N86-11: who is banned reads nothing, whatever other key is on the connection."""
    return frozenset(name for name in viewers if not VIEWERS[name].is_banned)


SIGNED: Final = {
    39000: ("visible owner", "N29-97 N29-98"),
    39001: ("group owner", "N29-98"),
    39002: ("group owner", "N29-98"),
    39003: ("visible owner", "N29-98"),
    39005: ("group owner", "N29-98"),
    9000: ("group named owner", "N29-96"),
    9001: ("group named owner", "N29-96"),
    8000: ("known named", "N43-06"),
    8001: ("known named", "N43-06"),
    13534: ("known", "N43-06"),
    44100: ("named", "B-05"),
    44101: ("named", "B-05"),
}
"""What the relay signs by itself: kind → who reads it, and the statements."""
OF_THE_RELAY: Final = frozenset({8000, 8001, 13534})
"""Those about members of the relay."""


def signed_row(event: Event) -> Row:
    """The row of something that the relay signed."""
    words, proves = SIGNED[event.kind]
    if event.kind in OF_THE_RELAY:
        return Row(f"the relay's {event.kind}", proves, event, readers_of(words, event, None))
    if event.kind in GROUP_MEMBER_NOTICES:
        says = f"the relay's {event.kind} about {event.tag('h')}"
        return Row(says, proves, event, readers_of(words, event, None))
    group = event.tag("d") if event.kind >= 39000 else event.tag("h")
    assert group in FLAGS, event
    says = f"the relay's {event.kind} of {group}"
    return Row(says, proves, event, readers_of(words, event, group), group=group)


@dataclass
class Table:
    """Rows in the order in which they are published, a second apart."""

    start: int
    rows: list[Row] = field(default_factory=list)
    founded: int = 0
    """How many rows are the foundation."""

    def add(
        self,
        says: str,
        proves: str,
        kind: int,
        by: SecretKey,
        words: str,
        *,
        tags: Sequence[Sequence[str]] = (),
        content: str | None = None,
        h: str | None = None,
        life: Life = Life.STAYS,
        only_by: Sequence[str] = (),
        answer: tuple[bool, str] = TAKEN,
        group: str | None = None,
        is_plain: bool = False,
        as_in: str | None = None,
    ) -> Event:
        """`h`: its group, in a tag. `group`: the group it acts in without one.

        `as_in`: the group of what it points to, whose members the words are about.
        `is_plain`: with no tag of ours, since a rule counts them or the relay repeats them.
        """
        number = len(self.rows)
        word = f"w{number}x"
        own = [] if is_plain else [["t", word], ["r", f"https://{word}.example"]]
        named = [["h", h]] if h is not None else []
        text = f"psst {word}" if content is None else content
        event = by.sign(kind, [*named, *map(list, tags), *own], text, self.start + number)
        group = h if h is not None else group
        self.rows.append(
            Row(
                f"{says}{'' if h is None else f', {h}'}",
                proves,
                event,
                readers_of(words, event, as_in or group),
                life,
                group,
                frozenset(only_by),
                answer,
                "" if is_plain else word,
            )
        )
        return event

    @property
    def foundation(self) -> list[Row]:
        return self.rows[: self.founded]

    @property
    def happenings(self) -> list[Row]:
        """What is said once the groups are there, and the subscriptions open."""
        return self.rows[self.founded :]


def sealed() -> str:
    return base64.b64encode(bytes([2]) + bytes(120)).decode()


def p(*names: str) -> list[list[str]]:
    return [["p", KEYS[name].pubkey] for name in names]


def found(table: Table) -> None:
    """The groups and their people; bob is in all of them, dave was."""
    admin, add = cast.admin, table.add
    for group, flags in FLAGS.items():
        add(
            "the founding",
            "N29-90 N29-98",
            9007,
            admin,
            "group owner",
            h=group,
            tags=[[flag] for flag in flags],
            is_plain=True,
        )
        extra = {"square": ["carol"], "tea": ["tess"], "cave": ["cora"]}.get(group, [])
        add(
            "who is put in",
            "N29-96 N29-98",
            9000,
            admin,
            "group named owner",
            h=group,
            tags=[
                *p("alice", "mia", "dave", "bob", "hex", *extra),
                [*p("robot")[0], "agent"],
                [*p("moderator")[0], "moderator"],
            ],
            is_plain=True,
        )
        add("bob's own post", "N29-96", 9, cast.bob, "group owner", h=group)
        add("dave leaves", "N29-98", 9022, cast.dave, "group author owner", h=group, is_plain=True)
    for group, flags in ENDS.items():
        tags = [[flag] for flag in flags]
        add("the founding", "N29-124", 9007, admin, "owner", h=group, tags=tags, is_plain=True)
        for kind, names in ((9000, ("mia", "bob", "hex")), (9001, ("bob",))):
            add(
                "who was put in or taken out",
                "N29-124",
                kind,
                admin,
                "nobody",
                h=group,
                tags=p(*names),
                life=Life.GOES,
                is_plain=True,
            )
        add("a post", "N29-124", 9, admin, "nobody", h=group, life=Life.GOES)
    table.founded = len(table.rows)


def happen(table: Table, expires: int) -> None:
    """Everything else, one of each kind of secret. `expires`: when some of it does."""
    admin, add = cast.admin, table.add
    for group in FLAGS:
        add(
            "bob is thrown out",
            "N29-94 N29-96",
            9001,
            admin,
            "group named owner",
            h=group,
            tags=p("bob"),
            is_plain=True,
        )
    what_expires(table, [["expiration", str(expires)]])
    note = add("a note", "N01-70", 1, cast.alice, "everyone")
    for group in FLAGS:
        in_group(table, group, note)
    for group in ENDS:
        add("the end", "N29-127", 9008, admin, "group owner", h=group, is_plain=True)
    memory(table)
    personal(table)
    what_goes(table)
    for group in FLAGS:
        flags = [[flag] for flag in FLAGS[group]]
        add(
            "what it is called",
            "N29-98",
            9002,
            admin,
            "group owner",
            h=group,
            tags=[["name", "psst"], *flags],
            is_plain=True,
        )


def in_group(table: Table, group: str, note: Event) -> None:
    """What is said in a group; N29-90 holds for each of these rows beside what it names."""
    admin, alice, robot, add = cast.admin, cast.alice, cast.robot, table.add
    post = add("a post", "N29-90", 9, alice, "group owner", h=group, tags=p("rita"))
    add(
        "a comment",
        "N29-90",
        1111,
        KEYS["moderator"],
        "group owner",
        h=group,
        tags=p("bob", "dave"),
    )
    add("a note", "N29-90", 1, alice, "group owner", h=group, tags=[["e", note.id]])
    add(
        "a reaction", "N29-90", 7, robot, "group owner", h=group, tags=[["e", post.id], *p("alice")]
    )
    article = add(
        "an article", "N29-90", 30023, alice, "group owner", h=group, tags=[["d", f"{group}-a"]]
    )
    what_names_it(table, group, post, article)
    add("a protected post", "N70-06", 11, alice, "group owner", h=group, tags=[["-"]])
    add("a passing word", "N29-17", 20001, alice, "group owner", h=group, life=Life.PASSES)
    add("a report", "N29-100", 1984, alice, "admins author owner", h=group, tags=p("mia"))
    add(
        "an invite",
        "N29-38 N29-100",
        9009,
        admin,
        "admins owner",
        h=group,
        tags=[["code", f"sesame-{group}"]],
        is_plain=True,
    )
    add(
        "a wrap with h",
        "N59-11",
        1059,
        alice,
        "named" if group in PUBLIC else "nobody",
        h=group,
        tags=p("rita"),
        content=sealed(),
    )
    add(
        "a wrap with h to a member",
        "N59-11",
        1059,
        alice,
        "named",
        h=group,
        tags=p("mia"),
        content=sealed(),
    )
    add(
        "app data",
        "N78-03",
        30078,
        alice,
        "author insiders owner",
        h=group,
        tags=[["d", f"app-{group}"]],
    )
    add(
        "an app record",
        "N78-03",
        78,
        alice,
        "author insiders owner",
        h=group,
        tags=[["d", f"app-{group}"]],
    )
    trusted = " trusted" if group in PUBLIC else ""
    add(
        "group memory",
        "N29-90",
        30078,
        robot,
        "insiders author owner",
        h=group,
        tags=[["d", f"snowclaw:memory:group:{group}"]],
        content='{"purpose":"psst"}',
    )
    add(
        "a preference",
        "N29-90",
        30093,
        robot,
        "insiders author owner" + trusted,
        h=group,
        **preference(group, table),
    )
    add(
        "a transcript",
        "N29-90",
        1988,
        robot,
        "insiders author owner",
        h=group,
        tags=[["d", f"s-{group}"]],
    )
    add(
        "configuration labelled",
        "N29-92",
        30078,
        cast.owner,
        "owner agents",
        h=group,
        tags=[["d", f"snowclaw:config:group:{group}"]],
        content="{}",
    )
    about = f"Tea in {group} is best without milk."
    add("a memory entry", "X-22", 78, robot, "insiders author owner", h=group, **anamnesis(about))
    add(
        f"a vouch for it without h, {group}",
        "X-22",
        30078,
        cast.rover,
        "insiders author owner",
        as_in=group,
        **vouch(about),
    )
    regretted = add("a regretted post", "N09-13", 9, alice, "group owner", h=group, life=Life.GOES)
    add("its deletion, h", "N29-104", 5, alice, "group owner", h=group, tags=[["e", regretted.id]])
    taken_back = add(
        "a post taken back", "N09-13", 11, alice, "group owner", h=group, life=Life.GOES
    )
    add(
        f"its deletion without h, {group}",
        "N29-104",
        5,
        alice,
        "group author owner",
        tags=[["e", taken_back.id]],
        group=group,
    )
    bad = add("a bad post", "N29-50", 9, robot, "group owner", h=group, life=Life.GOES)
    add(
        "its 9005",
        "N29-104",
        9005,
        admin,
        "group owner",
        h=group,
        tags=[["e", bad.id]],
        is_plain=True,
    )
    add(
        "an article, older",
        "N01-46",
        30023,
        robot,
        "group owner",
        h=group,
        life=Life.GOES,
        tags=[["d", f"{group}-r"]],
    )
    add(
        "an article, newer",
        "N01-46",
        30023,
        robot,
        "group owner",
        h=group,
        tags=[["d", f"{group}-r"]],
    )
    add("pins", "N29-98", 9010, admin, "group owner", h=group, tags=[["e", post.id]], is_plain=True)
    if group in JOINABLE:
        add(
            "bob asks to come back",
            "N29-98",
            9021,
            cast.bob,
            "admins author owner",
            h=group,
            answer=PENDING,
            is_plain=True,
        )


def what_names_it(table: Table, group: str, post: Event, article: Event) -> None:
    """N29-106: without `h`, and read like what it names; N29-107: by a stranger, like any other."""
    alice, robot, stranger, add = cast.alice, cast.robot, KEYS["stranger"], table.add
    address = f"30023:{article.pubkey}:{article.d}"
    reaction = None
    for says, kind, by, words, tags in (
        ("a reaction", 7, robot, "group owner", [["e", post.id]]),
        ("a comment", 1111, alice, "group owner", [["A", address], ["E", article.id]]),
        ("a repost", 16, alice, "group owner", [["a", address], *p("rita")]),
        ("an edit", 40003, alice, "group owner", [["e", post.id]]),
        ("a report", 1984, robot, "admins author owner", [["e", post.id], *p("alice")]),
        ("a highlight", 9802, alice, "group owner", [["e", "b" * 64], ["e", post.id]]),
    ):
        made = add(f"{says} without h, {group}", "N29-106", kind, by, words, tags=tags, group=group)
        reaction = reaction or made
    assert reaction is not None
    add(
        f"a reaction to a reaction without h, {group}",
        "N29-106",
        7,
        alice,
        "group owner",
        tags=[["e", reaction.id]],
        group=group,
    )
    add(
        f"a word about it that passes, {group}",
        "N29-106",
        20007,
        alice,
        "group owner",
        tags=[["e", post.id]],
        life=Life.PASSES,
        group=group,
    )
    add(
        f"a stranger's reaction, {group}",
        "N29-107",
        7,
        stranger,
        "everyone",
        tags=[["e", post.id], ["a", address]],
        group=group if group in PUBLIC else None,
    )


def memory(table: Table) -> None:
    """Of records without `h`: the author and the owners."""
    robot, alice, owner, add = cast.robot, cast.alice, cast.owner, table.add
    add(
        "configuration",
        "N29-92",
        30078,
        owner,
        "owner agents",
        tags=[["d", "snowclaw:config:global"]],
        content="{}",
    )
    add(
        "user memory",
        "N78-03",
        30078,
        robot,
        "author owner",
        tags=[["d", f"snowclaw:memory:npub:{alice.pubkey}"], *p("alice")],
        content="{}",
    )
    add("agent memory", "N78-03", 30078, robot, "author owner", tags=[["d", "snowclaw:core:plan"]])
    add(
        "a preference without h",
        "N78-03",
        30093,
        robot,
        "author owner trusted",
        **preference("hk", table),
    )
    for kind, more in ((1988, []), (1989, [["source-data", "psst"]]), (31988, [])):
        add(
            f"a transcript, {kind}",
            "N78-03",
            kind,
            robot,
            "author owner",
            tags=[["d", f"s{kind}"], *more],
            content="",
        )
    add(
        "a document",
        "N78-03",
        30090,
        owner,
        "author owner trusted",
        tags=[["d", "doc"], ["k", "doc_manifest"]],
        content="{}",
    )
    for tier, words in (("public", "known"), ("private", "author owner")):
        fields = {"tier": tier, "model": "m", "confidence": "0.9", "source": "s", "version": "1"}
        add(
            f"collective memory, {tier}",
            "N78-03",
            30078,
            robot,
            words,
            tags=[
                ["d", f"snow:memory:{tier}"],
                *([f"snow:{key}", value] for key, value in fields.items()),
            ],
            content='{"summary":"s","detail":"d"}',
        )
    about = "Tea is best without milk."
    add("an entry for all here", "N78-03", 78, robot, "known", **anamnesis(about))
    add("a vouch for it", "X-22", 30078, cast.rover, "known", **vouch(about))
    add("a vouch for no entry", "X-22", 30078, cast.rover, "author owner", **vouch("No tea."))
    add(
        "nomen, private",
        "N78-03",
        31234,
        alice,
        "author owner",
        tags=[["d", "n1"], ["visibility", "private"]],
    )
    add(
        "nomen, personal",
        "N78-03",
        31234,
        alice,
        "author owner named",
        tags=[["d", "n2"], ["visibility", "personal"], ["scope", KEYS["rita"].pubkey], *p("rita")],
    )
    add("nomen, shared", "N78-03", 31234, alice, "known", tags=[["d", "n3"]])
    add(
        "a sealed envelope",
        "N59-04",
        1080,
        cast.person("pns"),
        "known",
        content=sealed(),
        only_by=["ids", "authors"],
    )


def personal(table: Table) -> None:
    """What has neither group nor agent."""
    alice, passing, add = cast.alice, cast.person("passing"), table.add
    add("own app data", "N78-03", 30078, alice, "author", tags=[["d", "mine"]])
    add("an own app record", "N78-03", 78, alice, "author", tags=[["d", "mine"]])
    add("a letter", "N59-12", 4, alice, "author named", tags=p("rita"), content="psst?iv=x")
    add("a gift wrap", "N59-03", 1059, passing, "named", tags=p("rita"), content=sealed())
    add(
        "a gift wrap to two",
        "N59-03",
        1059,
        passing,
        "named",
        tags=p("rita", "owner"),
        content=sealed(),
    )
    add("a gift wrap by a member", "N59-04", 1059, alice, "named", tags=p("rita"), content=sealed())
    add(
        "a protected wrap",
        "N59-11",
        1059,
        alice,
        "named",
        tags=[["-"], *p("rita")],
        content=sealed(),
    )
    add(
        "a passing wrap",
        "N59-03",
        21059,
        passing,
        "named",
        tags=p("rita"),
        content=sealed(),
        life=Life.PASSES,
    )
    add(
        "a signing call",
        "N46-03",
        24133,
        passing,
        "everyone",
        tags=p("rita"),
        content=sealed(),
        life=Life.PASSES,
        only_by=["authors", "#p"],
    )
    add("an engram", "B-01", 30174, alice, "author named", tags=[["d", "8c"], *p("rita")])
    add("a turn metric", "B-01", 44200, alice, "author named", tags=p("rita"), content=sealed())
    add("an observer frame", "B-01", 24200, alice, "author named", tags=p("rita"), life=Life.PASSES)
    add("a persona", "B-02", 30175, alice, "author", tags=[["d", "own"]])
    shared = [["d", "ours"], ["shared", "true"]]
    add("a shared persona", "B-02", 30175, alice, "everyone", tags=shared)
    add("a reminder", "B-04", 30300, alice, "author", tags=[["d", "tea time"]])
    add("a passing word", "N01-42", 20001, alice, "everyone", life=Life.PASSES)
    member = (True, "duplicate: you are already a member of this relay")
    claim = [["claim", "a code that alice was given"]]
    add("a claim", "N43-06", 28934, alice, "nobody", tags=claim, life=Life.PASSES, answer=member)
    stays = (
        "your access comes from a group or from the policy files; leave the groups with kind 9022"
    )
    add(
        "a request to leave the relay",
        "N43-06",
        28936,
        alice,
        "nobody",
        tags=[["-"]],
        life=Life.PASSES,
        answer=(False, f"restricted: {stays}"),
    )
    add("a protected note", "N70-06", 1, alice, "everyone", tags=[["-"]])
    add("a report without h", "N29-100", 1984, alice, "everyone", tags=p("mia"))
    add(
        "a deletion of letters",
        "N29-104",
        5,
        alice,
        "author owner",
        tags=[["e", "0" * 64], ["k", "4"]],
    )
    add(
        "a deletion that names a person",
        "N29-104",
        5,
        cast.robot,
        "author owner",
        tags=[["a", f"30078:{cast.robot.pubkey}:snowclaw:memory:npub:x"]],
    )
    add(
        "a deletion of a note to be",
        "N09-08",
        5,
        alice,
        "everyone",
        tags=[["e", "1" * 64], ["k", "1"]],
    )


def what_expires(table: Table, expires: list[list[str]]) -> None:
    alice, add = cast.alice, table.add
    for group in FLAGS:
        add(
            "a post that expires",
            "N40-02",
            9,
            alice,
            "group owner",
            h=group,
            life=Life.GOES,
            tags=expires,
        )
    add("a note that expires", "N40-02", 1, alice, "everyone", life=Life.GOES, tags=expires)
    add(
        "a wrap that expires",
        "N59-10",
        1059,
        alice,
        "named",
        life=Life.GOES,
        content=sealed(),
        tags=[*p("rita"), *expires],
    )


def what_goes(table: Table) -> None:
    """What is read while it is there and by nobody afterwards."""
    alice, gone, banned, add = cast.alice, cast.person("gone"), cast.person("banned"), table.add
    regretted = add(
        "own app data, regretted",
        "N09-13",
        30078,
        alice,
        "author",
        life=Life.GOES,
        tags=[["d", "gone"]],
    )
    add(
        "its deletion by address",
        "N29-104",
        5,
        alice,
        "author owner",
        tags=[["a", f"30078:{regretted.pubkey}:gone"]],
    )
    wrap = add(
        "a wrap that its recipient deletes",
        "N59-08",
        1059,
        alice,
        "named",
        life=Life.GOES,
        tags=p("rita"),
        content=sealed(),
    )
    add(
        "the deletion of the wrap",
        "N29-104",
        5,
        cast.person("rita"),
        "author owner",
        tags=[["e", wrap.id]],
    )
    note = add("a regretted note", "N09-13", 1, alice, "everyone", life=Life.GOES)
    add("its deletion", "N09-08", 5, alice, "everyone", tags=[["e", note.id], ["k", "1"]])
    add("a profile, older", "N01-46", 0, alice, "everyone", life=Life.GOES, content="{}")
    add("a profile, newer", "N01-46", 0, alice, "everyone", content="{}")
    add("a note by who vanishes", "N62-04", 1, gone, "everyone", life=Life.GOES)
    add(
        "a letter by who vanishes",
        "N62-04",
        4,
        gone,
        "named",
        life=Life.GOES,
        tags=p("rita"),
        content="psst?iv=x",
    )
    add("a request to vanish", "N62-08", 62, gone, "nobody", tags=[["relay", "ALL_RELAYS"]])
    add("a note by who is banned at the end", "N86-11", 1, banned, "everyone", life=Life.GOES)


def preference(hk: str, table: Table) -> dict[str, Any]:
    """Tags and content of an aman preference of the next row's time."""
    ts = table.start + len(table.rows)
    content = json.dumps({"history_key": hk, "preference": "psst", "updated_at": ts})
    tags = [
        ["d", f"{hk}:preference"],
        ["k", "aman_preference"],
        ["hk", hk],
        ["v", "1"],
        ["ts", str(ts)],
    ]
    return {"tags": tags, "content": content}


def anamnesis(text: str) -> dict[str, Any]:
    """Tags and content of a memory entry."""
    hash_ = sha256(text.encode()).hexdigest()
    content = {
        "content": text,
        "author": {"id": "robot", "name": "Robot"},
        "timestamp": "2026-02-02T16:00:00Z",
        "content_hash": hash_,
    }
    return {
        "tags": [["d", f"anamnesis:memory:{hash_}"], ["x", hash_]],
        "content": json.dumps(content),
    }


def vouch(text: str) -> dict[str, Any]:
    """Tags and content of a vouch for the entry that says this."""
    hash_ = sha256(text.encode()).hexdigest()
    content = {"id": "rover", "timestamp": "2026-02-02T17:00:00Z"}
    return {
        "tags": [["d", f"anamnesis:vouch:{hash_}"], ["x", hash_]],
        "content": json.dumps(content),
    }


def whole_table() -> Table:
    """All rows, as they would be published in 1970."""
    table = Table(0)
    found(table)
    happen(table, expires=2**40)
    return table


def statements() -> list[str]:
    """Ids of the statements that the rows name."""
    named = [row.proves for row in whole_table().rows] + [proves for _, proves in SIGNED.values()]
    return sorted({id_ for ids in named for id_ in ids.split()})

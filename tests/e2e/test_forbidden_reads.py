"""Every way out against every kind of secret: what each person gets is what the table says.

The table below is written from NIPS.md, MEMORY.md and the contract, not from the read rules.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests import cast
from tests.e2e.rookery import Rookery, Wire, connected, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PEOPLE: dict[str, tuple[SecretKey, ...]] = {
    "nobody": (), "stranger": (cast.stranger,), "bob": (cast.bob,), "carol": (cast.carol,),
    "dave": (cast.dave,), "alice": (cast.alice,), "robot": (cast.robot,), "rover": (cast.rover,),
    "admin": (cast.admin,), "owner": (cast.owner,), "bob and stranger": (cast.bob, cast.stranger),
    "stranger and alice": (cast.stranger, cast.alice),
}  # fmt: skip
"""Who reads. bob was thrown out of all groups, dave has left, carol is in the public one only."""
EVERYBODY = frozenset(PEOPLE)
MEMBERS = frozenset({"alice", "robot", "admin", "owner"})
RESTRICTED = ("tea", "cave", "attic")
FLAGS = {
    "square": [], "tea": ["private", "restricted", "closed"], "yard": ["private", "restricted"],
    "cave": ["private", "hidden", "restricted", "closed"], "attic": ["hidden", "closed"],
}  # fmt: skip
"""Groups by their flags; `hidden` implies what `private` does for reading."""


def with_company(people: frozenset[str]) -> frozenset[str]:
    """Whoever logs in with two keys reads what either may."""
    more = set(people)
    if people & {"bob", "stranger"}:
        more.add("bob and stranger")
    if people & {"alice", "stranger"}:
        more.add("stranger and alice")
    return frozenset(more)


@dataclass
class Row:
    event: Event
    readers: frozenset[str]
    says: str
    is_stored: bool = True


@dataclass
class Table:
    """What was published, and who may read it."""

    now: int
    rows: list[Row] = field(default_factory=list)

    def add(
        self, says: str, key: SecretKey, kind: int, tags: Sequence[Sequence[str]], content: str,
        *readers: str, **more: bool,
    ) -> Event:  # fmt: skip
        event = key.sign(kind, [list(tag) for tag in tags], content, self.now)
        self.rows.append(Row(event, with_company(frozenset(readers)), says, **more))
        return event

    def allowed(self, person: str, *, stored: bool = True) -> set[str]:
        return {
            row.event.id
            for row in self.rows
            if person in row.readers and (row.is_stored or not stored)
        }

    def explain(self, ids: set[str]) -> list[str]:
        return sorted(
            next((row.says for row in self.rows if row.event.id == id_), f"unknown {id_}")
            for id_ in ids
        )


def nip44() -> str:
    return base64.b64encode(bytes([2]) + bytes(120)).decode()


def secrets(now: int) -> Table:
    """One of everything that somebody may not read. The groups are there already."""
    t = Table(now)
    add = t.add
    owner, robot, alice, bob, admin, dave = (
        cast.owner, cast.robot, cast.alice, cast.bob, cast.admin, cast.dave
    )  # fmt: skip
    everybody = sorted(EVERYBODY)
    p_alice, p_bob = ["p", alice.pubkey], ["p", bob.pubkey]
    note = add("a note", alice, 1, [], "for all", *everybody)
    add("a post in the square", alice, 9, [["h", "square"]], "for all", *everybody)

    for group in RESTRICTED:
        h = ["h", group]
        add(f"a leave request in {group}", dave, 9022, [h], "", *MEMBERS, "dave")
        post = add(f"a post in {group}", alice, 9, [h, p_bob], "psst", *MEMBERS)
        add(f"a note in {group}", alice, 1, [h, ["e", note.id], ["t", "x"]], "psst", *MEMBERS)
        add(f"a reaction in {group}", robot, 7, [h, ["e", post.id], p_alice], "+", *MEMBERS)
        add(f"an article in {group}", alice, 30023, [h, ["d", f"{group}-a"]], "psst", *MEMBERS)
        add(f"app data in {group}", alice, 30078, [h, ["d", f"app-{group}"]], "psst", *MEMBERS)
        add(f"an app record in {group}", alice, 78, [h, ["d", f"app-{group}"]], "psst", *MEMBERS)
        add(
            f"group memory of {group}", robot, 30078,
            [["d", f"snowclaw:memory:group:{group}"], h], '{"purpose":"psst"}', *MEMBERS,
        )  # fmt: skip
        add(
            f"a preference in {group}", robot, 30093,
            [["d", f"{group}:preference"], ["k", "aman_preference"], ["hk", group], ["v", "1"],
             ["ts", str(now)], h],
            json.dumps({"history_key": group, "preference": "psst", "updated_at": now}), *MEMBERS,
        )  # fmt: skip
        add(f"a transcript in {group}", robot, 1988, [h, ["d", f"s-{group}"]], "psst", *MEMBERS)
        add(f"a report in {group}", alice, 1984, [h, p_bob], "bad", "alice", "admin", "owner")
        add(f"an invite to {group}", admin, 9009, [h, ["code", f"sesame-{group}"]], "",
            "admin", "owner")  # fmt: skip
        add(f"a passing word in {group}", alice, 20001, [h], "psst", *MEMBERS, is_stored=False)
        add(f"a wrap with h {group}", alice, 1059, [h, p_bob, p_alice], nip44(), "alice")
        regretted = add(f"a regretted post in {group}", alice, 9, [h], "regretted", *MEMBERS,
                        is_stored=False)  # fmt: skip
        add(f"a deletion in {group}, h", alice, 5, [h, ["e", regretted.id]], "", *MEMBERS)
        banned = add(f"a banned post in {group}", robot, 9, [h], "banned", *MEMBERS,
                     is_stored=False)  # fmt: skip
        add(f"a 9005 in {group}", admin, 9005, [h, ["e", banned.id]], "", *MEMBERS)
        taken_back = add(f"a taken back post in {group}", alice, 11, [h], "taken back", *MEMBERS,
                         is_stored=False)  # fmt: skip
        add(f"a deletion of a post in {group}", alice, 5, [["e", taken_back.id]], "", *MEMBERS)

    add("a request to come back", bob, 9021, [["h", "yard"]], "please", "bob", "admin", "owner")

    add("memory in a public group", robot, 30078,
        [["d", "snowclaw:memory:group:square"], ["h", "square"]], "{}", *MEMBERS, "carol")
    add("app data in a public group", alice, 30078, [["d", "sq"], ["h", "square"]], "x",
        *MEMBERS, "carol")  # fmt: skip
    add("configuration", owner, 30078, [["d", "snowclaw:config:global"]], "{}",
        "owner", "robot", "rover")  # fmt: skip
    add("configuration labelled tea", owner, 30078,
        [["d", "snowclaw:config:group:tea"], ["h", "tea"]], "{}", "owner", "robot", "rover")
    add("user memory", robot, 30078, [["d", f"snowclaw:memory:npub:{alice.pubkey}"], p_alice],
        "{}", "robot", "owner")  # fmt: skip
    add("agent memory", robot, 30078, [["d", "snowclaw:core:plan"]], "psst", "robot", "owner")
    add("a tool result", robot, 1988, [["d", "s"]], "psst", "robot", "owner")
    add("its source", robot, 1989, [["d", "s"], ["source-data", "psst"]], "", "robot", "owner")
    add("a session", robot, 31988, [["d", "s"]], "", "robot", "owner")
    add("a document", owner, 30090, [["d", "doc"], ["k", "doc_manifest"]], "{}", "owner")
    known = ("owner", "robot", "rover", "alice", "carol", "admin")
    for tier, readers in (("public", known), ("private", ("robot", "owner"))):
        more = {"tier": tier, "model": "m", "confidence": "0.9", "source": "s", "version": "1"}
        tags = [["d", f"snow:memory:{tier}"], *([f"snow:{key}", more[key]] for key in more)]
        add(f"collective memory, {tier}", robot, 30078, tags, '{"summary":"s","detail":"d"}',
            *readers)  # fmt: skip
    add("nomen, private", alice, 31234, [["d", "n1"], ["visibility", "private"]], "",
        "alice", "owner")  # fmt: skip
    add("nomen, to bob", alice, 31234, [["d", "n2"], ["visibility", "personal"],
        ["scope", bob.pubkey]], "", "alice", "owner", "bob")  # fmt: skip
    add("nomen, shared", alice, 31234, [["d", "n3"]], "", *known)
    add("own app data", alice, 30078, [["d", "mine"]], "psst", "alice")
    add("an own app record", alice, 78, [["d", "mine"]], "psst", "alice")
    add("a letter to bob", alice, 4, [p_bob], "psst", "alice", "bob")
    add("a gift wrap to alice", cast.person("throwaway"), 1059, [p_alice], nip44(), "alice")
    add("a passing wrap to bob", cast.person("throwaway"), 21059, [p_bob], nip44(), "bob",
        is_stored=False)  # fmt: skip
    add("own app data, regretted", alice, 30078, [["d", "gone"]], "regretted", "alice",
        is_stored=False)  # fmt: skip
    address = f"30078:{alice.pubkey}:gone"
    add("a deletion of own app data", alice, 5, [["a", address]], "", "alice", "owner")
    add("a deletion of letters", alice, 5, [["e", "0" * 64], ["k", "4"]], "", "alice", "owner")
    add("a deletion of a note to be", alice, 5, [["e", "1" * 64], ["k", "1"]], "", *everybody)
    return t


WIDE: list[list[dict[str, Any]]] = [
    [{}],
    [{"since": 1}],
    [{"kinds": [1, 4, 5, 7, 9, 11, 78, 1059, 1984, 1988, 1989, 20001, 21059, 24133]}],
    [{"kinds": list(range(9000, 9023))}],
    [{"kinds": [30023, 30078, 30090, 30093, 31234, 31988, *range(39000, 39006)]}],
    *[[{"kinds": [kind]}] for kind in (4, 5, 9, 78, 1059, 9021, 9009, 9005, 30078, 39000, 39002)],
    *[[{"#h": [group]}] for group in ("tea", "cave", "attic", "yard")],
    [{"#h": ["tea", "cave", "attic", "yard", "square"]}],
    [{"kinds": [9], "#h": ["tea", "square"]}],
    [{"#d": ["tea", "cave", "attic", "mine", "gone", "s", "doc", "n1", "n2", "n3"]}],
    [{"kinds": [39000, 39001, 39002, 39003], "#d": ["cave"]}],
    [{"kinds": [30078], "#d": ["snowclaw:"]}],
    [{"kinds": [30078, 78], "#d": ["snowclaw:memory:", "snowclaw:config:", "snow:memory:"]}],
    [{"kinds": [30078], "#d": ["snowclaw:config:global"], "limit": 1}],
    [{"#hk": ["tea", "cave", "attic"]}],
    [{"#t": ["x"]}],
    [{"#k": ["4", "1", "30078", "aman_preference"]}],
    [{"#code": ["sesame-tea"]}],
    *[[{"authors": [key.pubkey]}] for key in (cast.alice, cast.robot, cast.owner, cast.admin)],
    *[[{"#p": [key.pubkey]}] for key in (cast.alice, cast.bob)],
    [{"authors": [cast.alice.pubkey], "kinds": [4, 30078]}, {"#p": [cast.bob.pubkey]}],
    [{"kinds": [9], "#h": ["tea"]}, {"kinds": [39000]}],
    [{"kinds": [9], "limit": 1}, {"kinds": [30078], "limit": 1}, {"kinds": [1059], "limit": 1}],
    [{"#a": [f"30078:{cast.alice.pubkey}:gone"]}],
]


class Stage:
    def __init__(self, rookery: Rookery, stack: contextlib.AsyncExitStack) -> None:
        self.rookery = rookery
        self.stack = stack
        self.now = int(time.time())

    async def enter(self, *keys: SecretKey) -> Wire:
        wire = await self.stack.enter_async_context(connected(self.rookery.url))
        for key in keys:
            await wire.log_in(key, self.rookery.url, int(time.time()))
        return wire

    async def say(
        self, key: SecretKey, kind: int, *tags: Sequence[str], content: str = ""
    ) -> Event:
        event = key.sign(kind, [list(tag) for tag in tags], content, self.now)
        assert await self.publisher.publish(event) == (True, ""), event
        return event

    async def make_groups(self) -> None:
        self.publisher = await self.enter(cast.robot)
        admin = cast.admin
        for group, flags in FLAGS.items():
            h = ["h", group]
            await self.say(admin, 9007, h, *([flag] for flag in flags))
            await self.say(admin, 9000, h, ["p", cast.alice.pubkey], ["p", cast.dave.pubkey],
                           ["p", cast.robot.pubkey, "agent"], ["p", cast.bob.pubkey])  # fmt: skip
            await self.say(admin, 9001, h, ["p", cast.bob.pubkey])
        await self.say(admin, 9000, ["h", "square"], ["p", cast.carol.pubkey])
        for group in ("square", "yard"):
            await self.say(admin, 9001, ["h", group], ["p", cast.dave.pubkey])


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with Rookery(tmp_path / "data") as rookery, contextlib.AsyncExitStack() as stack:
        await rookery.init(
            "--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey, "--agent",
            cast.rover.pubkey, "--preset", "open",
        )  # fmt: skip
        await rookery.start()
        stage = Stage(rookery, stack)
        await stage.make_groups()
        yield stage
        await stack.aclose()
        assert await rookery.stop() == 0
    print(*rookery.lines, sep="\n")
    assert "Traceback" not in "\n".join(rookery.lines)


async def publish_table(stage: Stage, table: Table) -> None:
    for row in table.rows:
        answer = await stage.publisher.publish(row.event)
        pending = (False, "restricted: pending review")
        assert answer == (pending if row.event.kind == 9021 else (True, "")), (row.says, answer)


async def until_marker(wire: Wire, marker: Event, *subs: str) -> dict[str, set[str]]:
    """What each subscription got until all of them got the marker."""
    got: dict[str, set[str]] = {sub: set() for sub in subs}
    while not all(marker.id in ids for ids in got.values()):
        frame = await wire.receive()
        assert frame[0] in ("EVENT", "EOSE"), frame
        if frame[0] == "EVENT":
            got[frame[1]].add(frame[2]["id"])
    return got


async def count(wire: Wire, *filters: dict[str, Any]) -> int | str:
    await wire.send("COUNT", "c", *filters)
    frame = await wire.receive()
    return frame[2]["count"] if frame[0] == "COUNT" else frame[2]


async def ask(wire: Wire, *filters: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Stored rows, and the reason of a CLOSED."""
    await wire.send("REQ", "q", *filters)
    rows = []
    while True:
        frame = await wire.receive()
        if frame[:2] == ["EVENT", "q"]:
            rows.append(frame[2])
        elif frame == ["EOSE", "q"]:
            await wire.send("CLOSE", "q")
            return rows, ""
        elif frame[:2] == ["CLOSED", "q"]:
            return rows, frame[2]


async def test_nobody_reads_what_the_table_does_not_give_them(stage: Stage) -> None:
    table = secrets(stage.now)
    everything = [row.event.id for row in table.rows]
    live: dict[str, Wire] = {}
    for name, keys in PEOPLE.items():
        # The subscription is there before the login; rights are those at the time of delivery.
        wire = live[name] = await stage.enter()
        await wire.send("REQ", "all", {"since": stage.now - 5, "limit": 0})
        assert await wire.receive() == ["EOSE", "all"]
        await wire.send("REQ", "ids", {"ids": [*everything, "f" * 64], "limit": 0}, {"kinds": [1]})
        while (await wire.receive())[0] == "EVENT":
            pass
        for key in keys:
            await wire.log_in(key, stage.rookery.url, int(time.time()))
    await publish_table(stage, table)
    marker = await stage.say(cast.alice, 1, content="marker")

    faults = []
    for name, wire in live.items():
        got = await until_marker(wire, marker, "all", "ids")
        allowed = table.allowed(name, stored=False)
        for sub in ("all", "ids"):
            seen = got[sub] & set(everything)
            if leaked := table.explain(seen - allowed):
                faults.append(f"{name}, live, {sub}: got {leaked}")
            if missing := table.explain(allowed - seen):
                faults.append(f"{name}, live, {sub}: lacks {missing}")

    by_id = {row.event.id: row for row in table.rows}
    for name, keys in PEOPLE.items():
        wire = await stage.enter(*keys)
        allowed = table.allowed(name)
        found = await wire.query_ids(everything)
        if found != allowed:
            faults.append(f"{name}, ids: got {table.explain(found - allowed)}, "
                          f"lacks {table.explain(allowed - found)}")  # fmt: skip
        for id_ in everything:  # one by one, as a guess would be made
            rows, closed = await ask(wire, {"ids": [id_]})
            assert closed == "", (name, by_id[id_].says, closed)
            if (len(rows) == 1) is not (id_ in allowed):
                faults.append(f"{name}, one id: {by_id[id_].says}")
        for filters in WIDE:
            if "#code" in filters[0]:
                _, closed = await ask(wire, *filters)
                assert closed.startswith("unsupported:")
                continue
            rows, closed = await ask(wire, *filters)
            ids = {row["id"] for row in rows}
            if leaked := table.explain((ids & by_id.keys()) - allowed):
                faults.append(f"{name}, {filters}: got {leaked}")
            faults += _strangers_among(name, rows)
            if not any("limit" in filter_ for filter_ in filters):
                number = await count(wire, *filters)
                if closed:
                    assert number == closed, (name, filters, number)
                elif number != len(rows):
                    faults.append(f"{name}, COUNT {filters}: {number}, but {len(rows)} rows")
            if closed:
                assert closed.startswith("restricted:" if keys else "auth-required:"), closed
    assert not faults, "\n".join(faults)


def _strangers_among(name: str, rows: list[dict[str, Any]]) -> list[str]:
    """Traces of groups in what the relay itself or the admin wrote, which the table has not."""
    if name in MEMBERS | {"stranger and alice"}:
        return []
    faults = []
    for row in rows:
        group = next((tag[1] for tag in row["tags"] if tag[0] in "dh" and tag[1] in FLAGS), None)
        kind = row["kind"]
        if group is None or group == "square" or not (9000 <= kind < 9021 or kind >= 39000):
            continue
        own = any(
            tag[:2] == ["p", key.pubkey] for tag in row["tags"] for key in PEOPLE[name]
        ) and kind in (9000, 9001)
        public = kind in (39000, 39003) and group in ("tea", "yard")
        if not own and not public:
            faults.append(f"{name} sees a {kind} of {group}")
    return faults


# -- a hidden group is a group that never was -----------------------------------------------------


ASKED: list[list[dict[str, Any]]] = [
    [{"#h": ["?"]}],
    [{"kinds": [9], "#h": ["?"]}],
    [{"kinds": [9], "#h": ["?"], "limit": 0}],
    [{"kinds": [30078], "#h": ["?"]}],
    [{"kinds": [39000], "#h": ["?"]}],
    [{"kinds": [9021], "#h": ["?"]}],
    [{"kinds": [9], "#h": ["?", "square"]}],
    [{"kinds": [9], "#h": ["?"]}, {"kinds": [9], "#h": ["tea"]}],
    [{"kinds": [39000], "#d": ["?"]}],
    [{"kinds": [39001, 39002, 39003, 39005], "#d": ["?"]}],
    [{"#d": ["?"]}],
    [{"kinds": [30078], "#d": ["snowclaw:memory:group:?"]}],
    [{"kinds": [30078], "#d": ["snowclaw:memory:group:?"], "#h": ["?"]}],
    [{"kinds": [30093], "#hk": ["?"]}],
]


@pytest.mark.parametrize("person", ["nobody", "stranger", "carol", "rover"])
@pytest.mark.parametrize("hidden", ["cave", "attic"])
async def test_a_hidden_group_answers_as_one_that_never_was(
    stage: Stage, person: str, hidden: str
) -> None:
    table = secrets(stage.now)
    await publish_table(stage, table)
    wire = await stage.enter(*PEOPLE[person])
    for filters in ASKED:
        answers = []
        for group in (hidden, "nowhere"):
            asked = json.loads(json.dumps(filters).replace("?", group))
            answers.append((await ask(wire, *asked), await count(wire, *asked)))
        assert answers[0] == answers[1], filters
    key = PEOPLE[person][0] if PEOPLE[person] else cast.person("unknown")
    there = next(row.event for row in table.rows if row.says == f"a post in {hidden}")
    for kind, tags in writes(there.id):
        answers = []
        for group in (hidden, "nowhere"):
            own = [[value.replace("?", group) for value in tag] for tag in tags]
            event = key.sign(kind, [["h", group], *own], "", stage.now)
            answers.append(await wire.publish(event))
        assert answers[0] == answers[1], (kind, tags)
        assert answers[0][0] is False, (kind, tags, "was taken")


def writes(known_id: str) -> list[tuple[int, list[list[str]]]]:
    p_self, p_alice = ["p", cast.stranger.pubkey], ["p", cast.alice.pubkey]
    known, unknown = ["e", known_id], ["e", "a" * 64]
    return [
        (9, []), (1, []), (11, []), (7, [known]), (7, [unknown]), (1984, [p_alice]),
        (1059, [p_alice]),
        (5, [known]), (5, [unknown]), (20001, []), (30023, [["d", "x"]]), (30078, [["d", "x"]]),
        (78, [["d", "x"]]), (0, []), (9, [["previous", known_id[:8]]]), (9, [["previous", "zz"]]),
        (9, [["-"]]), (9000, [p_self]), (9000, [p_alice]), (9000, []), (9001, [p_alice]),
        (9001, [p_self]), (9002, []), (9002, [["name", "mine"], ["public"]]), (9005, [known]),
        (9005, [unknown]), (9008, []), (9009, [["code", "long enough"]]),
        (9009, [["code", "sesame-cave"]]), (9010, [known]), (9021, []),
        (9021, [["code", "wrong code"]]),
        (9021, [["previous", known_id[:8]]]), (9021, [["previous", "bbbbbbbb"]]), (9022, []),
        (9022, [["previous", known_id[:8]]]), (9003, []), (9099, []), (39000, [["d", "?"]]),
        (30093, [["d", "?:preference"], ["k", "aman_preference"], ["hk", "?"], ["v", "1"],
                 ["ts", "1"]]),
        (30078, [["d", "snowclaw:memory:group:?"]]),
        (1988, [["d", "s"]]),
    ]  # fmt: skip


async def test_a_code_of_a_hidden_group_is_no_oracle(stage: Stage) -> None:
    """Wrong, of another group, used and expired codes: one answer, also where no group is."""
    await stage.say(cast.admin, 9009, ["h", "cave"], ["code", "right and used"])
    await stage.say(cast.admin, 9009, ["h", "cave"], ["code", "of another time"],
                    ["expiration", str(stage.now + 3600)])  # fmt: skip
    await stage.say(cast.admin, 9009, ["h", "tea"], ["code", "of another group"])
    wire = await stage.enter()
    used = cast.carol.sign(9021, [["h", "cave"], ["code", "right and used"]], "", stage.now)
    assert await wire.publish(used) == (True, "")
    answers = set()
    for group in ("cave", "nowhere"):
        for code in ("wrong altogether", "of another group", "right and used"):
            event = cast.stranger.sign(9021, [["h", group], ["code", code]], "", stage.now)
            answers.add(await wire.publish(event))
    assert len(answers) == 1, answers


# -- rights that end while a subscription is open --------------------------------------------------


async def quiet_since(stage: Stage, wire: Wire, sub: str) -> list[str]:
    """Contents that a subscription gets until a public marker, which it must ask for too."""
    marker = await stage.say(cast.alice, 1, content=f"marker {time.monotonic_ns()}")
    got = []
    while True:
        frame = await wire.receive()
        if frame[:2] == ["EVENT", sub]:
            if frame[2]["id"] == marker.id:
                return got
            got.append(frame[2]["content"])


async def test_a_group_that_turns_private_is_silent_at_once(stage: Stage) -> None:
    wire = await stage.enter(cast.stranger)
    await wire.send("REQ", "s", {"kinds": [9], "#h": ["square"]}, {"kinds": [1], "limit": 0})
    assert await wire.receive() == ["EOSE", "s"]
    await stage.say(cast.alice, 9, ["h", "square"], content="open")
    assert await quiet_since(stage, wire, "s") == ["open"]
    await stage.say(cast.admin, 9002, ["h", "square"], ["private"], ["closed"])
    await stage.say(cast.alice, 9, ["h", "square"], content="shut")
    assert await quiet_since(stage, wire, "s") == []
    assert await wire.query({"kinds": [9]}) == []


async def test_who_is_added_hears_without_asking_again(stage: Stage) -> None:
    wire = await stage.enter(cast.carol)
    await wire.send("REQ", "s", {"kinds": [9]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await stage.say(cast.alice, 9, ["h", "tea"], content="before")
    await stage.say(cast.admin, 9000, ["h", "tea"], ["p", cast.carol.pubkey])
    await stage.say(cast.alice, 9, ["h", "tea"], content="after")
    assert await quiet_since(stage, wire, "s") == ["after"]
    await stage.say(cast.admin, 9008, ["h", "tea"])
    assert await quiet_since(stage, wire, "s") == []
    assert await wire.query({"#h": ["tea"]}) == []
    assert await wire.query({"kinds": [9000, 9001, 9007, 9008, 39000, 39002], "#h": ["tea"]}) == []


async def test_one_of_two_keys_is_enough_until_it_is_gone(stage: Stage) -> None:
    wire = await stage.enter(cast.stranger, cast.alice)
    await wire.send("REQ", "s", {"kinds": [9]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await stage.say(cast.robot, 9, ["h", "cave"], content="to alice")
    assert await quiet_since(stage, wire, "s") == ["to alice"]
    await stage.say(cast.admin, 9001, ["h", "cave"], ["p", cast.alice.pubkey])
    await stage.say(cast.robot, 9, ["h", "cave"], content="not to alice")
    await stage.say(cast.robot, 9, ["h", "tea"], content="to alice still")
    assert await quiet_since(stage, wire, "s") == ["to alice still"]
    assert await wire.query({"kinds": [9], "#h": ["cave"]}) == []


async def reload(stage: Stage, name: str, text: str) -> None:
    """Put a policy file in place; back when it is in force."""
    file = stage.rookery.folder / "policies" / name
    number = sum("policies reloaded" in line for line in stage.rookery.lines)
    file.write_text(text)
    stage.rookery.send_signal(signal.SIGHUP)
    async with until(5, "the policies are reloaded") as tries:
        async for _ in tries:
            if sum("policies reloaded" in line for line in stage.rookery.lines) > number:
                return


async def test_an_agent_that_is_struck_off_hears_no_more_configuration(stage: Stage) -> None:
    wire = await stage.enter(cast.rover)
    await wire.send("REQ", "s", {"kinds": [30078]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await stage.say(cast.owner, 30078, ["d", "snowclaw:config:global"], content='{"n":1}')
    assert await quiet_since(stage, wire, "s") == ['{"n":1}']
    await reload(stage, "50-actors.toml", f'[actors]\nagents = ["{cast.robot.pubkey}"]\n')
    stage.now += 1
    await stage.say(cast.owner, 30078, ["d", "snowclaw:config:global"], content='{"n":2}')
    assert await quiet_since(stage, wire, "s") == []
    assert await wire.query({"kinds": [30078]}) == []


async def test_a_reader_that_is_trusted_no_more_hears_no_more(stage: Stage) -> None:
    await reload(stage, "50-trust.toml", '[actors]\ntrusted_readers = ["127.0.0.0/8"]\n')
    wire = await stage.enter()
    await wire.send("REQ", "s", {"kinds": [30093]}, {"kinds": [1], "limit": 0})
    assert (await wire.receive())[0] == "EOSE"
    await stage.say(cast.robot, 30093, *preference(stage.now), content=pref(stage.now))
    assert len(await quiet_since(stage, wire, "s")) == 1
    await reload(stage, "50-trust.toml", "[actors]\ntrusted_readers = []\n")
    ts = stage.now = stage.now + 1
    await stage.say(cast.robot, 30093, *preference(ts), content=pref(ts))
    assert await quiet_since(stage, wire, "s") == []
    assert await wire.query({"kinds": [30093]}) == []


def preference(ts: int) -> list[list[str]]:
    return [["d", "hk:preference"], ["k", "aman_preference"], ["hk", "hk"], ["v", "1"],
            ["ts", str(ts)]]  # fmt: skip


def pref(ts: int) -> str:
    return json.dumps({"history_key": "hk", "preference": "tea", "updated_at": ts})


async def test_a_trusted_reader_reads_no_private_group(stage: Stage) -> None:
    await publish_table(stage, secrets(stage.now))
    await reload(stage, "50-trust.toml", '[actors]\ntrusted_readers = ["127.0.0.0/8"]\n')
    wire = await stage.enter()
    for filters in WIDE:
        if "#code" not in filters[0]:
            rows, _ = await ask(wire, *filters)
            assert _strangers_among("nobody", rows) == []
            for row in rows:
                group = next((tag[1] for tag in row["tags"] if tag[0] == "h"), "square")
                assert group == "square", row
                assert row["kind"] not in (4, 78, 1059, 1988, 1989, 30078, 31234, 31988), row


async def test_envelopes_come_to_those_who_name_them(stage: Stage) -> None:
    sealed = cast.person("pns")
    envelope = await stage.say(sealed, 1080, content=nip44())
    member, nobody = await stage.enter(cast.carol), await stage.enter()
    stranger = await stage.enter(cast.stranger)
    for filters in ({"ids": [envelope.id]}, {"authors": [sealed.pubkey]}):
        assert [row["id"] for row in await member.query(filters)] == [envelope.id]
        for wire in (nobody, stranger):
            assert await wire.query(filters) == []
            number = await count(wire, filters)
            assert number == 0 or f"{number}".startswith(("auth-required:", "restricted:"))
    for wire in (member, nobody, stranger):
        assert await wire.query({"kinds": [1080]}) == []
        assert await wire.query({"since": stage.now - 10, "kinds": [1080, 1]}) == []
        assert await count(wire, {"kinds": [1080, 1]}) == 0


async def test_remote_signing_comes_to_those_who_name_a_key(stage: Stage) -> None:
    signer = cast.person("signer")
    wire = await stage.enter()
    for sub, filter_ in (
        ("all", {"kinds": [24133, 1]}),
        ("to", {"kinds": [24133], "#p": [cast.bob.pubkey]}), ("by", {"authors": [signer.pubkey]}),
    ):  # fmt: skip
        await wire.send("REQ", sub, filter_, {"kinds": [1]})
        assert await wire.receive() == ["EOSE", sub]
    message = await stage.say(signer, 24133, ["p", cast.bob.pubkey], content="psst")
    marker = await stage.say(cast.alice, 1, content="marker")
    got = await until_marker(wire, marker, "all", "to", "by")
    both = {message.id, marker.id}
    assert got == {"all": {marker.id}, "to": both, "by": both}

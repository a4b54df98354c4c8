"""relay/write/ingest.py: the road of an EVENT, on the reference store with real policies and
groups.

NIPS.md N29-18, 55…58, 80…82; MEMORY.md G-06; contract §6, §8, §9; STYLE §3.12.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from blockbuster import blockbuster_ctx

from relay.errors import StoreFault
from relay.groups.group import Groups
from relay.nostr.event import Event, event_from
from relay.observe import Metrics
from relay.read.fanout import Fanout
from relay.read.linked_rows import NO_LINKS
from relay.state import RelayState, rebuilt_groups
from relay.verdict import Origin, Reject, Who, WriteOutcome, ok_reply
from relay.write.ingest import Ingest
from tests.cast import alice, bob, carol, dave, owner, person, robot
from tests.harness.reference_store import ReferenceStore
from tests.unit.policies.folders import loaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    from policies import PolicySet
    from relay.lifecycle.rows import Found, Stored, Wanted, WritePlan
    from relay.nostr.keys import SecretKey
    from relay.read.linked_rows import Links
    from relay.verdict import Facts, Result

NOW = 1_772_000_000
RELAY = person("relay")
STORED = (True, "")
DUPLICATE = (True, "duplicate: already have this event")
NOT_A_MEMBER = (False, "restricted: not a member")
NOT_HERE = (False, "error: the event could not be stored, try again later")
ACTORS = f'[actors]\nowners = ["{owner.npub}"]\nagents = ["{robot.npub}"]\n'


class Disk(ReferenceStore):
    """The reference store, on a disk that may be slow or full; remembers each plan."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[WritePlan] = []
        self.tries = 0
        self.is_full = False
        self.is_asked = asyncio.Event()
        self.may_commit = asyncio.Event()
        self.may_commit.set()

    async def append(self, wanted: Wanted, decide: Callable[[Found], WritePlan]) -> int:
        self.tries += 1
        self.is_asked.set()
        await self.may_commit.wait()

        def noted(found: Found) -> WritePlan:
            plan = decide(found)
            if self.is_full:
                raise StoreFault("disk full")
            self.plans.append(plan)
            return plan

        return await super().append(wanted, noted)


class Letter:
    """The author of one event: not logged in, waits for the one answer."""

    authenticated: frozenset[str] = frozenset()
    address = None
    connection = None

    def __init__(self) -> None:
        self.answers: list[tuple[bool, str]] = []
        self.is_answered = asyncio.Event()

    def answered(self, _event: Event, result: Result) -> None:
        self.answers.append(ok_reply(result))
        self.is_answered.set()


class Loudspeaker(Fanout):
    """Delivers to nobody; remembers what was to be delivered."""

    def __init__(self, state: RelayState) -> None:
        super().__init__(state)
        self.said: list[Event] = []

    def deliver(self, rows: Sequence[Stored], links: Links = NO_LINKS) -> int:
        self.said += [row.event for row in rows]
        return super().deliver(rows, links)


class House:
    """A relay without a socket; at work inside `async with house.ingest`."""

    def __init__(self, policy: Any, verifiers: ThreadPoolExecutor) -> None:
        self.now = NOW
        self.disk = Disk()
        self.state = RelayState(policy, Groups())
        self.live = Loudspeaker(self.state)
        self.metrics = Metrics()
        self.ingest = Ingest(
            self.disk,
            self.state,
            RELAY,
            self.live,
            clock=lambda: self.now,
            verifiers=verifiers,
            metrics=self.metrics,
            is_here=lambda _: False,
        )

    def post(self, event: Event) -> Letter:
        letter = Letter()
        self.ingest.submit(event, letter, Origin.WIRE)
        return letter

    async def takes(self, *events: Event) -> list[tuple[bool, str]]:
        """Send these together: they come into one batch. Each is answered exactly once."""
        letters = [self.post(event) for event in events]
        for letter in letters:
            await letter.is_answered.wait()
        assert [len(letter.answers) for letter in letters] == [1] * len(events)
        return [letter.answers[0] for letter in letters]

    async def rows(self) -> list[Event]:
        return [row.event for row in await self.disk.since(0, 10**6)]


@pytest.fixture(scope="module")
def verifiers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def policy(tmp_path: Path) -> PolicySet:
    return loaded(tmp_path, actors=ACTORS)


@pytest.fixture
async def house(policy: PolicySet, verifiers: ThreadPoolExecutor) -> AsyncIterator[House]:
    """With a group "tea" that alice is in, and "den" where everybody is, so that all are known."""
    house = House(policy, verifiers)
    everybody = [["p", who.pubkey] for who in (alice, bob, carol)]
    with blockbuster_ctx("relay"):
        async with house.ingest:
            made = on(owner, 9007), put(alice), on(owner, 9007, h="den")
            assert await house.takes(*made, on(owner, 9000, *everybody, h="den")) == [STORED] * 4
            for past in (house.disk.plans, house.live.said):
                past.clear()
            house.disk.is_asked.clear()
            yield house


def on(
    who: SecretKey, kind: int, *tags: list[str], h: str = "tea", content: str = "", at: int = NOW
) -> Event:
    return who.sign(kind, [["h", h], *tags], content, at)


def put(whom: SecretKey) -> Event:
    return on(owner, 9000, ["p", whom.pubkey])


def out(whom: SecretKey) -> Event:
    return on(owner, 9001, ["p", whom.pubkey])


def chat(who: SecretKey, text: str) -> Event:
    return on(who, 9, content=text)


def article(at: int, d: str = "x") -> Event:
    return owner.sign(30023, [["d", d]], f"{at}", at)


# the commit --------------------------------------------------------------------------------------


@pytest.mark.proves("N01-82")
async def test_ok_comes_only_after_the_commit(house: House) -> None:
    """Contract §6, §9: and nobody hears of it before."""
    house.disk.may_commit.clear()
    letter = house.post(chat(alice, "tea?"))
    await house.disk.is_asked.wait()
    assert (letter.answers, house.live.said) == ([], [])
    house.disk.may_commit.set()
    await letter.is_answered.wait()
    assert letter.answers == [STORED]
    assert [event.content for event in house.live.said] == ["tea?"]


async def test_what_comes_together_is_one_commit(house: House) -> None:
    """DESIGN §2 step 7; in the order in which it came."""
    assert await house.takes(*(chat(alice, str(n)) for n in range(100))) == [STORED] * 100
    assert [len(plan.adds) for plan in house.disk.plans] == [100]
    assert [event.content for event in await house.rows()][-100:] == [str(n) for n in range(100)]


async def test_a_store_that_fails_changes_nothing_and_everyone_is_told(house: House) -> None:
    """Contract §6 `error:`; §9: a full disk refuses writes. The copies are dropped."""
    groups, rows, tries = house.state.groups, await house.rows(), house.disk.tries
    house.disk.is_full = True
    sent = [put(bob), chat(bob, "hello"), out(alice), on(owner, 9008), article(NOW)]
    assert await house.takes(*sent) == [NOT_HERE] * 5
    assert house.disk.tries == tries + 1
    assert house.state.groups is groups
    assert (await house.rows(), house.live.said) == (rows, [])
    assert house.disk.groups["tea"] == groups.by_id["tea"]
    house.disk.is_full = False
    assert await house.takes(*sent[:3]) == [STORED] * 3


async def test_leaving_commits_what_waits(policy: PolicySet, verifiers: ThreadPoolExecutor) -> None:
    """Contract §2 SIGTERM: answers what is in flight, commits; later ones are not taken."""
    house = House(policy, verifiers)
    async with house.ingest:
        letters = [house.post(article(NOW, str(n))) for n in range(300)]
    assert {tuple(letter.answers) for letter in letters} == {(STORED,)}
    (refusal,) = house.post(article(NOW)).answers
    assert not refusal[0]


async def test_an_event_that_nobody_foresaw_goes_down_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Never silently dropped, never accepted; its neighbours keep their order."""
    policy, bad = house.state.policy, chat(alice, "the one")

    def judge(event: Event, facts: Facts, judged: Any = policy.judge) -> Reject | None:
        return judged(event, 1 / 0 if event is bad else facts)

    monkeypatch.setattr(policy, "judge", judge)
    sent = [chat(bob, "0"), put(bob), bad, chat(bob, "1"), out(bob), chat(bob, "2")]
    wanted = [NOT_A_MEMBER, STORED, NOT_HERE, STORED, STORED, NOT_A_MEMBER]
    assert await house.takes(*sent) == wanted
    assert await rebuilt_groups(house.disk, RELAY.pubkey) == house.state.groups
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.proves("N01-98")
async def test_a_fault_behind_the_commit_takes_no_answer_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N01-98: each answer exactly once."""

    def fall_over(_rows: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(house.live, "deliver", fall_over)
    assert await house.takes(chat(alice, "tea?"), chat(alice, "more?")) == [STORED] * 2
    await house.takes(article(NOW))


# one batch, in order -----------------------------------------------------------------------------


async def test_nobody_slips_a_message_in_behind_their_own_removal(house: House) -> None:
    """N29-18, STYLE §3.12: judged against the state that the event before left."""
    sent = [chat(alice, "a"), out(alice), chat(alice, "b"), put(alice), chat(alice, "c")]
    assert await house.takes(*sent) == [STORED, STORED, NOT_A_MEMBER, DUPLICATE, NOT_A_MEMBER]
    again = on(owner, 9000, ["p", alice.pubkey, "poet"])
    assert await house.takes(chat(alice, "d"), again, chat(alice, "e")) == [
        NOT_A_MEMBER,
        STORED,
        STORED,
    ]
    assert [len(plan.adds) for plan in house.disk.plans] == [3, 4]


async def test_who_was_known_a_moment_ago_is_known_no_more(house: House) -> None:
    """Contract §5: by the state that the event before left, outside groups too."""
    one, other = (bob.sign(1, [], text, NOW) for text in "ab")
    answers = await house.takes(one, on(owner, 9001, ["p", bob.pubkey], h="den"), other)
    assert answers[:2] == [STORED] * 2
    assert answers[2] == (False, "restricted: only people known here may write; join a group first")


async def test_a_group_lives_and_ends_within_one_batch(house: House) -> None:
    made, said, ended, late = (on(owner, kind, h="yard") for kind in (9007, 9, 9008, 1))
    assert await house.takes(made, said, ended, late) == [STORED] * 3 + [NOT_A_MEMBER]
    left = [event.kind for event in await house.rows() if event.tag("h") == "yard"]
    assert left == [9007, 9008]
    assert await rebuilt_groups(house.disk, RELAY.pubkey) == house.state.groups


@pytest.mark.proves("G-06")
async def test_the_order_within_a_batch_does_not_choose_the_version(house: House) -> None:
    """G-06, N01-48."""
    older = (False, "duplicate: a newer version is stored")
    for number, order in enumerate(permutations([NOW, NOW - 1, NOW - 2])):
        versions = [article(at, str(number)) for at in order]
        results = await house.takes(*versions)
        newest = order.index(NOW)
        assert results[newest:] == [STORED] + [older] * (2 - newest)
        left = [event for event in await house.rows() if event.d == str(number)]
        assert left == [versions[newest]]


def aman(kind: int, name: str, ts: int, at: int, **fields: object) -> Event:
    tags = [["d", f"hk1:{name}"], ["k", f"aman_{name}"], ["hk", "hk1"], ["v", "1"], ["ts", f"{ts}"]]
    return robot.sign(kind, tags, orjson.dumps({"history_key": "hk1", **fields}).decode(), at)


@pytest.mark.proves("A-06", "A-07", "G-08")
async def test_memory_is_told_apart_by_ts_and_by_who_came_first(house: House) -> None:
    """MEMORY.md 0.2, A-06…A-09: FIRST and LATEST-ts, texts of the contract; G-08 live."""
    prefers = [
        aman(30093, "preference", ts, at, preference="tea", updated_at=ts)
        for ts, at in [(NOW - 9, NOW), (NOW - 5, NOW - 7), (NOW - 6, NOW - 1)]
    ]
    tools = [
        aman(
            30095,
            "tool_history",
            at,
            at,
            tool_name="kettle",
            success=True,
            content="hot",
            created_at=at,
        )
        for at in (NOW - 3, NOW - 2)
    ]
    assert await house.takes(*prefers, *tools) == [
        STORED,
        STORED,
        (False, "duplicate: a newer version is stored"),
        STORED,
        (True, "duplicate: already stored under this d"),
    ]
    assert (await house.rows())[-2:] == [prefers[1], tools[0]]
    assert house.live.said == [*prefers[:2], tools[0]]


@pytest.mark.proves("G-12")
async def test_what_was_deleted_does_not_come_back_in_the_same_batch(house: House) -> None:
    """N09-10, G-12, N29-52: by its author or by an admin."""
    mine, theirs = chat(alice, "mine"), chat(alice, "theirs")
    takes_back = alice.sign(5, [["e", mine.id]], "", NOW)
    sent = [mine, takes_back, mine, theirs, on(owner, 9005, ["e", theirs.id]), theirs]
    deleted = (False, "blocked: deleted")
    assert await house.takes(*sent) == [STORED, STORED, deleted, STORED, STORED, deleted]
    rows = await house.rows()
    assert mine not in rows
    assert theirs not in rows
    assert await house.takes(mine, theirs) == [deleted] * 2


# groups ------------------------------------------------------------------------------------------


async def test_what_the_relay_signs_rides_in_the_same_transaction(house: House) -> None:
    """N29-56, N29-80…82, contract §8: cause, automatic event, state; live in that order."""
    await house.takes(on(owner, 9009, ["code", "sesame-1"]))
    assert await house.takes(on(bob, 9021, ["code", "sesame-1"])) == [STORED]
    plan = house.disk.plans[-1]
    rows = [row.event for row in plan.adds.values()]
    assert [row.kind for row in rows] == [9021, 9000, 39002]
    assert [row.pubkey for row in rows] == [bob.pubkey, RELAY.pubkey, RELAY.pubkey]
    assert house.live.said[1:] == rows
    assert plan.groups["tea"] is not None
    assert bob.pubkey in plan.groups["tea"].members
    assert all(event_from(orjson.loads(row.raw)) == row for row in rows)


async def test_who_waits_for_an_admin_is_refused_and_yet_stored_once(
    house: House, tmp_path: Path
) -> None:
    """N29-35, Z-01: a later request takes the place of an earlier one, in one batch or in two."""
    review = f'{ACTORS}[groups]\njoins = "review"\nalways = []\nnew = []\n'
    house.state.enforce(loaded(tmp_path, actors=review))
    await house.takes(on(owner, 9007, h="yard"))
    asks = [on(bob, 9021, h="yard", content=text) for text in ("may I?", "please", "pretty please")]
    pending = (False, "restricted: pending review")
    assert [*await house.takes(*asks[:2]), *await house.takes(asks[2])] == [pending] * 3
    assert [row for row in await house.rows() if row.kind == 9021] == asks[2:]
    assert house.live.said[-3:] == asks


@pytest.mark.proves("N29-60")
async def test_group_state_by_another_key_is_refused(house: House) -> None:
    """Whatever its `d`, whoever signed it, and whether or not they lead the group."""
    answer = (False, "restricted: kinds 39000 to 39005 are signed by the relay alone")
    before = house.state.groups
    for kind in range(39000, 39006):
        events = [
            who.sign(kind, [["d", group], ["name", "Mine"]], "", NOW)
            for who in (owner, alice, robot)
            for group in ("tea", "nowhere")
        ]
        assert await house.takes(*events) == [answer] * len(events)
    assert house.state.groups == before


@pytest.mark.proves("N29-60")
async def test_what_the_relay_signed_and_gets_back_is_a_duplicate(house: House) -> None:
    """An event by `self` from outside is refused unless it is stored as it is."""
    (stored,) = (row for row in await house.rows() if row.kind == 39000 and row.d == "tea")
    forged = RELAY.sign(39000, [["d", "tea"], ["name", "Mine"]], "", NOW + 1)
    assert await house.takes(stored, forged) == [
        DUPLICATE,
        (False, "restricted: only people known here may write; join a group first"),
    ]
    assert house.state.groups.by_id["tea"].metadata == ()


# what must not happen twice, and what must not fall over -----------------------------------------


@pytest.mark.proves("N01-95", "N01-96")
async def test_a_message_sent_again_later_is_a_duplicate(house: House) -> None:
    """Contract §6: same id already stored; N01-96: for whoever may write there."""
    message = chat(alice, "tea?")
    await house.takes(message)
    house.now += 601
    assert await house.takes(message) == [DUPLICATE]
    await house.takes(on(owner, 9001, ["p", alice.pubkey], at=house.now))
    assert await house.takes(message) == [NOT_A_MEMBER]


@pytest.mark.proves("N09-15")
@pytest.mark.parametrize("kind", ["x", "-1", "²", "9" * 5000], ids=lambda kind: kind[:9])
async def test_a_deletion_of_a_kind_that_is_none_is_taken(house: House, kind: str) -> None:
    """N09-15: malformed values are skipped, the rest is executed."""
    mine = article(NOW)
    request = owner.sign(5, [["k", kind], ["a", f"{kind}:x:y"], ["e", mine.id]], "", NOW)
    assert await house.takes(mine, request) == [STORED] * 2
    assert mine not in await house.rows()


async def test_what_ends_with_a_group_holds_no_address(house: House) -> None:
    """N29-124: in the batch that ends it as in any later one."""
    inside = on(owner, 30023, ["d", "x"])
    await house.takes(inside)
    assert await house.takes(on(owner, 9008), article(NOW + 1)) == [STORED] * 2


@pytest.mark.proves("N01-11")
async def test_a_forged_signature_costs_the_others_nothing(house: House) -> None:
    """N01-11; however many are verified together."""
    forged = orjson.loads(chat(alice, "not hers").raw) | {"sig": "0" * 128}
    many = [chat(alice, str(number)) for number in range(50)]
    results = await house.takes(*many[:25], event_from(forged), *many[25:])
    assert results.pop(25) == (False, "invalid: sig: is not a signature of id by pubkey")
    assert results == [STORED] * 50


@pytest.mark.proves("N01-42")
async def test_what_is_ephemeral_obeys_the_rules_and_leaves_no_trace(house: House) -> None:
    """N01-42, N29-17."""
    typing = on(alice, 20001)
    assert await house.takes(typing, on(bob, 20001)) == [STORED, NOT_A_MEMBER]
    assert house.live.said == [typing]
    assert typing not in await house.rows()


# -- what would become of an event ----------------------------------------------------------------


async def test_an_event_that_is_only_asked_about_is_neither_stored_nor_told(house: House) -> None:
    removal = out(alice)
    seen = await house.ingest.dry_run(removal, Letter())
    assert seen.result is WriteOutcome.STORED
    assert seen.facts is not None
    assert Who.ADMIN in seen.facts.who
    assert [plan.is_empty() for plan in house.disk.plans] == [True]
    assert house.live.said == []
    # She is in the group still, and the next row has the next number.
    head = await house.disk.head()
    assert await house.takes(chat(alice, "still here")) == [STORED]
    assert await house.disk.head() == head + 1


async def test_what_is_refused_before_its_signature_is_foreseen_too(house: House) -> None:
    ahead = on(alice, 9, content="tomorrow", at=NOW + 90_000)
    seen = await house.ingest.dry_run(ahead, Letter())
    assert isinstance(seen.result, Reject)
    assert seen.result.rule == "[limits] created_at_upper"
    two = alice.sign(9, [["h", "tea"], ["h", "den"]], "", NOW)
    seen = await house.ingest.dry_run(two, Letter())
    assert seen.facts is None
    assert ok_reply(seen.result) == (False, "invalid: one h tag only")


async def test_refusals_are_remembered_wherever_on_the_road_they_are_said(house: House) -> None:
    forged = orjson.loads(chat(alice, "forged").raw) | {"sig": "0" * 128}
    unsigned = event_from(forged)
    ahead = on(alice, 9, at=NOW + 90_000)
    strange = dave.sign(1, [], "who am I", NOW)
    await house.takes(unsigned, ahead, strange, chat(alice, "fine"))
    refused = house.metrics.refusals.after(0)
    assert {(each.event_id, each.rule) for each in refused} == {
        (unsigned.id, "sig"),
        (ahead.id, "[limits] created_at_upper"),
        (strange.id, "known people write"),
    }

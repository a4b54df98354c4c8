"""relay/write/derived.py: which group an event without `h` belongs to."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from relay.access.actors import Attestations
from relay.access.quotas import SizedBy
from relay.errors import WriteOutcome
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Found, Stored, slot_of
from relay.nostr import kinds
from relay.nostr.agents import Attestation
from relay.nostr.keys import is_signed
from relay.nostr.nip57 import zap_request
from relay.write import derived
from relay.write.candidate import Sender, candidate_of
from relay.write.judge import judge
from relay.write.world import World
from tests.cast import alice, bob, carol, owner, person
from tests.harness.relay_in_process import NOON, RELAY, STORED, Home, policy_of, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from policies import PolicySet
    from relay.access.visibility import Viewer
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

DEN = Group(
    "den", flags=frozenset({Flag.PRIVATE}), members=OrderedMap({alice.pubkey: (), bob.pubkey: ()})
)
SQUARE = Group("square", flags=frozenset({Flag.RESTRICTED}), members=OrderedMap({alice.pubkey: ()}))
WALLET = person("wallet")

PRIVATE = alice.sign(9, [["h", "den"], ["t", "thread"]], "private", NOON)
OPEN = alice.sign(9, [["h", "square"]], "open", NOON)
NOTE = alice.sign(1, [], "a note", NOON)
OWN_DATA = alice.sign(30078, [["d", "x"]], "own", NOON)
ARTICLE = alice.sign(30023, [["h", "den"], ["d", "a"]], "an article", NOON)
LABELLED = owner.sign(30078, [["h", "den"], ["d", "snowclaw:config:group:den"]], "{}", NOON)
MISSING = carol.sign(9, [["h", "den"]], "never sent", NOON)
ROWS = (PRIVATE, OPEN, NOTE, OWN_DATA, ARTICLE, LABELLED)
CAVE = Group("cave", flags=frozenset({Flag.HIDDEN}), members=OrderedMap({alice.pubkey: ()}))
ABOUT_DEN = [RELAY.sign(kind, [["d", "den"]], "", NOON) for kind in (39000, 39003)]
"""Everybody may read these."""
CAROLS = [
    alice.sign(9000, [["h", "cave"], ["p", carol.pubkey]], "", NOON),
    alice.sign(9001, [["h", "cave"], ["p", carol.pubkey]], "", NOON),
    carol.sign(9021, [["h", "den"]], "", NOON),
    carol.sign(9022, [["h", "den"]], "", NOON),
]
"""She may read these, of groups whose messages she may not read."""
ADDRESS = f"30023:{alice.pubkey}:a"


@pytest.fixture(scope="module")
def policy() -> PolicySet:
    return policy_of("open")


def group_of(
    policy: PolicySet,
    who: SecretKey,
    *tags: list[str],
    kind: int = kinds.REACTION,
    content: str = "+",
    origin: Origin = Origin.WIRE,
    attested: frozenset[Attestation] = frozenset(),
    attestations: Attestations = Attestations.RELAY,
    banned: frozenset[str] = frozenset(),
    rows: Iterable[Event] = (),
) -> str | None:
    """The group in which this event is stored."""
    event = who.sign(kind, list(tags), content, NOON)
    found = Found(9)
    for seq, stored in enumerate((*ROWS, *rows)):
        slot = slot_of(stored, policy.keep.keep_of(stored))
        row = found.rows[stored.id] = Stored(seq, stored, policy.row_group(stored), slot=slot)
        if slot is not None:
            found.slots[slot] = row
    groups = Groups().with_group(DEN).with_group(SQUARE).with_group(CAVE)
    actors = replace(policy.actors, attestations=attestations, banned=banned)
    world = World(policy, groups, actors, found, RELAY.pubkey, NOON)
    keep, derived = policy.keep.keep_of(event), policy.groups.derived
    sender = Sender(origin, attested=attested, is_local=True)
    candidate = candidate_of(event, keep, policy.systems, sender, lambda _: False, derived=derived)
    judged = judge(candidate, world)
    assert judged.outcome is WriteOutcome.STORED
    return judged.group


def e(event: Event, name: str = "e") -> list[str]:
    return [name, event.id]


@pytest.mark.proves("N29-106")
def test_it_is_that_of_the_first_event_of_a_group_that_e_or_a_names(policy: PolicySet) -> None:
    assert group_of(policy, alice, e(PRIVATE)) == "den"
    assert group_of(policy, alice, e(PRIVATE, "E")) == "den"
    assert group_of(policy, alice, ["a", ADDRESS]) == "den"
    assert group_of(policy, alice, ["A", ADDRESS]) == "den"
    assert group_of(policy, alice, e(MISSING), e(PRIVATE), e(OPEN)) == "den"
    assert group_of(policy, alice, e(NOTE), e(OPEN)) == "square"
    assert group_of(policy, alice, ["p", alice.pubkey], ["q", PRIVATE.id]) is None
    assert group_of(policy, alice, ["e"], ["e", "x"], ["a", "30023:x:a"]) is None


@pytest.mark.proves("N29-106")
def test_what_answers_a_private_message_stays_with_it(policy: PolicySet) -> None:
    """NIP-22 names the root first, NIP-25 what is reacted to last: the root may be public."""
    for public in (NOTE, OPEN):
        assert group_of(policy, alice, e(public, "E"), e(PRIVATE), kind=1111) == "den"
        assert group_of(policy, alice, e(public), e(PRIVATE)) == "den"
        assert group_of(policy, alice, e(public), ["a", ADDRESS]) == "den"
    assert group_of(policy, carol, e(NOTE), e(PRIVATE)) is None
    assert group_of(policy, carol, e(OPEN), e(PRIVATE)) == "square"


async def test_rules_about_a_group_are_about_what_names_its_messages() -> None:
    rules = """
        [[rule]]
        name  = "comments of tea"
        match = { kinds = [1111], h = ["tea"] }
        write = ["insider"]
        [[rule]]
        name  = "reposts are of groups"
        match = { kinds = [6], h = false }
        write = ["nobody"]
    """
    async with store_of("sqlite") as store, Home(store, policy_of("open", rules)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        message, note = await here.do(owner, 9, h="tea"), await here.do(owner, 1)
        refused = (False, "restricted: not allowed by the rule 'comments of tea'")
        assert await here.take(here.made(bob, kinds.COMMENT, e(message))) == [refused]
        await here.do(alice, kinds.COMMENT, e(message))
        await here.do(bob, kinds.COMMENT, e(note))
        await here.do(bob, 6, e(message))
        refused = (False, "restricted: not allowed by the rule 'reposts are of groups'")
        assert await here.take(here.made(bob, 6, e(note))) == [refused]


@pytest.mark.parametrize(
    ("sender", "answer"),
    [(bob, STORED), (alice, (False, "restricted: not allowed by the rule 'r'"))],
)
async def test_such_a_rule_tells_a_sender_nothing_of_groups_that_it_may_not_read(
    sender: SecretKey, answer: tuple[bool, str]
) -> None:
    rule = '[[rule]]\nname = "r"\nmatch = { kinds = [1111], h = true }\nwrite = ["nobody"]'
    async with store_of("sqlite") as store, Home(store, policy_of("group", rule)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        message = await here.do(alice, 9, h="tea")
        comment = here.made(alice, kinds.COMMENT, e(message))
        assert await here.take(comment, logins=[sender.pubkey]) == [answer]
        assert comment not in await here.log()


@pytest.mark.proves("N29-109")
async def test_such_a_rule_tells_no_sender_who_is_in_a_group_that_it_may_not_read() -> None:
    """Everybody may read the 39000; a comment on it is in the group if its author is a member."""
    rule = '[[rule]]\nname = "r"\nmatch = { kinds = [1111], h = true }\nwrite = ["nobody"]'
    async with store_of("sqlite") as store, Home(store, policy_of("open", rule)) as here:
        await here.do(owner, kinds.CREATE_GROUP, ["private"], h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        (about,) = await here.found(kinds=[39000])
        for author in (alice, bob):
            comment = here.made(author, kinds.COMMENT, e(about))
            assert await here.take(comment, logins=[carol.pubkey]) == [STORED]
            assert (comment in await here.log()) is (author is bob)
        refused = (False, "restricted: not allowed by the rule 'r'")
        comment = here.made(alice, kinds.COMMENT, e(about))
        assert await here.take(comment, logins=[alice.pubkey]) == [refused]


@pytest.mark.proves("N29-106")
def test_only_listed_kinds_without_h_follow_what_they_name(policy: PolicySet) -> None:
    assert all(
        group_of(policy, alice, e(PRIVATE), kind=kind) == "den"
        for kind in (6, 7, 16, 1111, 1984, 9735, 9802, 40003)
    )
    assert group_of(policy, alice, e(PRIVATE), kind=1) is None
    assert group_of(policy, alice, e(PRIVATE), ["h", "square"]) == "square"


@pytest.mark.proves("N29-107")
def test_a_target_that_the_author_may_not_read_counts_as_not_stored(policy: PolicySet) -> None:
    for unseen in (PRIVATE, MISSING):
        assert group_of(policy, carol, e(unseen)) is None
        assert group_of(policy, carol, e(unseen), e(OPEN)) == "square"
    for unseen in (OWN_DATA, MISSING):  # guarded, though in no group
        assert group_of(policy, carol, e(unseen), e(OPEN)) == "square"
    assert group_of(policy, alice, e(OWN_DATA), e(OPEN)) == "square"
    assert group_of(policy, carol, ["a", ADDRESS], kind=1111) is None


def test_what_members_write_about_a_banned_key_stays_in_the_group(policy: PolicySet) -> None:
    """A ban hides its rows for a while only; outside of the group a comment would be public."""
    banned = frozenset({alice.pubkey})
    assert group_of(policy, bob, e(PRIVATE), banned=banned) == "den"
    assert group_of(policy, carol, e(PRIVATE), banned=banned) is None


def test_nobody_reads_by_a_banned_owner(policy: PolicySet) -> None:
    """An agent would learn by its comment that an event of the owner's group is stored."""
    of_carol = frozenset({Attestation(carol.pubkey, bob.pubkey)})
    lent = partial(
        group_of, policy, carol, e(PRIVATE), attested=of_carol, attestations=Attestations.GROUPS
    )
    assert lent() == "den"
    assert lent(banned=frozenset({bob.pubkey})) is None


@pytest.mark.parametrize(
    "rule",
    [
        'read = ["anyone"]\nonly_by = ["#h"]',
        'read = ["author", "target"]\ntarget = { kinds = [11], tag = "t" }',
        'read = ["insider"]\nonly_by = ["authors"]',
    ],
)
def test_a_rule_about_how_to_ask_takes_nothing_out_of_the_group(rule: str) -> None:
    """Who reads the message by one filter may not by another."""
    policy = policy_of("open", f'[[rule]]\nname = "r"\nmatch = {{ kinds = [9] }}\n{rule}\n')
    assert group_of(policy, bob, e(PRIVATE)) == "den"
    assert group_of(policy, carol, e(PRIVATE)) is None


def test_it_is_not_written_into_the_group(policy: PolicySet) -> None:
    """Who may not write in a restricted group may react to what is said in it."""
    assert group_of(policy, carol, e(OPEN)) == "square"


@pytest.mark.proves("N29-109")
@pytest.mark.parametrize("kind", [5, 7, 1111, 1984])
def test_what_names_the_public_state_of_a_private_group_is_in_it_if_by_a_member(
    policy: PolicySet, kind: int
) -> None:
    """Anybody could add rows to the group by naming its 39000."""
    for about in ABOUT_DEN:
        for tag in (e(about), ["a", f"{about.kind}:{RELAY.pubkey}:den"]):
            named = partial(group_of, policy, rows=ABOUT_DEN, kind=kind)
            assert named(carol, tag) is None
            assert named(alice, tag) == named(owner, tag) == "den"
            assert named(carol, tag, e(OPEN)) == "square"
            assert named(bob, e(OPEN), tag) == "den"
            assert named(carol, tag, origin=Origin.TRUSTED_IMPORT) == "den"


@pytest.mark.proves("N29-109")
def test_what_names_a_record_that_only_its_subject_reads_is_in_no_group(
    policy: PolicySet,
) -> None:
    """Who was removed from a hidden group could comment, in it, on the 9001."""
    for record in CAROLS:
        named = partial(group_of, policy, rows=CAROLS, kind=1111)
        assert named(carol, e(record)) is None
        assert named(alice, e(record)) == (None if record.kind == 9021 else record.tag("h"))
        assert named(owner, e(record)) == record.tag("h")


def test_what_is_said_about_a_group_that_all_may_read_is_in_it(policy: PolicySet) -> None:
    about = RELAY.sign(39000, [["d", "square"]], "", NOON)
    assert group_of(policy, carol, e(about), rows=[about]) == "square"


@pytest.mark.proves("N29-109")
def test_an_agent_comments_on_its_owners_group_in_the_group(policy: PolicySet) -> None:
    of_carol = frozenset({Attestation(carol.pubkey, bob.pubkey)})
    named = partial(group_of, policy, carol, e(ABOUT_DEN[0]), rows=ABOUT_DEN, attested=of_carol)
    assert named(attestations=Attestations.GROUPS) == "den"
    assert named() is None


@pytest.mark.proves("N29-109")
def test_a_zap_of_a_group_is_in_it_if_its_sender_is(policy: PolicySet) -> None:
    for by, group in ((bob, "den"), (carol, None)):
        request = by.sign(9734, [e(ABOUT_DEN[0]), ["p", alice.pubkey]], "", NOON)
        tags = e(ABOUT_DEN[0]), ["description", request.raw.decode()]
        assert group_of(policy, WALLET, *tags, kind=9735, rows=ABOUT_DEN) == group


@pytest.mark.proves("N29-106")
def test_what_an_agent_reads_by_its_owner_it_reacts_to_in_the_group(policy: PolicySet) -> None:
    """With `attestations = "groups"`. A reaction outside the group would be public."""
    of_carol = frozenset({Attestation(carol.pubkey, bob.pubkey)})
    for kind in (5, 7, 1111):
        lent = group_of(
            policy,
            carol,
            e(PRIVATE),
            kind=kind,
            attested=of_carol,
            attestations=Attestations.GROUPS,
        )
        assert lent == "den"
    assert group_of(policy, carol, e(PRIVATE), attested=of_carol) is None
    of_another = frozenset({Attestation(WALLET.pubkey, bob.pubkey)})
    groups = Attestations.GROUPS
    assert group_of(policy, carol, e(PRIVATE), attested=of_another, attestations=groups) is None


def test_a_label_is_no_group(policy: PolicySet) -> None:
    d = ["d", "snowclaw:config:global"]
    assert group_of(policy, owner, d, ["h", "den"], kind=LABELLED.kind, content="{}") is None
    assert group_of(policy, owner, e(LABELLED)) is None


def test_a_deletion_of_what_others_wrote_belongs_to_its_group(policy: PolicySet) -> None:
    assert group_of(policy, bob, e(PRIVATE), kind=5) == "den"
    assert group_of(policy, carol, e(PRIVATE), kind=5) is None
    assert group_of(policy, carol, e(MISSING), kind=5) is None


@pytest.mark.proves("N29-106", "N29-107")
def test_a_zap_receipt_stands_for_who_asked_for_it(policy: PolicySet) -> None:
    """The wallet's service signs it, and is in no group; what it claims beside is not believed."""

    def receipt(
        by: SecretKey,
        about: Event,
        named: Event = PRIVATE,
        banned: frozenset[str] = frozenset(),
        **other: object,
    ) -> str | None:
        request = by.sign(9734, [e(about), ["p", alice.pubkey]], "", NOON)
        fields = {**json.loads(request.raw), **other}
        told = ["description", json.dumps(fields)]
        return group_of(policy, WALLET, e(named), ["P", bob.pubkey], told, kind=9735, banned=banned)

    assert receipt(bob, PRIVATE) == "den"
    assert receipt(carol, PRIVATE) is None
    assert receipt(bob, PRIVATE, banned=frozenset({bob.pubkey})) is None
    assert receipt(bob, PRIVATE, banned=frozenset({alice.pubkey})) == "den"
    assert receipt(bob, OPEN) is None  # asked for another event
    assert receipt(bob, PRIVATE, sig="0" * 128) is None
    assert receipt(carol, PRIVATE, pubkey=bob.pubkey) is None
    assert receipt(bob, PRIVATE, tags=5) is None
    for text in ("{", "{}", "[]", "5"):
        assert group_of(policy, WALLET, e(PRIVATE), ["description", text], kind=9735) is None
    assert group_of(policy, WALLET, e(PRIVATE), ["P", bob.pubkey], kind=9735) is None


def test_a_zap_request_is_verified_once_and_only_a_short_one(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 60,000 tags took the writer 30 ms for each of sixteen messages that were named."""
    verified = list[int]()

    def noted(event: Event) -> bool:
        verified.append(len(event.tags))
        return is_signed(event)

    monkeypatch.setattr("relay.nostr.nip57.is_signed", noted)
    many: list[list[list[str]]] = [[e(OPEN)], [e(OPEN)] * 60_000, [[]] * 2000]
    for tags in many:
        told = ["description", carol.sign(9734, tags, "", NOON).raw.decode()]
        assert group_of(policy, WALLET, e(PRIVATE), e(ARTICLE), told, kind=9735) is None
    assert verified == [1]


def test_the_tags_of_a_zap_request_are_read_once_for_all_rows(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 2,610 tags `[]` each of sixteen rows that were named took the writer 1 ms."""
    read = list[list[str]]()

    class Noted(list[list[str]]):
        def __iter__(self) -> Iterator[list[str]]:
            for tag in super().__iter__():
                read.append(tag)
                yield tag

    def noted(receipt: Event) -> Event | None:
        request = zap_request(receipt)
        return request and structs.replace(request, tags=Noted(request.tags))

    monkeypatch.setattr("relay.write.derived.zap_request", noted)
    request = carol.sign(9734, [e(MISSING), e(OPEN)], "", NOON)
    told = ["description", request.raw.decode()]
    assert group_of(policy, WALLET, e(PRIVATE), e(ARTICLE), e(LABELLED), told, kind=9735) is None
    assert read == request.tags


def test_a_trusted_import_follows_every_target(policy: PolicySet) -> None:
    """Its author may have left the group since; nobody learns anything by it."""
    assert group_of(policy, carol, e(PRIVATE), origin=Origin.TRUSTED_IMPORT) == "den"
    assert group_of(policy, carol, e(PRIVATE), origin=Origin.IMPORT) is None


def test_few_of_many_names_are_looked_up(policy: PolicySet) -> None:
    many = [["e", f"{number:064x}"] for number in range(16)]
    assert group_of(policy, alice, *many, e(PRIVATE)) is None
    assert group_of(policy, alice, *many[1:], e(PRIVATE)) == "den"


def test_a_row_that_is_named_sixteen_times_is_judged_once(
    policy: PolicySet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time took 1 ms if the row has 5,000 tags."""
    judged = list[str]()
    may_read = derived._may_read

    def noted(author: Viewer, row: Stored, world: World) -> bool:
        judged.append(row.event.id)
        return may_read(author, row, world)

    monkeypatch.setattr(derived, "_may_read", noted)
    again = ["E", e(PRIVATE)[1]]
    assert group_of(policy, carol, *[e(PRIVATE)] * 16, again, e(OPEN)) == "square"
    assert judged == [e(PRIVATE)[1], e(OPEN)[1]]


def test_replaceable_kinds_cannot_be_listed() -> None:
    with pytest.raises(Exception, match="not replaceable, 30023 is"):
        policy_of("open", "[groups]\nderived = [7, 30023]\n")


# -- imports: a target may come after what names it -----------------------------------------------


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, policy_of("open")) as home:
        await home.do(owner, 9007, ["private"], h="den")
        await home.do(owner, 9000, ["p", alice.pubkey], ["p", bob.pubkey], h="den")
        yield home


def newest_first() -> tuple[list[Event], list[Event]]:
    """What belongs to the group, and what does not, of an export that is sorted so."""
    article = alice.sign(30023, [["h", "den"], ["d", "a"]], "an article", NOON)
    comment = bob.sign(1111, [["A", ADDRESS], ["E", article.id]], "ah", NOON + 1)
    reaction = alice.sign(7, [e(comment)], "+", NOON + 2)
    to_reaction = bob.sign(7, [e(reaction)], "+", NOON + 3)
    note = carol.sign(1, [], "a note", NOON)
    elsewhere = bob.sign(7, [e(note)], "+", NOON + 2)
    stranger = carol.sign(7, [e(article)], "+", NOON + 2)
    return [to_reaction, reaction, comment, article], [stranger, elsewhere, note]


async def groups_now(home: Home) -> dict[str, str | None]:
    return {row.event.id: row.group for row in await home.store.since(0, 100)}


@pytest.mark.proves("N29-106")
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_IMPORT])
async def test_the_order_of_an_import_leaves_nothing_open(
    home: Home, origin: Origin, *, together: bool
) -> None:
    inside, outside = newest_first()
    batches = [[*outside, *inside]] if together else [[event] for event in (*outside, *inside)]
    for batch in batches:
        assert set(await home.take(*batch, origin=origin)) == {STORED}
    groups = await groups_now(home)
    assert [groups[event.id] for event in inside] == ["den"] * len(inside)
    assert groups[outside[1].id] is groups[outside[2].id] is None
    # Whoever may not read the article reacted to nothing; one's own export is not asked for rights.
    trusted = origin is Origin.TRUSTED_IMPORT
    assert groups[outside[0].id] == ("den" if trusted else None)
    by_group = {size.of: size.size.events for size in await home.store.sizes(SizedBy.GROUP, 9)}
    rows = Counter(groups.values())
    assert by_group == rows
    await home.do(owner, 9008, h="den")
    left = await groups_now(home)
    assert left.keys().isdisjoint([event.id for event in inside])


@pytest.mark.proves("N29-109")
async def test_what_outsiders_say_about_the_group_is_no_row_of_it(home: Home) -> None:
    (about,) = await home.found(kinds=[39000])
    address = ["a", f"39000:{RELAY.pubkey}:den"]
    inside = [await home.do(bob, kind, tag) for kind in (7, 1111) for tag in (e(about), address)]
    removal = await home.do(owner, 9001, ["p", bob.pubkey], h="den")
    named = (e(about), address, e(removal))
    outside = [await home.do(bob, kind, tag) for kind in (7, 1111) for tag in named]
    groups = await groups_now(home)
    assert {groups[event.id] for event in inside} == {"den"}
    assert {groups[event.id] for event in outside} == {None}
    await home.do(owner, 9008, h="den")
    left = await groups_now(home)
    assert left.keys().isdisjoint([event.id for event in inside])
    assert left.keys() >= {event.id for event in outside}


@pytest.mark.proves("N29-109")
@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_IMPORT])
async def test_a_record_that_comes_later_takes_along_what_its_readers_said(
    home: Home, origin: Origin
) -> None:
    removal = owner.sign(9001, [["h", "den"], ["p", carol.pubkey]], "", NOON + 1)
    by_carol = carol.sign(1111, [e(removal)], "why", NOON + 2)
    by_bob = bob.sign(1111, [e(removal)], "good", NOON + 2)
    for event in (by_carol, by_bob, removal):
        assert await home.take(event, origin=origin) == [STORED]
    groups = await groups_now(home)
    assert groups[by_bob.id] == "den"
    assert groups[by_carol.id] == ("den" if origin is Origin.TRUSTED_IMPORT else None)


@pytest.mark.proves("N29-109")
@pytest.mark.parametrize("flags", [[], [["private"], ["hidden"]]])
async def test_what_names_the_end_of_a_group_is_in_no_group(
    home: Home, flags: list[list[str]]
) -> None:
    """8,000 reactions to an own 9008, with fifty popular notes each, were rows that only owners
    read, and kept reads by these notes waiting for a minute."""
    await home.do(alice, 9007, *flags, h="inn")
    ended = await home.do(alice, 9008, h="inn")
    by_kind = [await home.do(alice, kind, ["e", ended.id]) for kind in (7, 1111, 9735, 5)]
    rows = {row.event.id: row for row in await home.store.since(0, 1_000)}
    assert [rows[event.id].group for event in by_kind] == [None] * 4
    assert not rows[by_kind[0].id].quiet
    copied = home.made(alice, 7, ["e", ended.id], content="copied")
    assert await home.take(copied, origin=Origin.TRUSTED_IMPORT) == [STORED]
    rows = {row.event.id: row for row in await home.store.since(0, 1_000)}
    assert rows[copied.id].group == "inn", "its own export may have had it there"


async def test_on_the_wire_a_later_target_changes_nothing(home: Home) -> None:
    """No look-up is made for it: what people react to is here before."""
    (reaction, article) = newest_first()[0][2:]
    assert await home.take(reaction) == [STORED]
    assert await home.take(article) == [STORED]
    assert (await groups_now(home))[reaction.id] is None

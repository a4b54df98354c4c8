"""relay/write/lookups.py: what an event makes the store read before any rule is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups, Role
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Lookups, OwnRow, Slot
from relay.nostr import kinds
from relay.nostr.agents import Attestation
from relay.write.candidate import Candidate, Sender, candidate_of
from relay.write.commands import ManagementChange
from relay.write.lookups import lookups_for
from tests.cast import admin, alice, bob, carol, owner, person
from tests.harness.relay_in_process import NOON, RELAY, policy_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

MODERATOR = person("moderator")
IDS = [f"{n:064x}" for n in range(3)]
GROUPS = (
    Groups()
    .with_group(
        Group(
            "den",
            flags=frozenset({Flag.PRIVATE, Flag.RESTRICTED}),
            members=OrderedMap(
                {
                    admin.pubkey: (Role.ADMIN.value,),
                    MODERATOR.pubkey: (Role.MODERATOR.value,),
                    alice.pubkey: (),
                }
            ),
        )
    )
    .with_group(
        Group("top", members=OrderedMap({admin.pubkey: (Role.ADMIN.value,)}), children=("middle",)),
    )
    .with_group(
        Group(
            "middle",
            members=OrderedMap({admin.pubkey: (Role.ADMIN.value,)}),
            parent="top",
            children=("lowest",),
        )
    )
    .with_group(Group("lowest", parent="middle"))
    .with_group(Group("home", founder=owner.pubkey).with_request(bob.pubkey, IDS[0]))
    .with_group(Group("square", members=OrderedMap({admin.pubkey: (Role.ADMIN.value,)})))
)


@pytest.fixture(scope="module")
def policy() -> PolicySet:
    return policy_of("open")


def candidate(
    policy: PolicySet,
    who: SecretKey,
    kind: int,
    *tags: list[str],
    group: str = "den",
    origin: Origin = Origin.WIRE,
    at: int = NOON,
) -> Candidate:
    event = who.sign(kind, [["h", group], *tags] if group else list(tags), "", at)
    return candidate_from(policy, event, origin)


def candidate_from(
    policy: PolicySet,
    event: Event,
    origin: Origin = Origin.WIRE,
    attested: frozenset[Attestation] = frozenset(),
) -> Candidate:
    keep = policy.keep.keep_of(event)
    derived = policy.groups.derived
    sender = Sender(origin, attested=attested)
    return candidate_of(event, keep, policy.systems, sender, lambda _: True, derived=derived)


def looked_up(
    policy: PolicySet, *candidates: Candidate, commands: Sequence[ManagementChange] = ()
) -> Lookups:
    return lookups_for(
        candidates,
        commands,
        groups=GROUPS,
        actors=policy.actors,
        policy=policy,
        relay=RELAY.pubkey,
        now=NOON,
    )


def alone(looked: Lookups, event_id: str) -> bool:
    """Nothing but whether the event itself is stored, deleted, or by a key that vanished."""
    return (
        looked.ids == {event_id}
        and len(looked.tombstones) == 2
        and not (looked.slots or looked.own_rows or looked.id_prefixes or looked.ending_groups)
        and not (looked.groups_with_content or looked.named or looked.named_near)
    )


@pytest.mark.parametrize("refused", ["too large", "far ahead", "of the relay"])
def test_a_request_to_vanish_that_is_refused_makes_the_store_read_nothing(
    policy: PolicySet, refused: str
) -> None:
    """It could be sent as often as one liked, and the records of a large group read each time."""
    who = RELAY if refused == "of the relay" else alice
    at = NOON + 1000 if refused == "far ahead" else NOON
    content = "x" * 4096 if refused == "too large" else ""
    sent = who.sign(62, [["relay", "ALL_RELAYS"]], content, at)
    looked = looked_up(policy, candidate_from(policy, sent))
    assert alone(looked, sent.id)
    assert not looked.vanishing_keys
    accepted = candidate(policy, alice, 62, ["relay", "ALL_RELAYS"], group="")
    assert looked_up(policy, accepted).vanishing_keys == {alice.pubkey: NOON}


ABCDEF01 = ["previous", "abcdef01"]


@pytest.mark.parametrize(
    ("who", "kind", "group", "is_asked"),
    [
        (alice, 9, "den", True),
        (owner, 9, "den", True),
        (carol, 9, "den", False),
        (carol, 9021, "den", False),
        (carol, 9, "square", True),
        (carol, 9021, "square", True),
        (carol, 9, "nowhere", False),
        (alice, 9002, "den", False),
        (MODERATOR, 9010, "den", True),
        (MODERATOR, 9002, "den", False),
        (admin, 9002, "den", True),
        (carol, 9002, "square", False),
    ],
)
def test_references_are_looked_up_for_those_who_may_write_there(
    policy: PolicySet, *, who: SecretKey, kind: int, group: str, is_asked: bool
) -> None:
    looked = looked_up(policy, candidate(policy, who, kind, ABCDEF01, group=group))
    assert looked.id_prefixes == ({(group, "abcdef01")} if is_asked else set())


@pytest.mark.parametrize(
    "previous",
    [
        ["a"],
        ["abcdef0"],
        ["ABCDEF01"],
        ["a" * 65],
        ["abcdef01", "b"],
        [f"{n:08x}" for n in range(65)],
    ],
)
def test_references_that_are_refused_for_their_form_are_not_looked_up(
    policy: PolicySet, previous: list[str]
) -> None:
    looked = looked_up(policy, candidate(policy, alice, 9, ["previous", *previous]))
    assert not looked.id_prefixes


def test_of_rows_that_are_referred_to_those_are_read_whose_tags_tell_who_may_read_them(
    policy: PolicySet,
) -> None:
    """Reading all that 64 references name took seconds and a gigabyte."""
    looked = looked_up(policy, candidate(policy, alice, 9, ABCDEF01))
    read = [kind for kind in (5, 7, 9, 11, 1059, 1111, 1984, 9009) if kind in looked.whole_kinds]
    assert read == [5, 1059]


def test_an_import_looks_no_reference_up(policy: PolicySet) -> None:
    asked = candidate(policy, alice, 9, ABCDEF01, origin=Origin.IMPORT)
    assert not looked_up(policy, asked).id_prefixes


@pytest.mark.parametrize(
    ("kind", "tags"),
    [
        (9000, [["p", carol.pubkey, "admin"]]),
        (9002, [["name", "x"]]),
        (9005, [["e", id_] for id_ in IDS]),
        (9008, []),
        (9010, [["e", id_] for id_ in IDS]),
        (9, [["e", id_] for id_ in IDS]),
    ],
)
@pytest.mark.parametrize("group", ["den", "square", "nowhere"])
def test_who_has_no_right_in_a_group_makes_the_store_read_nothing_of_it(
    policy: PolicySet, kind: int, tags: list[list[str]], group: str
) -> None:
    sent = candidate(policy, carol, kind, *tags, group=group)
    assert sent.malformed is None
    assert alone(looked_up(policy, sent), sent.event.id)


def test_an_admin_of_the_group_or_the_relay_makes_it_read_what_the_rules_need(
    policy: PolicySet,
) -> None:
    for who in (admin, owner):
        looked = looked_up(policy, candidate(policy, who, 9005, *(["e", id_] for id_ in IDS)))
        assert looked.own_rows == {OwnRow(id_, None, "den") for id_ in IDS}
        assert Slot(RELAY.pubkey, kinds.GROUP_METADATA, "den") in looked.slots
        looked = looked_up(policy, candidate(policy, who, 9002))
        assert looked.groups_with_content == {"den"}
        assert not looked.counted_groups
        for flag in ("private", "hidden", "public", "visible"):
            looked = looked_up(policy, candidate(policy, who, 9002, [flag]))
            assert looked.groups_with_content == looked.counted_groups == {"den"}


def test_who_admits_people_makes_it_read_none_of_their_requests(policy: PolicySet) -> None:
    """A 9000 may name 5,000 keys, and each may have asked to join with 500 kB."""
    for kind in (9000, 9001):
        sent = candidate(policy, owner, kind, ["p", bob.pubkey], group="home")
        assert looked_up(policy, sent).ids == {sent.event.id}
    again = candidate(policy, bob, 9021, group="home")
    assert looked_up(policy, again).ids == {again.event.id, IDS[0]}, "it is replaced"


@pytest.mark.parametrize("kind", [9002, 9008])
def test_what_admins_alone_may_do_makes_the_store_read_nothing_for_a_moderator(
    policy: PolicySet, kind: int
) -> None:
    sent = candidate(policy, MODERATOR, kind)
    assert alone(looked_up(policy, sent), sent.event.id)
    promoted = candidate(policy, admin, 9000, ["p", MODERATOR.pubkey, "admin"])
    looked = looked_up(policy, promoted, sent)
    assert looked.ending_groups | looked.groups_with_content == {"den"}


@pytest.mark.parametrize("at", [NOON - 3000, NOON + 100])
@pytest.mark.parametrize(("kind", "tags"), [(9002, []), (9005, [["e", IDS[0]]]), (9008, [])])
def test_of_a_record_with_a_wrong_date_the_store_reads_nothing_of_its_group(
    policy: PolicySet, kind: int, tags: list[list[str]], at: int
) -> None:
    """Old 9008s, each refused, made the writer find out how large the group is."""
    for who in (admin, owner):
        sent = candidate(policy, who, kind, *tags, at=at)
        assert alone(looked_up(policy, sent), sent.event.id)
    imported = candidate(policy, admin, kind, *tags, origin=Origin.IMPORT, at=at)
    assert not alone(looked_up(policy, imported), imported.event.id)


def test_a_right_that_an_earlier_event_of_the_batch_gives_counts(policy: PolicySet) -> None:
    """Also one that follows from it in turn."""
    last = candidate(policy, carol, 9005, ["e", IDS[0]])
    own = {OwnRow(IDS[0], None, "den")}
    first = candidate(policy, admin, 9000, ["p", bob.pubkey, "admin"])
    second = candidate(policy, bob, 9000, ["p", carol.pubkey, "admin"])
    assert looked_up(policy, first, second, last).own_rows == own
    assert not looked_up(policy, second, last).own_rows
    assert not looked_up(policy, last, first, second).own_rows
    made = candidate(policy, carol, 9007, group="new")
    deleted = candidate(policy, carol, 9005, ["e", IDS[0]], group="new")
    assert looked_up(policy, made, deleted).own_rows == {OwnRow(IDS[0], None, "new")}
    joined = candidate(policy, carol, 9021)
    assert looked_up(policy, joined, candidate(policy, carol, 9, ABCDEF01)).id_prefixes


def test_a_deletion_reads_rows_of_its_author_only(policy: PolicySet) -> None:
    """And 16 of those that it names, whose group it may belong to."""
    ids = [f"{n:064x}" for n in range(3000)]
    sent = candidate(policy, carol, 5, *(["e", id_] for id_ in ids), group="")
    looked = looked_up(policy, sent)
    assert looked.own_rows == {OwnRow(id_, carol.pubkey) for id_ in ids}
    assert looked.ids == {sent.event.id, *ids[:16]}


SUPERSEDES = [["d", f"anamnesis:superseded:{IDS[0]}"], ["x", IDS[0]], ["e", IDS[1]]]
MEMBERS_SUPERSEDE = """
[members]
attestations = "groups"

[[rule]]
name = "agents and owners supersede"
match = { kinds = [30078], d_prefix = "anamnesis:superseded:" }
write = ["member", "owner", "agent"]
schema = "anamnesis"
"""
ANYBODY_SUPERSEDES = """
[[rule]]
name = "agents and owners supersede"
match = { kinds = [30078], d_prefix = "anamnesis:superseded:" }
schema = "anamnesis"
"""


def test_records_that_an_author_may_not_write_make_the_store_read_no_other_records(
    policy: PolicySet,
) -> None:
    """Of names that three million notes had, each look-up took over a second."""
    sent = candidate(policy, carol, kinds.APP_DATA, *SUPERSEDES, group="")
    looked = looked_up(policy, sent)
    assert sent.references.names
    assert looked.named == looked.named_near == set()
    for behind in (
        candidate(policy, carol, kinds.RELAY_JOIN, group=""),
        candidate(policy, carol, kinds.JOIN_REQUEST, group="square"),
        candidate(policy, carol, kinds.CREATE_GROUP, group="own"),
    ):
        assert looked_up(policy, behind, sent).named_near == set()
    vouched = Attestation(carol.pubkey, alice.pubkey)
    lent = candidate_from(policy, sent.event, attested=frozenset({vouched}))
    looked = looked_up(policy, lent)
    assert looked.named == looked.named_near == set()
    imported = candidate(policy, carol, kinds.APP_DATA, *SUPERSEDES, group="", origin=Origin.IMPORT)
    assert looked_up(policy, imported).named == sent.references.names


def test_who_may_become_known_or_an_agent_in_the_batch_has_records_looked_up(
    policy: PolicySet,
) -> None:
    sent = candidate(policy, carol, kinds.APP_DATA, *SUPERSEDES, group="")
    change = ManagementChange((), lambda _: None)
    assert looked_up(policy, sent, commands=[change]).named_near == sent.references.names


def test_who_may_become_a_member_in_the_batch_has_records_looked_up() -> None:
    policy = policy_of("open", MEMBERS_SUPERSEDE)
    sent = candidate(policy, carol, kinds.APP_DATA, *SUPERSEDES, group="")
    assert looked_up(policy, sent).named_near == set()
    joins = candidate(policy, carol, kinds.JOIN_REQUEST, group="square")
    assert looked_up(policy, joins, sent).named_near == sent.references.names
    for agent, is_looked_up in ((carol, True), (bob, False)):
        vouched = Attestation(agent.pubkey, alice.pubkey)
        lent = candidate_from(policy, sent.event, attested=frozenset({vouched}))
        assert bool(looked_up(policy, lent).named_near) == is_looked_up


def test_chains_of_records_are_followed_for_owners_and_agents() -> None:
    tags = SUPERSEDES
    policy = policy_of("open", ANYBODY_SUPERSEDES)
    for who, follows in ((owner, True), (carol, False)):
        sent = candidate(policy, who, kinds.APP_DATA, *tags, group="")
        assert sent.references.names
        looked = looked_up(policy, sent)
        assert looked.named == (sent.references.names if follows else set())
        assert looked.named_near == (set() if follows else sent.references.names)


def test_who_may_become_known_in_the_batch_may_make_a_group_in_it() -> None:
    """What the relay then signs was not looked up: the batch failed by an assertion, and each of
    its events was committed alone."""
    policy = policy_of("open", '[groups]\ncreate = ["known", "owner"]')
    makes = candidate(policy, carol, kinds.CREATE_GROUP, group="new")
    notice = Slot(RELAY.pubkey, kinds.GROUP_METADATA, "new")
    assert notice not in looked_up(policy, makes).slots
    for earlier in (
        candidate(policy, carol, kinds.JOIN_REQUEST, group="square"),
        candidate(policy, admin, kinds.PUT_USER, ["p", carol.pubkey], group="square"),
        candidate(policy, carol, kinds.RELAY_JOIN, group=""),
    ):
        assert notice in looked_up(policy, earlier, makes).slots
    change = ManagementChange((), lambda _: None)
    assert notice in looked_up(policy, makes, commands=[change]).slots


def test_a_request_to_join_lets_nobody_follow_chains(policy: PolicySet) -> None:
    """It gives no role; whoever a 9000 names may be an agent when the record is judged."""
    tags = [["d", f"anamnesis:superseded:{IDS[0]}"], ["x", IDS[0]], ["e", IDS[1]]]
    sent = candidate(policy, carol, kinds.APP_DATA, *tags, group="den")
    joins = candidate(policy, carol, kinds.JOIN_REQUEST, group="den")
    assert looked_up(policy, joins, sent).named == set()
    for group, makes_agents in (("den", False), ("home", True)):
        sent = candidate(policy, carol, kinds.APP_DATA, *tags, group=group)
        put = ["p", carol.pubkey, "agent"]
        added = candidate(policy, owner, kinds.PUT_USER, put, group=group)
        looked = looked_up(policy, added, sent)
        assert looked.named == (sent.references.names if makes_agents else set())


@pytest.mark.parametrize("kind", [5, 9, 9000, 30023])
def test_nothing_is_looked_up_for_who_must_log_in_first(kind: int) -> None:
    policy = policy_of("group", '[auth]\nwrites = "groups"\n')
    tags = (["e", IDS[0]], ["a", f"30023:{alice.pubkey}:x"], ["p", alice.pubkey], ABCDEF01)
    asks = candidate(policy, alice, kind, *tags)
    assert looked_up(policy, asks) == looked_up(policy)
    imported = candidate(policy, alice, kind, *tags, origin=Origin.IMPORT)
    assert looked_up(policy, imported).ids


@pytest.mark.parametrize(
    ("kind", "parents", "related"),
    [
        (9008, ["den", "home", *(f"g{number}" for number in range(4000))], {"top", "lowest"}),
        (9002, ["den"], {"top", "den"}),
        (9002, [], {"top"}),
    ],
)
def test_only_relatives_of_the_group_are_read_whatever_parents_an_event_names(
    policy: PolicySet, kind: int, parents: list[str], related: set[str]
) -> None:
    """4,000 descriptions of 60 kB that a 9008 named took the writer 2 s, again and again."""
    tags = [["parent", group_id] for group_id in parents]
    looked = looked_up(policy, candidate(policy, admin, kind, *tags, group="middle"))
    described = {slot.d for slot in looked.slots if slot.kind == kinds.GROUP_METADATA}
    assert described == related | {"middle"}


def everything_named(group: str) -> list[list[str]]:
    """4,990 tags: more than `max_event_tags` leaves no event."""
    tags = [["parent", f"g{n}"] for n in range(5)] if group == "nowhere" else []
    names = ("e", "E", "a", "A", "p", "code", "q", "previous", "d", "hk")
    for n in range(498):
        hex_ = f"{n:064x}"
        address = f"30078:{hex_}:{n}"
        tags += [[name, address if name in "aA" else hex_] for name in names]
    return tags


WHOLE_ROWS = [
    (1, "", 1),
    (9, "square", 1),
    (9, "den", 1),
    (5, "", 17),
    (5, "square", 1),
    (7, "", 17),
    (1059, "", 1),
    *((kind, "square", 1) for kind in (9000, 9001, 9002, 9005, 9008, 9009, 9010)),
    (9007, "nowhere", 8),
    (9021, "square", 8),
    (9022, "square", 8),
    (28934, "", 2),
    (28936, "", 2),
    (62, "", 4),
    (30078, "", 2),
    (30078, "square", 2),
    (39000, "", 2),
]
"""Kind, group, and how many rows an event of a stranger may make the store read: ids and slots."""


@pytest.mark.parametrize(("kind", "group", "most"), WHOLE_ROWS)
def test_the_largest_event_of_a_stranger_makes_the_store_read_few_rows(
    policy: PolicySet, kind: int, group: str, most: int
) -> None:
    tags = [["relay", "ALL_RELAYS"]] if kind == 62 else everything_named(group)
    looked = looked_up(policy, candidate(policy, carol, kind, *tags, group=group))
    assert len(looked.ids) + len(looked.slots) <= most
    assert all(own.pubkey == carol.pubkey for own in looked.own_rows), "of others"
    assert len(looked.id_prefixes) <= 64
    assert not looked.named, "chains are followed for owners and agents"
    assert not looked.groups_with_content
    sought = len(looked.tombstones) + len(looked.own_rows) + len(looked.named_near)
    assert sought <= 5000

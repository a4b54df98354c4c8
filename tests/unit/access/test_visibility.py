"""relay/access/visibility.py with the packaged rules: who reads what. N29-90…105, N59,
N46-03.

The den is private, the attic hidden, tea is for everybody, and the yard was deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from relay.access.actors import Actors, Attestations, Household, author_words, is_known
from relay.access.read_rules import Match, ReadRule, Target
from relay.access.visibility import (
    ANONYMOUS,
    BANNED,
    Reading,
    Viewer,
    everything_visible,
    names_restricted,
    row_readers,
    visibility_for,
)
from relay.errors import Prefix
from relay.facts import Who
from relay.groups.actions import Flag
from relay.groups.group import EndedGroup, Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Stored
from relay.nostr.agents import Attestation
from relay.nostr.filters import Filter
from relay.nostr.kinds import KindSet
from tests.cast import admin, alice, bob, carol, dave, owner, person, robot, stranger
from tests.contract.writing import asked, group_of, unsigned
from tests.harness.folders import loaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from relay.access.read_rules import Row
    from relay.access.visibility import Visibility
    from relay.nostr.keys import SecretKey

RELAY = person("relay")
ROBOT = robot.pubkey
ACTORS = Actors(frozenset({owner.pubkey}), frozenset({robot.pubkey}), relay=RELAY.pubkey)
DEN = (
    Group("den", flags=frozenset({Flag.PRIVATE}))
    .with_users({admin.pubkey: ("admin",), alice.pubkey: (), carol.pubkey: ()})
    .with_removed({carol.pubkey})
    .with_request(dave.pubkey, "e" * 64)
)
ATTIC = Group("attic", flags=frozenset({Flag.HIDDEN})).with_users({bob.pubkey: ("admin",)})
TEA = Group("tea").with_users({admin.pubkey: ("admin",), alice.pubkey: ()})
GROUPS = (
    Groups()
    .with_group(DEN)
    .with_group(ATTIC)
    .with_group(TEA)
    .with_group(Group("yard"))
    .without_group("yard")
)

# alice: member of den. admin: its admin. carol: removed from it. dave: asked to join it.
# bob: member of attic. robot: an agent. stranger: an unknown key. passer: anonymous.
KEYS: Final[dict[str, SecretKey]] = {
    "alice": alice,
    "admin": admin,
    "carol": carol,
    "dave": dave,
    "bob": bob,
    "owner": owner,
    "robot": robot,
    "relay": RELAY,
    "stranger": stranger,
}
ANYONE = frozenset({*KEYS, "passer"})
OWNERS = frozenset({"owner", "relay"})
IN_DEN = OWNERS | {"alice", "admin"}
IN_ATTIC = OWNERS | {"bob"}
MEMBERS = frozenset({"alice", "admin", "bob"})


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[ReadRule, ...]:
    return loaded(tmp_path_factory.mktemp("policies")).read_rules


def row(
    kind: int, *tags: list[str], by: SecretKey = alice, quiet: bool = False, group: str = ""
) -> Row:
    event = unsigned(by, kind, tags)
    return Stored(1, event, group or group_of(event), quiet)


def viewer_of(name: str) -> Viewer:
    return Viewer() if name == "passer" else Viewer(frozenset({KEYS[name].pubkey}))


def seen_by(rules: tuple[ReadRule, ...], name: str, groups: Groups = GROUPS) -> Visibility:
    return visibility_for(viewer_of(name), rules, ACTORS, groups)


def readers_of(
    rules: tuple[ReadRule, ...], what: Row, groups: Groups = GROUPS, **conditions: object
) -> frozenset[str]:
    filter_ = asked(**conditions)
    return frozenset(
        name for name in ANYONE if seen_by(rules, name, groups).may_read(what, filter_)
    )


P_CAROL, P_ALICE = ["p", carol.pubkey], ["p", alice.pubkey]
H_DEN, H_ATTIC, H_TEA, H_YARD = (["h", name] for name in ("den", "attic", "tea", "yard"))


@pytest.mark.parametrize(
    ("what", "readers"),
    [
        # outside groups
        (row(1), ANYONE),
        (row(0, by=bob), ANYONE),
        # a public group: N29-99
        (row(9, H_TEA), ANYONE),
        (row(39002, ["d", "tea"], by=RELAY), ANYONE),
        (row(9000, H_TEA, P_CAROL), ANYONE),
        (row(9021, H_TEA, by=dave), OWNERS | {"admin", "dave"}),
        (row(9009, H_TEA, ["code", "sesame-1"], by=admin), OWNERS | {"admin"}),
        (row(1984, H_TEA), OWNERS | {"admin", "alice"}),
        # a private one: N29-90, N29-98; own messages of a removed member: N29-96, Z-09
        (row(9, H_DEN), IN_DEN),
        (row(9, H_DEN, P_CAROL, by=carol), IN_DEN),
        (row(20001, H_DEN, P_CAROL), IN_DEN),
        (row(30023, H_DEN, ["d", "x"]), IN_DEN),
        (row(9002, H_DEN, by=admin), IN_DEN),
        (row(39000, ["d", "den"], by=RELAY), ANYONE),
        (row(39003, ["d", "den"], by=RELAY), ANYONE),
        (row(39001, ["d", "den"], P_CAROL, by=RELAY), IN_DEN),
        (row(39002, ["d", "den"], P_CAROL, by=RELAY), IN_DEN),
        (row(9000, H_DEN, P_CAROL, by=admin), IN_DEN | {"carol"}),
        (row(9001, H_DEN, P_CAROL, by=admin), IN_DEN | {"carol"}),
        (row(9000, H_DEN, P_ALICE, by=carol), IN_DEN),
        (row(9021, H_DEN, by=dave), OWNERS | {"admin", "dave"}),
        (row(9022, H_DEN, by=carol), IN_DEN | {"carol"}),
        (row(9009, H_DEN, ["code", "sesame-1"], by=alice), OWNERS | {"admin"}),
        (row(1984, H_DEN, by=alice), IN_DEN),
        (row(1984, H_DEN, by=carol), OWNERS | {"admin"}),
        # a hidden one: N29-97, Z-02; who was removed may know it: N29-72
        (row(9, H_ATTIC, by=bob), IN_ATTIC),
        (row(39000, ["d", "attic"], by=RELAY), IN_ATTIC),
        (row(39003, ["d", "attic"], by=RELAY), IN_ATTIC),
        (row(39002, ["d", "attic"], by=RELAY), IN_ATTIC),
        (row(9001, H_ATTIC, P_CAROL, by=bob), IN_ATTIC | {"carol"}),
        # a deleted one: N29-124
        (row(9007, H_YARD, by=admin), OWNERS),
        (row(9008, H_YARD, P_CAROL, by=admin), OWNERS),
        (row(9001, H_YARD, P_CAROL, by=admin), OWNERS),
        (row(9, ["h", "never made"]), OWNERS),
        # deletions: N29-104
        (row(5, ["e", "e" * 64]), ANYONE),
        (row(5, ["e", "e" * 64], quiet=True), OWNERS | {"alice"}),
        (row(5, ["e", "e" * 64], by=carol, quiet=True, group="den"), IN_DEN),
        (row(5, H_TEA, by=carol, quiet=True), OWNERS | {"alice", "admin", "carol"}),
        # wraps and messages, owners not excepted: N59-03, N59-11, N59-12, N29-102
        (row(1059, P_CAROL, by=stranger), frozenset({"carol"})),
        (row(21059, P_CAROL, P_ALICE, by=stranger), frozenset({"carol", "alice"})),
        (row(1059, P_CAROL, H_DEN), frozenset()),
        (row(4, P_CAROL), frozenset({"alice", "carol"})),
        # memory
        (row(30078, ["d", "snowclaw:config:x"], by=owner), OWNERS | {"robot"}),
        (row(30078, ["d", "snowclaw:config:x"], H_DEN, by=owner), OWNERS | {"robot"}),
        (row(30078, ["d", "snowclaw:memory:npub:x"], by=robot), OWNERS | {"robot"}),
        (row(30078, ["d", "snowclaw:memory:group:x"], H_DEN, by=robot), IN_DEN),
        (row(30078, ["d", "snowclaw:memory:group:x"], H_TEA, by=robot), IN_DEN | {"robot"}),
        (row(30078, ["d", "my settings"]), frozenset({"alice"})),
        (row(30093, ["d", "x"], by=robot), OWNERS | {"robot"}),
        (row(30093, ["d", "x"], H_DEN, by=robot), IN_DEN),
        (row(78, ["d", "anamnesis:memory:x"], by=robot), OWNERS | MEMBERS | {"robot"}),
        (
            row(31234, ["visibility", "personal"], ["scope", carol.pubkey], by=robot),
            OWNERS | {"robot", "carol"},
        ),
    ],
)
def test_a_row_is_read_by(rules: tuple[ReadRule, ...], what: Row, readers: frozenset[str]) -> None:
    assert readers_of(rules, what) == readers


@pytest.mark.parametrize(
    ("reader", "readers"),
    [
        (Who.ANYONE, ANYONE),
        (Who.KNOWN, MEMBERS | {"owner", "robot"}),
        (Who.MEMBER, MEMBERS),
        (Who.OWNER, OWNERS),
        (Who.AGENT, frozenset({"robot"})),
        (Who.AUTHOR, frozenset({"carol"})),
        (Who.RECIPIENT, frozenset({"dave"})),
        (Who.INSIDER, frozenset({"alice", "admin"})),
        (Who.ADMIN, frozenset({"admin"})),
        (Who.GROUP, frozenset({"alice", "admin"})),
        (Who.VISIBLE, ANYONE),
        (Who.TRUSTED, frozenset()),
        (Who.NOBODY, frozenset()),
    ],
)
def test_a_rule_with_one_who_word_is_read_by(reader: Who, readers: frozenset[str]) -> None:
    what = row(9, H_DEN, ["p", dave.pubkey], by=carol)
    assert readers_of((ReadRule("r", Match(), frozenset({reader})),), what) == readers


def test_reading_follows_membership_and_flags(
    rules: tuple[ReadRule, ...],
) -> None:
    """N29-94, N29-95, N29-101: membership and flags of now."""
    chat = row(9, H_DEN)
    den = DEN.with_users({dave.pubkey: ()}).with_removed({alice.pubkey})
    assert readers_of(rules, chat, GROUPS.with_group(den)) == OWNERS | {"admin", "dave"}
    assert readers_of(rules, chat, GROUPS.with_group(replace(DEN, flags=frozenset()))) == ANYONE
    shut = GROUPS.with_group(replace(TEA, flags=frozenset({Flag.PRIVATE})))
    assert readers_of(rules, row(9, H_TEA), shut) == IN_DEN


def test_a_viewer_with_several_keys_reads_what_each_may(rules: tuple[ReadRule, ...]) -> None:
    """N42-07: also two of which each alone may not."""
    both = Viewer(frozenset({alice.pubkey, bob.pubkey}))
    seen = visibility_for(both, rules, ACTORS, GROUPS)
    assert all(seen.may_read(row(9, h, by=carol), None) for h in (H_DEN, H_ATTIC))


def test_only_by_requires_one_of_its_filter_keys(
    rules: tuple[ReadRule, ...],
) -> None:
    """N46-03, D-32: not even an owner reads all messages to remote signers."""
    call = row(24133, P_CAROL, by=stranger)
    assert readers_of(rules, call, kinds=[24133]) == frozenset()
    assert readers_of(rules, call, tag_p=[carol.pubkey]) == ANYONE
    assert readers_of(rules, call, authors=[stranger.pubkey]) == ANYONE
    sealed = row(1080, by=stranger)
    assert readers_of(rules, sealed, kinds=[1080]) == frozenset()
    assert readers_of(rules, sealed, authors=[stranger.pubkey]) == OWNERS | MEMBERS | {"robot"}
    assert readers_of(rules, sealed, ids=[sealed.event.id]) == OWNERS | MEMBERS | {"robot"}
    assert not seen_by(rules, "owner").may_read(call, None)


@pytest.mark.proves("A-20")
def test_a_trusted_connection_reads_aman_memory_and_no_more(rules: tuple[ReadRule, ...]) -> None:
    """A-20."""
    indexer = visibility_for(Viewer(trusted=True), rules, ACTORS, GROUPS)
    assert indexer.may_read(row(30093, ["d", "x"], by=robot), None)
    assert not indexer.may_read(row(30093, ["d", "x"], H_DEN, by=robot), None)
    assert not indexer.may_read(row(30078, ["d", "x"]), None)


def test_rows_of_a_household_are_read_by_its_own_keys(rules: tuple[ReadRule, ...]) -> None:
    """OWNER and AGENT of a row by one of its keys are those of the household."""
    home = Household("cottage", frozenset({dave.pubkey}), frozenset({carol.pubkey}))
    actors = replace(ACTORS, households=(home,))
    readers = {
        name
        for name in ANYONE
        if visibility_for(viewer_of(name), rules, actors, GROUPS).may_read(
            row(30093, ["d", "x"], by=carol), None
        )
    }
    assert readers == OWNERS | {"carol", "dave"}


def test_the_owner_of_a_household_reads_no_records_that_its_agents_make_of_groups(
    rules: tuple[ReadRule, ...],
) -> None:
    """Their codes, say, would let the owner in. What they write there and remember it reads."""
    home = Household("cottage", frozenset({dave.pubkey}), frozenset({bob.pubkey}))
    actors = replace(ACTORS, households=(home,))
    h = ["h", "attic"]

    def readers(what: Row) -> set[str]:
        return {
            name
            for name in ANYONE
            if visibility_for(viewer_of(name), rules, actors, GROUPS).may_read(what, None)
        }

    for kind in (9000, 9001, 9002, 9005, 9007, 9009, 9010, 9021, 9022):
        record = row(kind, h, P_CAROL, by=bob)
        assert readers(record) == readers_of(rules, record), "as without the household"
    for kind in (7, 9, 30078, 30093):
        assert "dave" in readers(row(kind, h, ["d", "x"], by=bob)), kind
    to_agents = (ReadRule("r", Match(), frozenset({Who.AGENT})),)
    agent = visibility_for(viewer_of("bob"), to_agents, actors, GROUPS)
    assert agent.may_read(row(9009, h, by=dave), None), "of the same household"


def test_agents_of_the_relay_do_not_read_rows_of_a_household() -> None:
    """Owners of the relay read them."""
    home = Household("cottage", frozenset({dave.pubkey}), frozenset({carol.pubkey}))
    actors = replace(ACTORS, households=(home,))
    rules = (ReadRule("r", Match(), frozenset({Who.OWNER, Who.AGENT})),)

    def readers(by: SecretKey) -> set[str]:
        return {
            name
            for name in ANYONE
            if visibility_for(viewer_of(name), rules, actors, GROUPS).may_read(row(1, by=by), None)
        }

    assert readers(carol) == readers(dave) == OWNERS | {"carol", "dave"}
    assert readers(alice) == OWNERS | {"robot"}


def test_members_of_groups_do_not_read_rows_of_a_household_by_that() -> None:
    """The owner of another household may make a group, and put anybody into it."""
    home = Household("cottage", frozenset({dave.pubkey}), frozenset({carol.pubkey}))
    actors = replace(ACTORS, households=(home,))
    tea = GROUPS.by_id["tea"]
    groups = GROUPS.with_group(tea.with_users({carol.pubkey: (), stranger.pubkey: ()}))

    def readers(by: SecretKey, *words: Who) -> set[str]:
        rules = (ReadRule("r", Match(), frozenset({Who.MEMBER, *words})),)
        return {
            name
            for name in ANYONE
            if visibility_for(viewer_of(name), rules, actors, groups).may_read(row(1, by=by), None)
        }

    assert "stranger" in readers(alice)
    assert readers(carol) == readers(dave) == {"carol"}, "of the household and in a group"
    everybody = OWNERS | {"carol", "dave"}
    assert readers(carol, Who.OWNER, Who.AGENT) == everybody
    assert "stranger" in readers(carol, Who.KNOWN)


def test_the_owner_of_a_household_is_no_admin_of_groups() -> None:
    home = Household("cottage", frozenset({dave.pubkey}), frozenset({carol.pubkey}))
    actors = replace(ACTORS, households=(home,))
    group = GROUPS.by_id["tea"]
    assert Who.OWNER in author_words(dave.pubkey, actors, GROUPS, group)
    assert Who.ADMIN not in author_words(dave.pubkey, actors, GROUPS, group)
    assert Who.AGENT in author_words(carol.pubkey, actors, GROUPS, None)
    assert Who.KNOWN in author_words(carol.pubkey, actors, GROUPS, None)


def test_the_relay_itself_reads_everything() -> None:
    seen = everything_visible(ACTORS, GROUPS)
    assert all(seen.may_read(row(kind, H_ATTIC, P_CAROL), None) for kind in (4, 9, 1059, 24133))
    assert seen.gate([asked(kinds=[1059])]) is None


# -- the gate -------------------------------------------------------------------------------------

AUTH, NO = Prefix.AUTH_REQUIRED, Prefix.RESTRICTED


@pytest.mark.parametrize(
    ("name", "conditions", "word"),
    [
        # N29-92: only private groups that this viewer may not read
        ("passer", {"tag_h": ["den"]}, AUTH),
        ("stranger", {"tag_h": ["den"], "limit": 0}, NO),
        ("stranger", {"tag_h": ["den", "attic"], "kinds": [9]}, NO),
        ("alice", {"tag_h": ["den"]}, None),
        ("passer", {"tag_h": ["tea"]}, None),
        ("stranger", {"tag_h": ["den", "tea"]}, None),
        ("carol", {"tag_h": ["den"]}, None),
        ("dave", {"tag_h": ["den"]}, None),
        ("bob", {"tag_h": ["den"]}, NO),
        ("robot", {"tag_h": ["den"]}, None),
        ("owner", {"tag_h": ["den", "attic"]}, None),
        ("relay", {"tag_h": ["attic"]}, None),
        # N29-105: by id or without conditions it is accepted, and matches nothing
        ("passer", {"ids": ["e" * 64]}, None),
        ("passer", {}, None),
        ("passer", {"tag_d": ["attic"], "kinds": [39000]}, None),
        # N59-04
        ("passer", {"kinds": [1059]}, AUTH),
        ("carol", {"kinds": [1059, 21059]}, None),
        ("carol", {"kinds": [1059], "tag_p": [carol.pubkey]}, None),
        ("carol", {"kinds": [1059], "tag_p": [alice.pubkey]}, NO),
        ("passer", {"kinds": [1059, 1]}, None),
        ("carol", {"kinds": [4], "authors": [alice.pubkey]}, None),
        ("carol", {"kinds": [4], "authors": [alice.pubkey], "tag_p": [bob.pubkey]}, NO),
        # G-18, G-19
        ("passer", {"kinds": [30078]}, AUTH),
        ("passer", {"kinds": [30093, 1988]}, AUTH),
        ("alice", {"kinds": [30078], "tag_d": ["snowclaw:config:"]}, NO),
        ("robot", {"kinds": [30078], "tag_d": ["snowclaw:config:"]}, None),
        ("alice", {"kinds": [30078]}, None),
        # as their entries: whoever may read no entry may read no record about one
        ("passer", {"kinds": [30078], "tag_d": ["anamnesis:vouch:x"]}, AUTH),
        ("stranger", {"kinds": [30078], "tag_d": ["anamnesis:vouch:x"], "authors": [ROBOT]}, NO),
        ("alice", {"kinds": [30078], "tag_d": ["anamnesis:vouch:x"], "authors": [ROBOT]}, None),
        # impossible filters, and too many combinations
        ("passer", {"kinds": [1059], "ids": []}, None),
        ("passer", {"kinds": [1059, *range(30000, 30300)]}, None),
    ],
)
def test_a_query_that_can_match_nothing_readable_is_closed(
    rules: tuple[ReadRule, ...], name: str, conditions: dict[str, object], word: Prefix | None
) -> None:
    reject = seen_by(rules, name).gate([asked(**conditions)])
    assert (None if reject is None else reject.prefix) == word


def test_a_query_is_accepted_while_a_target_could_be_readable() -> None:
    like = ReadRule(
        "like", Match(KindSet.of(7)), frozenset({Who.TARGET}), target=Target(frozenset({1}), "e")
    )
    shut = ReadRule("shut", Match(KindSet.of(1)), frozenset({Who.OWNER}))
    reactions = asked(kinds=[7])
    assert seen_by((like,), "passer").gate([reactions]) is None
    assert seen_by((like, shut), "owner").gate([reactions]) is None
    refused = seen_by((like, shut), "alice").gate([reactions])
    assert refused is not None
    assert refused.prefix is NO
    # A target of a target does not count.
    around = ReadRule(
        "around", Match(KindSet.of(1)), frozenset({Who.TARGET}), target=Target(frozenset({7}), "e")
    )
    assert seen_by((like, around), "owner").gate([reactions]) is not None


ALICE, BOB = [alice.pubkey], [bob.pubkey]


@pytest.mark.parametrize(
    ("readers", "name", "conditions", "word"),
    [
        (Who.AUTHOR, "alice", {}, None),
        (Who.AUTHOR, "alice", {"authors": ALICE}, None),
        (Who.AUTHOR, "alice", {"authors": BOB}, NO),
        (Who.AUTHOR, "passer", {}, AUTH),
        (Who.RECIPIENT, "alice", {}, None),
        (Who.RECIPIENT, "alice", {"tag_p": ALICE}, None),
        (Who.RECIPIENT, "alice", {"tag_p": BOB}, NO),
        (Who.RECIPIENT, "passer", {}, AUTH),
        ("tag:w", "alice", {}, None),
        ("tag:w", "alice", {"tag_w": ALICE}, None),
        ("tag:w", "alice", {"tag_w": BOB}, NO),
        ("tag:w", "passer", {}, AUTH),
        (Who.GROUP, "passer", {"tag_h": ["tea"]}, None),
        (Who.VISIBLE, "passer", {"tag_h": ["tea"]}, None),
        (Who.INSIDER, "alice", {"tag_h": ["den"]}, None),
        (Who.INSIDER, "stranger", {"tag_h": ["tea"]}, NO),
        (Who.ADMIN, "admin", {"tag_h": ["den"]}, None),
        (Who.ADMIN, "stranger", {"tag_h": ["tea"]}, NO),
        (Who.OWNER, "owner", {}, None),
        (Who.OWNER, "admin", {}, NO),
        (Who.NOBODY, "owner", {}, NO),
    ],
)
def test_a_query_is_accepted_while_the_viewer_could_be_such_a_reader(
    readers: Who | str, name: str, conditions: dict[str, object], word: Prefix | None
) -> None:
    if isinstance(readers, Who):
        rule = ReadRule("r", Match(KindSet.of(7)), frozenset({readers}))
    else:
        rule = ReadRule("r", Match(KindSet.of(7)), frozenset(), tag_readers=("w",))
    reject = seen_by((rule,), name).gate([asked(kinds=[7], **conditions)])
    assert (None if reject is None else reject.prefix) == word


SETTINGS: Final = KindSet.of(30078)


@pytest.mark.parametrize(
    ("match", "conditions", "closed"),
    [
        (Match(SETTINGS), {}, True),
        (Match(), {}, False),
        (Match(KindSet.of(7)), {}, False),
        (Match(SETTINGS, quiet=True), {}, False),
        (Match(SETTINGS, ended=True), {}, False),
        (Match(SETTINGS, tags=(("t", True),)), {"tag_t": ["x"]}, False),
        (Match(SETTINGS, d=frozenset({"x"})), {"tag_d": ["x"]}, False),
        (Match(SETTINGS, authors=frozenset(ALICE)), {"authors": ALICE}, False),
        (Match(SETTINGS, h=frozenset({"tea"})), {"tag_h": ["tea"]}, False),
        (Match(SETTINGS, h=True), {"tag_h": ["tea"]}, True),
        (Match(SETTINGS, h=True), {}, False),
        (Match(SETTINGS, h=False), {"tag_h": ["tea"]}, False),
        (Match(SETTINGS, h=False), {}, False),
        (Match(SETTINGS, d_prefixes=("x:",)), {}, False),
        (Match(SETTINGS, d_prefixes=("x:",)), {"tag_d": ["x:1", "x:2"]}, True),
        (Match(SETTINGS, d_prefixes=("x:",)), {"tag_d": ["x:1", "y:2"]}, False),
        (Match(SETTINGS, d_prefixes=("x:y:",)), {"tag_d": ["x:y:"]}, True),
        (Match(SETTINGS, d_prefixes=("x:y:",)), {"tag_d": ["x:"]}, False),
    ],
)
def test_a_rule_closes_a_query_when_it_applies_to_all_that_could_match(
    match: Match, conditions: dict[str, object], *, closed: bool
) -> None:
    seen = seen_by((ReadRule("r", match, frozenset({Who.NOBODY})),), "passer")
    assert (seen.gate([asked(kinds=[30078], **conditions)]) is not None) is closed


@pytest.mark.parametrize(
    ("exception", "conditions", "closed"),
    [
        (Match(), {}, False),
        (Match(KindSet.of(7)), {}, True),
        (Match(SETTINGS, authors=frozenset(ALICE)), {}, False),
        (Match(SETTINGS, h=True), {"tag_h": ["tea"]}, False),
        (Match(SETTINGS, h=False), {"tag_h": ["tea"]}, True),
        (Match(SETTINGS, h=frozenset({"tea"})), {"tag_h": ["tea"]}, False),
        (Match(SETTINGS, d_prefixes=("x:",)), {}, False),
        (Match(SETTINGS, d_prefixes=("x:",)), {"tag_d": ["x:1"]}, False),
        (Match(SETTINGS, d_prefixes=("x:",)), {"tag_d": ["y:1"]}, True),
        (Match(SETTINGS, d_prefixes=("x:",)), {"tag_d": ["x:1", "y:1"]}, False),
        (Match(SETTINGS, d_prefixes=("x:y:",)), {"tag_d": ["x:"]}, False),
    ],
)
def test_an_exception_that_could_match_accepts_the_query(
    exception: Match, conditions: dict[str, object], *, closed: bool
) -> None:
    rule = ReadRule("r", Match(SETTINGS), frozenset({Who.NOBODY}), excepts=(exception,))
    seen = seen_by((rule,), "passer")
    assert (seen.gate([asked(kinds=[30078], **conditions)]) is not None) is closed


def test_a_query_of_many_combinations_is_accepted() -> None:
    """Each kind and `d` is checked inside and outside of groups: 512 combinations at most."""
    gate = seen_by((ReadRule("r", Match(KindSet.of((1, 300))), frozenset({Who.NOBODY})),), "passer")
    assert gate.gate([asked(kinds=[*range(1, 257)])]) is not None
    assert gate.gate([asked(kinds=[*range(1, 258)])]) is None
    assert gate.gate([asked(kinds=[*range(1, 129)], tag_d=["x", "y"])]) is not None
    assert gate.gate([asked(kinds=[*range(1, 130)], tag_d=["x", "y"])]) is None
    # … in all filters: a frame of 21 kB took the loop 0.1 s.
    assert gate.gate([asked(kinds=[*range(1, 129)])] * 2) is not None
    assert gate.gate([asked(kinds=[*range(1, 129)])] * 3) is None


def test_groups_are_looked_at_in_every_filter(rules: tuple[ReadRule, ...]) -> None:
    """A client of many groups, with a filter for each, must hear that it has to log in."""
    asking = asked(kinds=[*range(9, 100)], tag_h=["den"])
    assert seen_by(rules, "passer").gate([asking] * 50) is not None
    assert seen_by(rules, "alice").gate([asking] * 50) is None


@pytest.mark.parametrize(("keys", "groups"), [(0, 4096), (1, 4096), (64, 64)])
def test_a_query_of_many_groups_and_keys_is_accepted(
    rules: tuple[ReadRule, ...], keys: int, groups: int
) -> None:
    """50 filters of 200 private groups took the loop 0.2 s, for a viewer of 64 keys."""
    viewer = Viewer(frozenset([f"{n:064x}" for n in range(keys)]))
    gate = visibility_for(viewer, rules, ACTORS, GROUPS).gate
    ids = [f"g{n}" for n in range(groups)]
    assert gate([asked(kinds=[9], tag_h=ids)] * 50) is not None
    assert gate([asked(kinds=[9], tag_h=[*ids, "one more"])]) is None
    assert gate([asked(kinds=[9], tag_h=ids), asked(kinds=[9], tag_h=["one more"])]) is None


def test_a_query_of_many_lists_is_not_closed_for_a_login(rules: tuple[ReadRule, ...]) -> None:
    """Anybody can send it, and looking at each of 40,000 lists would take the better part of a
    second on the event loop."""
    passer = seen_by(rules, "passer")

    def is_closed(lists: int, filters: int) -> bool:
        asking = asked(kinds=[39001, 39002], **{"#d": [f"g{n}" for n in range(lists // 2)]})
        return passer.lists_for_login([asking] * filters) is not None

    assert is_closed(512, 1)
    assert is_closed(128, 4)
    assert not is_closed(514, 1)
    assert not is_closed(128, 5)


def test_every_query_of_a_banned_key_is_closed(rules: tuple[ReadRule, ...]) -> None:
    actors = replace(ACTORS, banned=frozenset({dave.pubkey}))
    seen = visibility_for(viewer_of("dave"), rules, actors, GROUPS)
    assert seen.gate([asked(kinds=[1])]) == BANNED
    assert seen.gate([]) is None
    assert not seen.may_read(row(1), None)
    alices = visibility_for(viewer_of("alice"), rules, actors, GROUPS)
    assert alices.gate([asked(kinds=[1])]) is None
    assert alices.may_read(row(1), None)
    assert not alices.may_read(row(1, by=dave), None)


@pytest.mark.parametrize("name", ["passer", "stranger", "alice"])
@pytest.mark.parametrize("kinds", [None, [9], [9021], [5, 9000]])
def test_the_gate_answers_a_hidden_group_as_one_that_does_not_exist(
    rules: tuple[ReadRule, ...], name: str, kinds: list[int] | None
) -> None:
    """N29-93, Z-02: the same prefix and text, also for deleted ones."""
    more = {} if kinds is None else {"kinds": kinds}
    gate = seen_by(rules, name).gate
    hidden, never, deleted = (
        gate([asked(tag_h=[group], **more)]) for group in ("attic", "never made", "yard")
    )
    assert hidden is not None
    assert hidden == never == deleted


def test_one_readable_filter_is_enough_for_the_query(rules: tuple[ReadRule, ...]) -> None:
    """A wider REQ gets what it may read; the rest is not mentioned."""
    gate = seen_by(rules, "passer").gate
    closed, open_ = asked(kinds=[30093]), asked(kinds=[1])
    assert gate([closed, open_]) is None
    assert gate([]) is None
    refusal = gate([closed, asked(tag_h=["den"])])
    assert refusal is not None
    assert (refusal.prefix, refusal.text) == (AUTH, "memory needs authentication")


@pytest.mark.proves("G-18")
@pytest.mark.parametrize("group", ["den", "attic", "never made"])
def test_memory_needs_authentication_whatever_group_is_named(
    rules: tuple[ReadRule, ...], group: str
) -> None:
    gate = seen_by(rules, "passer").gate
    memory = gate([asked(kinds=[30078, 30093], tag_h=[group])])
    chat = gate([asked(kinds=[9, 30093], tag_h=[group])])
    assert memory is not None
    assert chat is not None
    assert (memory.prefix, memory.text) == (AUTH, "memory needs authentication")
    assert (chat.prefix, chat.text) == (AUTH, "this group is for its members")


# -- who-words of authors -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "group", "words"),
    [
        (stranger, None, set()),
        (alice, None, {Who.MEMBER, Who.KNOWN}),
        (alice, DEN, {Who.MEMBER, Who.KNOWN, Who.INSIDER}),
        (alice, ATTIC, {Who.MEMBER, Who.KNOWN}),
        (admin, DEN, {Who.MEMBER, Who.KNOWN, Who.INSIDER, Who.ADMIN}),
        (carol, DEN, set()),
        (robot, ATTIC, {Who.AGENT, Who.KNOWN}),
        (owner, None, {Who.OWNER, Who.KNOWN}),
        (owner, ATTIC, {Who.OWNER, Who.KNOWN, Who.ADMIN}),
        (
            alice,
            replace(DEN.with_users({alice.pubkey: ("agent",)}), founder=owner.pubkey),
            {Who.MEMBER, Who.KNOWN, Who.INSIDER, Who.AGENT},
        ),
        (
            alice,
            replace(DEN.with_users({alice.pubkey: ("agent",)}), founder=admin.pubkey),
            {Who.MEMBER, Who.KNOWN, Who.INSIDER},
        ),
    ],
)
def test_the_who_words_of_an_author_are(
    who: SecretKey, group: Group | None, words: set[Who]
) -> None:
    """The role of agents counts in a group that an owner or agent made, for writing."""
    assert author_words(who.pubkey, ACTORS, GROUPS, group) - {Who.ANYONE, Who.AUTHOR} == words
    assert is_known(who.pubkey, ACTORS, GROUPS) is (Who.KNOWN in words)


def test_some_kinds_are_restricted_in_every_group(rules: tuple[ReadRule, ...]) -> None:
    """N29-104: deletions of these are not public."""

    def names(*tags: list[str]) -> bool:
        return names_restricted(alice.sign(5, [*tags], "", 0), rules)

    assert not names(*(["k", f"{kind}"] for kind in (1, 9, 30023, 24133)), ["k", "x"], ["a", "x:4"])
    for kind in (4, 1059, 30078, 30093, 1988, 9021):
        assert names(["k", "1"], ["k", f"{kind}"])
        assert names(["a", "1:k:"], ["a", f"{kind}:k:x"])
    assert KindSet.of(3, (1, 2), 9).ranges == ((1, 3), (9, 9))


TOLD = frozenset({Who.OWNER})


def test_a_rule_about_a_prefix_restricts_a_deletion_that_may_name_it() -> None:
    rule = ReadRule("p", Match(kinds=KindSet.of((30, 40)), d_prefixes=("a:", "b:")), TOLD)
    for tag, is_restricted in (
        (["a", "35:k:b:x"], True),
        (["a", "35:k:c:b:"], False),
        (["a", "41:k:b:x"], False),
        (["k", "35"], True),
    ):
        deletion = alice.sign(5, [["a", "35:k:c"], tag], "", 0)
        assert names_restricted(deletion, [rule]) is is_restricted


class Counted(KindSet):
    """How often these are asked."""

    asked = 0

    def __contains__(self, kind: int) -> bool:
        Counted.asked += 1
        return super().__contains__(kind)

    def among(self, ascending: Sequence[int]) -> Iterator[int]:
        Counted.asked += 1
        return super().among(ascending)


def test_a_deletion_of_thousands_asks_each_rule_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 targets each asked 37 rules in each of 19 passes: 110 of 240 ms."""
    monkeypatch.setattr(Counted, "asked", 0)
    rule = ReadRule("p", Match(kinds=Counted(((2, 9),))), TOLD)
    targets = [["a", f"{10_000 + number}:k:{number}"] for number in range(1000)]
    assert not names_restricted(alice.sign(5, targets, "", 0), [rule] * 3)
    assert Counted.asked == 3


def test_many_rows_of_a_kind_ask_a_rule_about_others_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of a deletion asked 37 rules."""
    monkeypatch.setattr(Counted, "asked", 0)
    rule = ReadRule("p", Match(kinds=Counted(((2, 9),))), TOLD)
    seen = visibility_for(Viewer(), [rule], ACTORS, GROUPS)
    assert all(seen.may_read(row(30023, ["d", f"{number}"]), None) for number in range(1000))
    assert all(seen.reading(row(30023)) is Reading.ALWAYS for _ in range(1000))
    assert not seen.may_read(row(4), None)
    assert Counted.asked == 3, "twice for kind 4: which rules, and whether one applies"


PUBLIC, PRIVATE, HIDDEN = frozenset[Flag](), frozenset({Flag.PRIVATE}), frozenset({Flag.HIDDEN})


@pytest.mark.parametrize(
    ("before", "after", "is_covered"),
    [
        (PUBLIC, PUBLIC, True),
        (PUBLIC, PRIVATE, False),
        (PUBLIC, HIDDEN, False),
        (PUBLIC, None, False),
        (PRIVATE, PUBLIC, True),
        (PRIVATE, HIDDEN, False),
        (PRIVATE, None, False),
        (HIDDEN, PUBLIC, True),
        (HIDDEN, None, True),
        (None, PUBLIC, True),
    ],
)
def test_a_change_of_a_group_takes_rights_from_others_or_not(
    before: frozenset[Flag] | None, after: frozenset[Flag] | None, *, is_covered: bool
) -> None:
    """N29-93, N29-94: what becomes of a hidden group is no difference for who is not in it."""

    def seen(flags: frozenset[Flag] | None) -> Visibility:
        group = None if flags is None else Group("club", flags=flags)
        groups = GROUPS if group is None else GROUPS.with_group(group)
        return visibility_for(Viewer(frozenset({who.pubkey})), rules, ACTORS, groups)

    rules = [ReadRule("rows of a group", Match(h=True), frozenset({Who.GROUP, Who.OWNER}))]
    for who, expected in ((stranger, is_covered), (owner, True)):
        assert seen(after).covers(seen(before)) is expected, who


def test_rules_that_are_the_same_are_not_compared_with_each_other() -> None:
    """30 with 30 took 0.1 ms for each open id of a sync that was renewed."""
    compared = []

    class Counted(ReadRule):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

        __hash__ = ReadRule.__hash__

    rules = [Counted(f"{n}", Match(KindSet.of(n)), frozenset({Who.OWNER})) for n in range(30)]
    before, after = (visibility_for(ANONYMOUS, rules, ACTORS, GROUPS) for _ in range(2))
    assert after.covers(before)
    assert not compared
    fewer = visibility_for(ANONYMOUS, rules[1:], ACTORS, GROUPS)
    assert fewer.covers(before)
    assert not before.covers(fewer)


def test_a_viewer_is_known_as_one_of_its_known_keys_or_with_the_agents_of_one_owner() -> None:
    """However many keys log in on its connections, and however many agents its owner has."""
    attested = frozenset({Attestation(stranger.pubkey, alice.pubkey)})
    both = frozenset({alice.pubkey, bob.pubkey})
    known_as = {
        name: visibility_for(viewer, (), actors, GROUPS).known_as
        for name, viewer, actors in (
            ("member", Viewer(frozenset({alice.pubkey, stranger.pubkey})), ACTORS),
            ("two members", Viewer(both), ACTORS),
            ("banned", Viewer(both), replace(ACTORS, banned=frozenset({min(both)}))),
            ("agent", Viewer(frozenset({stranger.pubkey}), attested=attested), ACTORS),
            ("stranger", Viewer(frozenset({stranger.pubkey})), ACTORS),
        )
    }
    assert known_as == {
        "member": alice.pubkey,
        "two members": min(both),
        "banned": max(both),
        "agent": f"agents of {alice.pubkey}",
        "stranger": None,
    }


@pytest.mark.parametrize("attestations", Attestations)
@pytest.mark.parametrize("author", [carol, person("writer")])
@pytest.mark.parametrize("group_id", [None, "den", "attic", "tea", "shed"])
@pytest.mark.parametrize("word", [each for each in Who if each is not Who.TARGET])
def test_viewers_who_are_alike_read_a_row_alike(
    word: Who, group_id: str | None, author: SecretKey, attestations: Attestations
) -> None:
    """Live delivery asks for one of them."""
    rules = [ReadRule("some", Match(), frozenset({word}), tag_readers=("scope",))]
    actors = replace(
        ACTORS,
        attestations=attestations,
        banned=frozenset({dave.pubkey}),
        households=(
            Household("home", frozenset({person("mother").pubkey}), frozenset({carol.pubkey})),
        ),
    )
    shed = Group("shed", flags=frozenset({Flag.PRIVATE})).with_users({alice.pubkey: ()})
    groups = GROUPS.with_group(shed).without_group("shed", EndedGroup(frozenset({alice.pubkey})))
    tags = [["p", dave.pubkey], ["p", bob.pubkey], ["scope", person("scoped").pubkey]]
    row = Stored(1, unsigned(author, 1, tags), group_id)
    readers = row_readers(row, rules, actors, groups)
    assert readers is not None
    keys = [*KEYS.values(), *map(person, ("mother", "scoped", "writer", "passer"))]
    viewers = [ANONYMOUS, Viewer(trusted=True)]
    viewers += [Viewer(frozenset({key.pubkey, more.pubkey})) for key in keys for more in keys]
    attested = [Attestation(stranger.pubkey, key.pubkey) for key in keys]
    viewers += [Viewer(frozenset({stranger.pubkey}), attested=frozenset({a})) for a in attested]
    found: dict[object, Reading] = {}
    for viewer in viewers:
        reading = visibility_for(viewer, rules, actors, groups).reading(row)
        assert found.setdefault(readers.alike(viewer), reading) is reading
    plain = [Viewer(frozenset({f"{number:064x}"})) for number in range(9)]
    assert {readers.alike(viewer) for viewer in (ANONYMOUS, *plain)} == {0}


@pytest.mark.parametrize("word", [Who.ANYONE, Who.KNOWN, Who.RECIPIENT, Who.OWNER])
def test_a_filter_that_a_row_is_read_by_is_the_same_for_all_viewers(word: Who) -> None:
    """Live delivery asks for each filter, and not the rules of each viewer."""
    by_author, by_recipient = frozenset({"authors", "ids"}), frozenset({"#p"})
    rules = [
        ReadRule("one", Match(), frozenset({word}), only_by=by_author),
        ReadRule("two", Match(KindSet.of(1)), frozenset({Who.ANYONE}), only_by=by_recipient),
        ReadRule("other", Match(KindSet.of(7)), frozenset({Who.ANYONE}), only_by=frozenset()),
    ]
    row = Stored(1, unsigned(alice, 1, [["p", bob.pubkey]]))
    readers = row_readers(row, rules, ACTORS, GROUPS)
    assert readers is not None
    filters = [
        Filter(kinds=frozenset({1}), authors=authors, ids=ids, tags=tags)
        for authors in (None, frozenset({alice.pubkey}))
        for ids in (None, frozenset({row.event.id}))
        for tags in ((), (("p", frozenset({bob.pubkey})),), (("t", frozenset({"x"})),))
    ]
    asked = 0
    for viewer in (ANONYMOUS, *[Viewer(frozenset({key.pubkey})) for key in KEYS.values()]):
        visibility = visibility_for(viewer, rules, ACTORS, GROUPS)
        if visibility.reading(row) is Reading.NEVER:
            continue
        assert visibility.reading(row) is Reading.BY_FILTER
        for filter_ in filters:
            asked += 1
            assert readers.may_read_by(filter_) is visibility.may_read(row, filter_)
    assert asked


def test_the_members_of_a_large_group_are_listed_for_many_viewers_not_for_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 connections with 64 keys each: to look these up took 0.3 s for each message."""
    looked_up = 0
    has = OrderedMap.__contains__

    def counted(members: OrderedMap[str, object], key: object) -> bool:
        nonlocal looked_up
        looked_up += 1
        return has(members, key)

    users = {f"{number:064x}": () for number in range(2_000)}
    flags = frozenset({Flag.PRIVATE})
    group = Group("hall", flags=flags).with_users({**users, alice.pubkey: ("admin",)})
    row = Stored(1, unsigned(alice, 9, [["h", "hall"]]), "hall")
    rules = [ReadRule("hall", Match(), frozenset({Who.INSIDER, Who.ADMIN}))]
    monkeypatch.setattr(OrderedMap, "__contains__", counted)
    for number, most in ((1, 2), (500, 250)):
        readers = row_readers(row, rules, ACTORS, GROUPS.with_group(group))
        assert readers is not None
        looked_up = 0
        keys = [f"{key:064x}" for key in range(5_000, 5_000 + number)]
        strangers = {readers.alike(Viewer(frozenset({key}))) for key in keys}
        assert looked_up <= most
        of_group = f"{7:064x}", alice.pubkey
        insiders = [readers.alike(Viewer(frozenset({key}))) for key in of_group]
        assert len({*strangers, *insiders}) == 3

"""relay/write/judge.py: the order of checks, and that judging changes nothing."""

from __future__ import annotations

from copy import deepcopy
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListChange, ListName, Management
from relay.access.quotas import GUESSES_PER_KEY, Size
from relay.errors import Prefix, Reject, Result, WriteOutcome
from relay.facts import Origin
from relay.groups.actions import Flag
from relay.groups.group import Group, Groups
from relay.groups.key_map import OrderedMap
from relay.lifecycle.rows import Found, Stored, slot_of
from relay.nostr import kinds
from relay.write.candidate import Candidate, Sender, candidate_of
from relay.write.judge import MAX_D_CHARS, guesser, judge, screen, screen_and_judge
from relay.write.lookups import accounts_of
from relay.write.world import World
from tests.cast import alice, bob, owner, person, robot
from tests.harness.relay_in_process import NOON, RELAY, URL, policy_of

if TYPE_CHECKING:
    from policies import PolicySet
    from relay.nostr.event import Event

TEA = Group(
    "tea",
    flags=frozenset({Flag.PRIVATE, Flag.CLOSED, Flag.RESTRICTED}),
    members=OrderedMap({owner.pubkey: ("admin",), alice.pubkey: ()}),
)
MALLORY = person("mallory")
LIMITS = (
    '[[rule]]\nname = "slowly"\nmatch = { kinds = [1] }\n'
    'rate = { per = "author", burst = 1, per_minute = 1 }\n'
    'quota = { per = "author", events = 1 }\n'
)


@pytest.fixture
def policy() -> PolicySet:
    return policy_of("open", LIMITS)


def candidate(
    event: Event,
    policy: PolicySet,
    origin: Origin = Origin.WIRE,
    objection: Reject | None = None,
    logins: frozenset[str] = frozenset(),
) -> Candidate:
    return candidate_of(
        event,
        policy.keep.keep_of(event),
        policy.systems,
        Sender(origin, logins),
        lambda url: url == URL,
        objection,
    )


def world(policy: PolicySet, *rows: Event) -> World:
    found = Found(9)
    for seq, event in enumerate(rows):
        slot = slot_of(event, policy.keep.keep_of(event))
        row = found.rows[event.id] = Stored(seq, event, event.tag("h"), slot=slot)
        if slot is not None:
            found.slots[slot] = row
    groups = Groups().with_group(TEA)
    return World(policy, groups, policy.actors, found, RELAY.pubkey, NOON)


def refused_by(result: object) -> str:
    assert isinstance(result, Reject)
    return result.rule


def test_judging_twice_says_the_same_and_counts_nothing(policy: PolicySet) -> None:
    note = candidate(alice.sign(1, [], "x", NOON), policy, logins=frozenset({alice.pubkey}))
    here = world(policy)
    for account in accounts_of(note, policy):
        here.found.usage.open(account, Size())
    before = deepcopy(here.found)
    first, second = judge(note, here), judge(note, here)
    assert first == second
    assert first.outcome is WriteOutcome.STORED
    assert not first.quiet
    own = [rate.burst for rate, name, _ in first.tokens if name == alice.pubkey]
    assert own == [1]
    assert len(here.buckets) == 0
    assert here.found == before


def test_a_record_is_not_accepted_unless_what_it_refers_to_was_looked_up() -> None:
    """Its author may have got the right to write it after the look-ups of the batch."""
    rule = 'name = "agents write anamnesis memory"\nmatch = { kinds = [78] }\nwrite = ["agent"]'
    policy = policy_of("open", f"[[rule]]\n{rule}\n")  # without the schema
    hashed = sha256(b"x").hexdigest()
    tags = [["d", f"anamnesis:memory:{hashed}"], ["x", hashed]]
    sent = candidate(robot.sign(78, tags, '{"content": "x"}', NOON), policy)
    here = world(policy)
    assert refused_by(judge(sent, here).outcome) == "records"
    here.found.named.update((name, set()) for name in sent.references.names)
    assert judge(sent, here).outcome is WriteOutcome.STORED


def test_a_long_d_is_refused(policy: PolicySet) -> None:
    """Reads compare it with prefixes."""

    def outcome(d: str) -> object:
        noted = alice.sign(30078, [["d", d]], "x", NOON)
        return screen_and_judge(candidate(noted, policy), world(policy)).outcome

    assert outcome("ä" * MAX_D_CHARS) is WriteOutcome.STORED
    refused = outcome("ä" * (MAX_D_CHARS + 1))
    assert isinstance(refused, Reject)
    assert (refused.prefix, refused.text) == (
        Prefix.INVALID,
        "d: has 2049 characters, at most 2048 allowed",
    )


@pytest.mark.parametrize("per_tag", [1, 13, 65])
def test_more_references_than_a_client_has_use_for_are_refused_before_they_are_read(
    policy: PolicySet, per_tag: int
) -> None:
    """One tag of 40,000 took 30 ms in the lane, and no rate or quota counts what is refused."""

    def screened(number: int, origin: Origin = Origin.WIRE) -> Reject | None:
        names = [f"{n % 9:08x}" for n in range(number)]
        tags = [["previous", *names[at : at + per_tag]] for at in range(0, number, per_tag)]
        said = alice.sign(9, [["h", "tea"], *tags], "x", NOON)
        return screen(said, origin, NOON, policy, Management(), RELAY.pubkey, 1 << 20)

    assert screened(64) is None
    assert screened(65, Origin.IMPORT) is None
    refused = screened(65)
    assert refused is not None
    assert (refused.prefix, refused.text) == (
        Prefix.INVALID,
        "previous: 65 references, at most 64 allowed",
    )


@pytest.mark.parametrize("kind", [kinds.DELETION, kinds.DELETE_EVENT])
def test_a_deletion_of_more_than_a_thousand_targets_is_refused(
    policy: PolicySet, kind: int
) -> None:
    """Deletions of 4,980 ids from thirty addresses took 170 ms of each note of others: each id is a
    row that keeps an event out."""

    def screened(ids: int, addresses: int, origin: Origin = Origin.WIRE) -> Reject | None:
        tags = [["e", f"{n:064x}"] for n in range(ids)]
        tags += [["a", f"30023:{alice.pubkey}:{n}"] for n in range(addresses)]
        request = alice.sign(kind, [*tags, ["h", "tea"]], "", NOON)
        return screen(request, origin, NOON, policy, Management(), RELAY.pubkey, 1 << 20)

    names = "e, a, code" if kind == kinds.DELETION else "e, a"
    assert screened(500, 500) is None
    assert screened(1001, 0, Origin.IMPORT) is None
    refused = screened(500, 501)
    assert refused is not None
    assert (refused.prefix, refused.text) == (
        Prefix.INVALID,
        f"{names}: 1001 targets, at most 1000 allowed in one deletion",
    )


def test_a_tried_code_is_reported_and_not_counted(policy: PolicySet) -> None:
    request = bob.sign(kinds.JOIN_REQUEST, [["h", "tea"], ["code", "guess-123"]], "", NOON)
    here = world(policy)
    for _ in range(GUESSES_PER_KEY + 1):
        judged = judge(candidate(request, policy), here)
        assert judged.is_guess
        assert refused_by(judged.outcome) == "groups"
    for _ in range(GUESSES_PER_KEY):
        here.guesses.count(guesser(candidate(request, policy)), None, NOON)
    judged = judge(candidate(request, policy), here)
    assert judged.is_guess
    assert refused_by(judged.outcome) == "invite codes"


def test_who_sends_what_another_signed_uses_up_none_of_its_tries(policy: PolicySet) -> None:
    """Whoever has an old request of a key kept the key from joining any group."""
    request = bob.sign(kinds.JOIN_REQUEST, [["h", "tea"], ["code", "guess-123"]], "", NOON)
    here = world(policy)
    for _ in range(GUESSES_PER_KEY):
        here.guesses.count(guesser(candidate(request, policy)), None, NOON)
    own = candidate(request, policy, logins=frozenset({bob.pubkey}))
    assert refused_by(judge(own, here).outcome) == "groups"


def test_the_order_of_checks(policy: PolicySet) -> None:
    """Each event would also be refused by the checks after the one that refuses it."""
    banned = Management().after(ListChange(ListName.BANNED_KEYS, MALLORY.pubkey, ""))
    here = world(policy).with_management(banned)
    plugin = Reject(Prefix.BLOCKED, "no", "a plug-in")

    def rule(event: Event, objection: Reject | None = plugin) -> str:
        return refused_by(
            screen_and_judge(candidate(event, policy, objection=objection), here).result
        )

    assert rule(_ahead()) == "[limits] created_at_upper"
    assert rule(alice.sign(39000, [["d", "tea"]], "", NOON)) == "group state"
    assert rule(MALLORY.sign(9, [["h", "tea"], ["h", "tea"]], "", NOON)) == "form"
    assert rule(MALLORY.sign(30078, [["d", "snow:memory:x"]], "", NOON)) == "bans"
    assert rule(bob.sign(30078, [["d", "snow:memory:x"], ["h", "tea"]], "", NOON)).startswith(
        "agents write"
    )
    assert rule(bob.sign(9, [["h", "tea"]], "", NOON)) == "a plug-in"
    assert rule(bob.sign(9, [["h", "tea"]], "", NOON), None) == "groups"


def _ahead() -> Event:
    return MALLORY.sign(39000, [["d", "tea"]], "", NOON + 10**6)


def test_only_members_learn_of_a_duplicate_in_a_group(policy: PolicySet) -> None:
    """N01-96: by the keys of the connection, not by the author."""
    said = alice.sign(9, [["h", "tea"]], "x", NOON)
    theirs = bob.sign(9, [["h", "tea"]], "x", NOON)
    here = world(policy, said, theirs)
    for logins, outcome in (
        ((alice, bob), WriteOutcome.DUPLICATE),
        ((owner,), WriteOutcome.DUPLICATE),
        ((bob,), WriteOutcome.UNTOLD),
        ((), WriteOutcome.UNTOLD),
    ):
        keys = frozenset(each.pubkey for each in logins)
        assert judge(candidate(said, policy, logins=keys), here).outcome is outcome
    assert refused_by(judge(candidate(theirs, policy), here).outcome) == "groups"
    imported = judge(candidate(theirs, policy, Origin.IMPORT), here)
    assert imported.outcome is WriteOutcome.DUPLICATE


def test_a_request_to_vanish_is_asked_of_no_rule(policy: PolicySet) -> None:
    request = MALLORY.sign(kinds.VANISH, [["relay", URL], ["h", "a"], ["h", "b"]], "", NOON)
    judged = judge(candidate(request, policy), world(policy))
    assert judged.vanishes
    own = RELAY.sign(kinds.VANISH, [["relay", "ALL_RELAYS"]], "", NOON)
    assert refused_by(judge(candidate(own, policy), world(policy)).outcome) == "requests to vanish"


@pytest.mark.parametrize(
    ("places", "group"),
    [
        ((), None),
        ((None,), None),
        (("tea",), "tea"),
        (("tea", None), "tea"),
        (("tea", "den"), None),
    ],
)
def test_a_deletion_without_h_belongs_to_the_one_group_of_its_rows(
    policy: PolicySet, places: tuple[str | None, ...], group: str | None
) -> None:
    """N29-104."""
    rows = [
        alice.sign(9, [] if place is None else [["h", place]], str(place), NOON) for place in places
    ]
    deletion = alice.sign(kinds.DELETION, [["e", row.id] for row in rows], "", NOON)
    judged = judge(candidate(deletion, policy), world(policy, *rows))
    assert judged.outcome is WriteOutcome.STORED
    assert judged.group == group


@pytest.mark.parametrize(
    ("tags", "quiet"),
    [
        ([], False),
        ([["k", "1"], ["k", "x"]], False),
        ([["k", "1"], ["k", "1059"]], True),
        ([["a", f"30023:{alice.pubkey}:x"]], False),
        ([["a", f"30093:{alice.pubkey}:x"]], True),
        ([["a", f"30078:{alice.pubkey}:anamnesis:vouch:x"]], True),
        ([["a", "30093"]], True),
        ([["a", "x"], ["a", ""]], False),
    ],
)
def test_a_deletion_of_what_not_everyone_may_read_is_quiet(
    policy: PolicySet, *, tags: list[list[str]], quiet: bool
) -> None:
    """N29-104: by the kinds that it names, stored or not."""
    deletion = alice.sign(kinds.DELETION, tags, "", NOON)
    assert judge(candidate(deletion, policy), world(policy)).quiet is quiet


def test_a_deletion_in_a_private_group_is_quiet(policy: PolicySet) -> None:
    """N29-104."""
    public, private = alice.sign(1, [], "x", NOON), alice.sign(9, [["h", "tea"]], "x", NOON)
    here = world(policy, public, private)
    for rows, quiet in (([public], False), ([private], True), ([public, private], True)):
        deletion = alice.sign(kinds.DELETION, [["e", row.id] for row in rows], "", NOON)
        assert judge(candidate(deletion, policy), here).quiet is quiet


@pytest.mark.parametrize(
    ("origin", "quiet"),
    [(Origin.WIRE, False), (Origin.IMPORT, False), (Origin.TRUSTED_IMPORT, True)],
)
def test_only_a_trusted_import_makes_a_deletion_of_an_unknown_id_quiet(
    policy: PolicySet, *, origin: Origin, quiet: bool
) -> None:
    """Its target is gone from the export, and may have been private."""
    note = alice.sign(1, [], "x", NOON)
    for rows, expected in (((), quiet), ((note,), False)):
        deletion = alice.sign(kinds.DELETION, [["e", note.id]], "", NOON)
        judged = judge(candidate(deletion, policy, origin), world(policy, *rows))
        assert judged.quiet is expected


@pytest.mark.parametrize(
    ("origin", "quiet"),
    [
        (Origin.WIRE, False),
        (Origin.IMPORT, False),
        (Origin.TRUSTED_IMPORT, True),
        (Origin.TRUSTED_SYNC, True),
    ],
)
def test_only_a_trusted_import_makes_a_deletion_of_an_unknown_address_quiet(
    policy: PolicySet, *, origin: Origin, quiet: bool
) -> None:
    """As of an id. A version that is newer than the deletion does not tell where the older was."""
    article, newer, secret = (
        alice.sign(30023, [["d", "x"], *more], "", NOON + at)
        for at, more in ((-1, []), (1, []), (-1, [["h", "tea"]]))
    )
    deletion = alice.sign(kinds.DELETION, [["a", f"30023:{alice.pubkey}:x"]], "", NOON)
    for rows, expected in (((), quiet), ((newer,), quiet), ((article,), False), ((secret,), True)):
        judged = judge(candidate(deletion, policy, origin), world(policy, *rows))
        assert judged.quiet is expected


@pytest.mark.parametrize("address", [f"30023:{bob.pubkey}:x", "x"])
def test_nor_does_an_import_show_a_deletion_that_names_another_address(
    policy: PolicySet, address: str
) -> None:
    """With what it names in its group, its row was of that group."""
    note = alice.sign(1, [], "x", NOON)
    deletion = alice.sign(kinds.DELETION, [["e", note.id], ["a", address]], "", NOON)
    assert not judge(candidate(deletion, policy), world(policy, note)).quiet
    assert judge(candidate(deletion, policy, Origin.TRUSTED_IMPORT), world(policy, note)).quiet


def test_a_stored_event_that_has_expired_is_no_duplicate(policy: PolicySet) -> None:
    """Until the sweep removes its row."""
    note = alice.sign(1, [["expiration", str(NOON)]], "x", NOON - 60)
    assert judge(candidate(note, policy), world(policy, note)).outcome is WriteOutcome.EXPIRED


@pytest.mark.parametrize("value", ["soon", "", "-1"])
def test_an_expiration_that_is_no_number_is_refused(policy: PolicySet, value: str) -> None:
    """N40-06."""
    judged = judge(
        candidate(alice.sign(1, [["expiration", value]], "", NOON), policy), world(policy)
    )
    assert judged.outcome == Reject(Prefix.INVALID, "bad expiration", "form")


@pytest.mark.parametrize("origin", [*Origin])
@pytest.mark.parametrize("kind", [4, 20001, 30023])
def test_an_expiration_is_after_the_date(policy: PolicySet, kind: int, origin: Origin) -> None:
    """Else rows dated ahead expire and stand in front of all others. Not of one's own export."""

    def outcome(at: int, expires: int) -> Result:
        event = alice.sign(kind, [["d", "x"], ["expiration", str(expires)]], "", at)
        return judge(candidate(event, policy, origin), world(policy)).outcome

    stored = WriteOutcome.PASSED_ON if kind == 20001 else WriteOutcome.STORED
    refused = Reject(Prefix.INVALID, "expiration: must be after created_at", "form")
    for at, expires in ((NOON + 60, NOON + 30), (NOON + 60, NOON + 60)):
        is_own = origin is Origin.TRUSTED_IMPORT
        assert outcome(at, expires) == (stored if is_own else refused)
    assert outcome(NOON + 60, NOON + 61) == stored
    assert outcome(NOON - 60, NOON + 1) == stored
    assert outcome(NOON + 60, NOON) is WriteOutcome.EXPIRED


def test_an_address_of_a_group_is_not_replaced_outside_of_it(policy: PolicySet) -> None:
    """Z-07; one that was in no group is."""
    before = alice.sign(30023, [["d", "x"], ["h", "tea"]], "", NOON)
    outside = alice.sign(30023, [["d", "x"]], "", NOON)
    after = alice.sign(30023, [["d", "x"]], "", NOON + 1)
    by_alice = candidate(after, policy, logins=frozenset({alice.pubkey}))
    assert refused_by(judge(by_alice, world(policy, before)).outcome) == "groups"
    assert judge(candidate(after, policy), world(policy, outside)).outcome is WriteOutcome.STORED

"""Checks against stored records: who may supersede, patch and pin, also within one batch."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.lifecycle.rows import Keep
from relay.memory.anamnesis.checks import content_hash
from tests.cast import alice, bob, carol, dave, owner, robot, rover
from tests.contract.writing import lookups_for
from tests.harness.relay_in_process import NOON, STORED, Home, Letter, policy_of, store_of
from tests.unit.memory.anamnesis.making import patched, superseded, told, vouched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

SELF = (False, "invalid: a memory cannot supersede itself")
TOO_LONG = (False, "invalid: content of a supersession is over 4,096 characters")
CYCLE = (False, "invalid: supersession cycle")
MAY_NOT_SUPERSEDE = (False, "restricted: only the author or the owner may supersede a memory")
SOMEBODY_ELSES = (False, "restricted: this memory is somebody else's, vouch for it")
MAY_NOT_PATCH = (False, "restricted: only the author or the owner may change metadata")
MAY_NOT_PIN = (False, "restricted: only the author or the owner may pin")
BAD_RECORD = (False, "invalid: d must be anamnesis:memory, vouch, superseded or meta and a hash")
A, B, C, D = (content_hash(text) for text in ("a", "b", "c", "d"))


def unknown(hashed: str) -> tuple[bool, str]:
    return False, f"invalid: unknown memory {hashed[:12]}"


@pytest.fixture(params=["reference", "sqlite"])
async def home(request: pytest.FixtureRequest) -> AsyncIterator[Home]:
    async with store_of(request.param) as store, Home(store, policy_with()) as home:
        yield home


def policy_with(*rules: str) -> PolicySet:
    agents = f'[actors]\nagents = ["{robot.npub}", "{rover.npub}"]'
    return policy_of("open", agents, *rules)


def set_to(home: Home, rules: str) -> None:
    home.state.enforce(policy_with(rules))


# -- supersessions --------------------------------------------------------------------------------


@pytest.mark.proves("X-16")
async def test_an_entry_and_what_supersedes_it_may_come_together(home: Home) -> None:
    batch = [told(robot, "a"), told(robot, "b"), superseded(robot, A, B)]
    assert await home.take(*batch) == [STORED] * 3


@pytest.mark.proves("X-16")
async def test_a_supersession_does_not_wait_for_entries_that_come_later(home: Home) -> None:
    batch = [
        superseded(robot, A, B),
        told(robot, "a"),
        superseded(robot, A, B, at=NOON + 1),
        told(robot, "b"),
    ]
    assert await home.take(*batch) == [unknown(A), STORED, unknown(B), STORED]


@pytest.mark.proves("X-16")
async def test_itself_comes_before_unknown_before_not_allowed_before_a_cycle(home: Home) -> None:
    assert await home.take(superseded(rover, A, A)) == [SELF]
    assert await home.take(superseded(rover, A, B)) == [unknown(A)]
    await home.take(told(robot, "a"))
    assert await home.take(superseded(rover, A, B)) == [unknown(B)]
    await home.take(told(robot, "b"), superseded(robot, B, A))
    assert await home.take(superseded(rover, A, B)) == [MAY_NOT_SUPERSEDE]
    assert await home.take(superseded(robot, A, B)) == [CYCLE]


async def test_a_long_supersession_is_refused_and_not_parsed(home: Home) -> None:
    """The loop took 35 ms for one of 400,000 characters, of anybody."""
    await home.take(told(robot, "a"), told(robot, "b"))
    short = superseded(robot, A, B)
    for length, answer in ((4_097, TOO_LONG), (4_096, STORED)):
        content = short.content.ljust(length)
        assert await home.take(robot.sign(short.kind, short.tags, content, NOON)) == [answer]


@pytest.mark.proves("X-16")
async def test_who_is_neither_agent_nor_owner_hears_nothing_of_the_rest(home: Home) -> None:
    assert (
        await home.take(
            superseded(alice, A, A), superseded(alice, A, B), superseded(alice, "z", "y")
        )
        == [MAY_NOT_SUPERSEDE] * 3
    )


@pytest.mark.proves("X-05", "X-16")
async def test_of_two_with_the_same_content_the_earlier_may_supersede(home: Home) -> None:
    await home.take(told(robot, "a", at=NOON - 1), told(rover, "a", at=NOON), told(rover, "b"))
    assert await home.take(superseded(rover, A, B)) == [MAY_NOT_SUPERSEDE]
    assert await home.take(superseded(robot, A, B)) == [STORED]


@pytest.mark.proves("X-05", "X-16")
async def test_of_two_of_one_second_that_with_the_lowest_id_may_supersede(home: Home) -> None:
    one, other = sorted([told(robot, "a"), told(rover, "a")], key=lambda event: event.id)
    who = {robot.pubkey: robot, rover.pubkey: rover}
    await home.take(one, other, told(robot, "b"))
    assert await home.take(superseded(who[other.pubkey], A, B)) == [MAY_NOT_SUPERSEDE]
    assert await home.take(superseded(who[one.pubkey], A, B)) == [STORED]


@pytest.mark.proves("X-05")
async def test_a_copy_never_becomes_the_original(home: Home) -> None:
    """With an earlier date, or of the same second with a lower id."""
    await home.take(told(robot, "a", at=NOON))
    assert await home.take(told(rover, "a", at=NOON - 1)) == [SOMEBODY_ELSES]
    assert await home.take(told(rover, "a", at=NOON + 1), told(rover, "b")) == [STORED] * 2
    one, other = sorted([told(robot, "c"), told(rover, "c")], key=lambda event: event.id)
    assert await home.take(other, one) == [STORED, SOMEBODY_ELSES]
    assert await home.take(superseded(rover, A, B)) == [MAY_NOT_SUPERSEDE]


@pytest.mark.proves("X-16")
async def test_an_owner_supersedes_what_others_wrote_and_both_are_kept(home: Home) -> None:
    await home.take(*(told(robot, text) for text in "abc"))
    assert await home.take(superseded(robot, A, B), superseded(owner, A, C)) == [STORED] * 2
    assert len(await home.found(kinds=[30078], tag_x=[A])) == 2


@pytest.mark.proves("X-16")
async def test_a_circle_is_refused_however_long_and_whosever_it_is(home: Home) -> None:
    batch = [
        *(told(robot, text) for text in "abcd"),
        superseded(robot, A, B),
        superseded(owner, B, C),
        superseded(robot, C, D),
        superseded(robot, D, A),
    ]
    assert await home.take(*batch) == [STORED] * 7 + [CYCLE]
    assert await home.take(superseded(robot, D, B)) == [CYCLE]
    assert await home.take(superseded(owner, A, D)) == [STORED]


@pytest.mark.proves("X-16")
async def test_a_circle_over_stored_and_new_ones_is_refused(home: Home) -> None:
    await home.take(*(told(robot, text) for text in "abcd"))
    await home.take(superseded(robot, B, C))
    assert await home.take(superseded(robot, A, B), superseded(robot, C, A)) == [STORED, CYCLE]


async def test_long_chains_are_followed_for_who_may_supersede_alone(home: Home) -> None:
    """Or anybody could hold up all writes."""
    await home.take(*(told(robot, text) for text in "abcd"))
    await home.take(superseded(robot, B, C), superseded(robot, C, D))
    looked_at = {}
    for who in (rover, owner, alice):
        dry_run = await home.ingest.dry_run(superseded(who, A, B), Letter())
        assert dry_run.facts is not None
        assert dry_run.facts.records is not None
        looked_at[who] = {record.d[-64:] for record in dry_run.facts.records}
    assert looked_at == {rover: {A, B, C, D}, owner: {A, B, C, D}, alice: set()}
    allowed = policy_with("[memory.anamnesis]", 'vouchers = "members"')
    home.state.enforce(allowed)
    await home.do(alice, 9007, h="tea")
    dry_run = await home.ingest.dry_run(superseded(alice, A, B), Letter())
    assert dry_run.facts is not None
    assert dry_run.facts.records == (), "she reads them, but may write no such record"


@pytest.mark.proves("X-16")
async def test_what_was_said_otherwise_since_leads_nowhere(home: Home) -> None:
    await home.take(*(told(robot, text) for text in "abc"))
    await home.take(superseded(robot, A, B))
    batch = [superseded(robot, A, C, at=NOON + 1), superseded(robot, B, A)]
    assert await home.take(*batch) == [STORED, STORED]


@pytest.mark.proves("X-16")
async def test_what_was_taken_back_in_the_batch_leads_nowhere(home: Home) -> None:
    said = superseded(robot, A, B)
    await home.take(told(robot, "a"), told(robot, "b"), said)
    back = home.made(robot, 5, ["e", said.id])
    assert await home.take(back, superseded(robot, B, A)) == [STORED, STORED]


@pytest.mark.proves("X-16")
async def test_what_went_in_the_batch_is_unknown(home: Home) -> None:
    entry = told(robot, "b")
    await home.take(told(robot, "a"), entry)
    back = home.made(robot, 5, ["e", entry.id])
    assert await home.take(back, superseded(robot, A, B)) == [STORED, unknown(B)]
    assert await home.take(told(rover, "b"), superseded(robot, A, B)) == [STORED, STORED]


@pytest.mark.proves("X-16")
async def test_what_vanished_in_the_batch_is_unknown(home: Home) -> None:
    await home.take(told(robot, "a"), told(rover, "b"))
    batch = [home.request(rover), superseded(robot, A, B)]
    assert await home.take(*batch) == [STORED, unknown(B)]


@pytest.mark.proves("X-16")
async def test_what_has_expired_is_unknown(home: Home) -> None:
    plain = told(robot, "b")
    tags = [*(list(tag) for tag in plain.tags), ["expiration", str(NOON + 10)]]
    await home.take(told(robot, "a"), robot.sign(78, tags, plain.content, plain.created_at))
    home.now = NOON + 10
    assert await home.take(superseded(robot, A, B)) == [unknown(B)]


async def test_what_has_expired_can_be_told_again_before_it_is_swept(home: Home) -> None:
    plain = told(robot, "b")
    tags = [*(list(tag) for tag in plain.tags), ["expiration", str(NOON + 10)]]
    await home.take(robot.sign(78, tags, plain.content, plain.created_at))
    home.now = NOON + 10
    assert await home.take(plain) == [STORED]
    assert [event.id for event in await home.log()] == [plain.id]


@pytest.mark.proves("X-16", "X-22")
async def test_an_entry_that_the_author_may_not_read_is_unknown(home: Home) -> None:
    await home.do(alice, 9007, ["private"], h="tea")
    await home.do(alice, 9000, ["p", robot.pubkey], h="tea")
    await home.take(told(robot, "a", group="tea"), told(robot, "b"))
    assert await home.take(superseded(rover, A, B), logins=[rover.pubkey]) == [unknown(A)]
    assert await home.take(superseded(rover, B, A), logins=[rover.pubkey]) == [unknown(A)]
    assert await home.take(superseded(robot, A, B), logins=[robot.pubkey]) == [STORED]
    await home.do(alice, 9001, ["p", robot.pubkey], h="tea")
    assert await home.take(superseded(robot, B, A), logins=[robot.pubkey]) == [unknown(A)]
    assert await home.take(superseded(owner, B, A), logins=[owner.pubkey]) == [CYCLE]


@pytest.mark.proves("X-16", "N01-96")
@pytest.mark.parametrize("what", ["superseded", "meta", "vouch"])
async def test_a_record_sent_by_others_tells_nothing_of_an_entry_in_a_group(
    home: Home, what: str
) -> None:
    """Anybody may send what an agent signed: its login decides whether the entry counts."""
    await home.do(alice, 9007, ["private"], h="tea")
    await home.do(alice, 9000, ["p", robot.pubkey], h="tea")
    entry = told(robot, "a", group="tea")
    await home.take(entry, told(robot, "b"))

    async def answers(at: int) -> list[tuple[bool, str]]:
        record = {
            "superseded": superseded(robot, A, B, at=at),
            "meta": patched(robot, A, at=at, tags=["x"]),
            "vouch": vouched(robot, A, at=at),
        }[what]
        return [*await home.take(record), *await home.take(record, logins=[rover.pubkey])]

    while_stored = await answers(NOON)
    await home.do(robot, 5, ["e", entry.id], h="tea")
    assert await answers(NOON + 1) == while_stored


@pytest.mark.proves("X-05", "X-16")
async def test_an_agent_takes_over_no_entry_of_its_group_by_leaving_out_the_login(
    home: Home,
) -> None:
    """What others are not told of protects it all the same: the copy is not stored."""
    await home.do(alice, 9007, ["private"], h="tea")
    for agent in (robot, rover):
        await home.do(alice, 9000, ["p", agent.pubkey], h="tea")
    await home.take(told(robot, "a", group="tea"), told(robot, "b"))
    copies = [told(rover, "a", at=NOON - 1), told(rover, "a", at=NOON - 1, group="tea")]
    assert await home.take(*copies, logins=[rover.pubkey]) == [SOMEBODY_ELSES] * 2
    assert await home.take(*copies) == [STORED] * 2  # as if there were none
    assert {event.id for event in await home.log()}.isdisjoint([copy.id for copy in copies])
    later = told(rover, "a", at=NOON + 1)
    patch = patched(rover, A, tags=["x"])
    assert await home.take(later, patch) == [STORED] * 2
    assert patch.id not in {event.id for event in await home.log()}
    assert await home.take(superseded(rover, A, B), logins=[rover.pubkey]) == [MAY_NOT_SUPERSEDE]


@pytest.mark.proves("X-16", "X-22")
async def test_whoever_wrote_it_first_in_secret_is_no_author_to_others(home: Home) -> None:
    await home.do(alice, 9007, ["private"], h="tea")
    await home.do(alice, 9000, ["p", robot.pubkey], h="tea")
    await home.take(told(robot, "a", at=NOON - 5, group="tea"), told(rover, "a"))
    await home.take(told(rover, "b"))
    assert await home.take(superseded(rover, A, B)) == [STORED]
    assert await home.take(patched(rover, A, tags=["x"])) == [STORED]


@pytest.mark.proves("X-16", "X-22")
async def test_a_circle_over_what_the_author_may_not_read_is_none_to_them(home: Home) -> None:
    """Else the refusal would tell them that somebody corrected it in secret."""
    await home.do(alice, 9007, ["private"], h="tea")
    await home.do(alice, 9000, ["p", robot.pubkey], h="tea")
    batch = [told(robot, "a"), told(rover, "b"), told(robot, "c", group="tea")]
    assert await home.take(*batch) == [STORED] * 3
    back = superseded(owner, A, C), superseded(robot, C, B)
    assert await home.take(*back, logins=[owner.pubkey, robot.pubkey]) == [STORED] * 2
    assert await home.take(superseded(rover, B, A)) == [STORED]


@pytest.mark.proves("X-16")
async def test_a_circle_of_several_authors_is_seen_by_whoever_reads_the_entries(home: Home) -> None:
    await home.take(told(robot, "a"), told(rover, "b"))
    assert await home.take(superseded(robot, A, B)) == [STORED]
    assert await home.take(superseded(rover, B, A)) == [CYCLE]


@pytest.mark.proves("X-16")
@pytest.mark.parametrize("new", [None, "b", B.upper(), 3])
async def test_a_replacement_is_a_hash(home: Home, new: object) -> None:
    await home.take(told(robot, "a"))
    event = home.made(
        robot,
        30078,
        ["d", f"anamnesis:superseded:{A}"],
        ["x", A],
        content=f'{{"superseded_by":{new!r}}}'.replace("'", '"').replace("None", "null"),
    )
    says = "invalid: content.superseded_by must be 64 lowercase hex characters"
    assert await home.take(event) == [(False, says)]


async def test_the_hash_of_a_correction_stands_in_d_and_x(home: Home) -> None:
    await home.take(told(robot, "a"), told(robot, "b"))
    for name in ("superseded", "meta"):
        content = f'{{"superseded_by":"{B}"}}' if name == "superseded" else "{}"
        for d, x in ((A, B), ("a", "a"), (A.upper(), A.upper())):
            bad = home.made(robot, 30078, ["d", f"anamnesis:{name}:{d}"], ["x", x], content=content)
            assert await home.take(bad) == [BAD_RECORD]


# -- patches --------------------------------------------------------------------------------------


@pytest.mark.proves("X-07")
async def test_the_original_author_and_an_owner_change_metadata(home: Home) -> None:
    await home.take(told(robot, "a", at=NOON - 1), told(rover, "a"))
    assert await home.take(patched(robot, A, confidence=1), patched(owner, A, tags=["t"])) == [
        STORED,
        STORED,
    ]
    assert await home.take(patched(rover, A, tags=[]), patched(alice, A)) == [MAY_NOT_PATCH] * 2


@pytest.mark.proves("X-07")
async def test_of_what_is_not_stored_only_an_owner_changes_metadata(home: Home) -> None:
    assert await home.take(patched(robot, A), patched(owner, A)) == [MAY_NOT_PATCH, STORED]


@pytest.mark.proves("X-07", "G-03")
async def test_who_may_not_patch_hears_nothing_of_the_fields(home: Home) -> None:
    await home.take(told(robot, "a"))
    for who, answer in (
        (rover, MAY_NOT_PATCH),
        (robot, (False, "invalid: content.confidence must be a number from 0 to 1")),
    ):
        assert await home.take(patched(who, A, confidence=2)) == [answer]


@pytest.mark.proves("X-07")
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ('{"content":"x"}', "unknown field content"),
        (
            '{"memory_type":"x"}',
            "content.memory_type must be episodic, semantic, procedural or insight",
        ),
        ('{"confidence":true}', "content.confidence must be a number from 0 to 1"),
        ('{"tags":["x",1]}', "content.tags must be an array of strings"),
        ('{"context":[]}', "content.context must be an object"),
        ("[]", "content is not a JSON object"),
    ],
)
async def test_a_patch_has_fields_as_an_entry_has(home: Home, fields: str, says: str) -> None:
    await home.take(told(robot, "a"))
    bad = home.made(robot, 30078, ["d", f"anamnesis:meta:{A}"], ["x", A], content=fields)
    assert await home.take(bad) == [(False, f"invalid: {says}")]


# -- pins -----------------------------------------------------------------------------------------


def pin(home: Home, who: SecretKey, target: str) -> Event:
    tags = [["d", f"nmem:pin:{target}"], ["e", target]]
    return home.made(who, 30078, *tags, content=f'{{"pinned":true,"at":{NOON}}}')


@pytest.mark.proves("M-07")
async def test_who_wrote_it_pins_and_an_owner(home: Home) -> None:
    note = home.made(robot, 1)
    assert await home.take(pin(home, robot, note.id)) == [MAY_NOT_PIN]
    assert await home.take(
        note, pin(home, robot, note.id), pin(home, owner, note.id), pin(home, rover, note.id)
    ) == [STORED, STORED, STORED, MAY_NOT_PIN]


async def test_nobody_pins_what_is_gone(home: Home) -> None:
    note = await home.do(robot, 1)
    back = home.made(robot, 5, ["e", note.id])
    assert await home.take(back, pin(home, robot, note.id), pin(home, owner, note.id)) == [
        STORED,
        MAY_NOT_PIN,
        MAY_NOT_PIN,
    ]


@pytest.mark.proves("M-07", "G-16")
async def test_nobody_learns_by_a_pin_what_is_still_there_that_they_may_not_read(
    home: Home,
) -> None:
    household = f'[[actors.household]]\nname = "bobs"\nowner = "{bob.npub}"'
    set_to(home, household)
    await home.do(alice, 9007, ["private"], h="tea")
    await home.do(alice, 9000, ["p", robot.pubkey], h="tea")
    note = await home.do(robot, 9, h="tea")
    for keys in ((), (bob.pubkey,)):
        assert await home.take(pin(home, bob, note.id), logins=keys) == [MAY_NOT_PIN]
    assert await home.take(pin(home, robot, note.id)) == [MAY_NOT_PIN]
    assert await home.take(pin(home, robot, note.id), logins=[robot.pubkey]) == [STORED]
    await home.do(alice, 9001, ["p", robot.pubkey], h="tea")
    pins = pin(home, robot, note.id), pin(home, owner, note.id)
    assert await home.take(*pins, logins=[robot.pubkey, owner.pubkey]) == [MAY_NOT_PIN, STORED]


async def test_an_owner_pins_what_is_given_only_to_who_names_it(home: Home) -> None:
    set_to(home, f'[memory.envelopes]\nkeys = ["{robot.npub}"]')
    sealed = home.made(robot, 1080, content=b64encode(bytes([2]) + bytes(120)).decode())
    assert await home.take(sealed, pin(home, owner, sealed.id)) == [STORED] * 2


async def test_a_pin_of_nothing_is_told_so_to_those_who_pin(home: Home) -> None:
    shape = (False, "invalid: d must be nmem:pin:<event id>")
    batch = [pin(home, who, "xyz") for who in (robot, owner, bob)]
    assert await home.take(*batch) == [shape, shape, MAY_NOT_PIN]


# -- other roads ----------------------------------------------------------------------------------


@pytest.mark.proves("G-05")
@pytest.mark.parametrize("schema", ["lenient", "off"])
async def test_who_may_does_not_depend_on_the_schema(home: Home, schema: str) -> None:
    set_to(home, f'[memory]\nschema = "{schema}"')
    note = home.made(robot, 1)
    await home.take(told(robot, "a"), told(robot, "b"), note)
    assert await home.take(
        superseded(rover, A, B),
        patched(rover, A),
        pin(home, rover, note.id),
        superseded(robot, A, B),
        patched(robot, A),
        pin(home, robot, note.id),
    ) == [MAY_NOT_SUPERSEDE, MAY_NOT_PATCH, MAY_NOT_PIN, STORED, STORED, STORED]


async def test_an_import_is_asked_the_same_and_one_that_is_trusted_is_not(home: Home) -> None:
    note = home.made(robot, 1)
    bad = [superseded(rover, A, B), patched(rover, A), pin(home, rover, note.id)]
    answers = [unknown(A), MAY_NOT_PATCH, MAY_NOT_PIN]
    assert await home.take(*bad, origin=Origin.IMPORT) == answers
    assert await home.take(*bad, origin=Origin.TRUSTED_IMPORT) == [STORED] * 3


async def test_a_dry_run_gives_the_answer_of_a_write(home: Home) -> None:
    await home.take(told(robot, "a"), told(robot, "b"))
    for who, wanted in ((rover, MAY_NOT_SUPERSEDE), (robot, STORED)):
        event = superseded(who, A, B)
        seen = await home.ingest.dry_run(event, Letter())
        assert seen.facts is not None
        assert {record.d for record in seen.facts.records or ()} == {
            f"anamnesis:memory:{A}",
            f"anamnesis:memory:{B}",
        }
        explained = home.policy.explain(event, seen.facts)
        refusals = [step.verdict for step in explained.steps if step.verdict is not None]
        assert [f"{each.prefix}: {each.text}" for each in refusals] == [wanted[1]] * (not wanted[0])


def test_what_names_no_record_asks_the_store_for_nothing_more() -> None:
    events = [told(robot, "a"), vouched(robot, A), robot.sign(1, [], "x", NOON)]
    wanted = lookups_for([(event, Keep.ALL) for event in events])
    assert not wanted.named
    assert wanted.ids == {event.id for event in events}


@pytest.mark.proves("X-12")
async def test_a_vouch_does_not_wait_for_its_memory_and_the_last_one_stands(home: Home) -> None:
    first, second = vouched(rover, A), vouched(rover, A, at=NOON + 1, confidence=0.2)
    assert await home.take(first, second, vouched(owner, A)) == [STORED] * 3
    assert len(await home.found(kinds=[30078], tag_x=[A])) == 2
    says = (False, "restricted: only agents and the owner may vouch")
    assert await home.take(vouched(alice, A)) == [says]
    set_to(home, '[memory.anamnesis]\nvouchers = "members"')
    assert await home.take(vouched(alice, A)) == [says]
    await home.do(robot, 9007, h="tea")
    await home.do(robot, 9000, ["p", alice.pubkey], h="tea")
    assert await home.take(vouched(alice, A)) == [STORED]


@pytest.mark.proves("X-03", "G-01")
async def test_how_long_a_memory_may_be_is_set_and_reloaded(home: Home) -> None:
    long = "é" * 10
    assert await home.take(told(robot, long)) == [STORED]
    set_to(home, "[memory.anamnesis]\nmax_chars = 9")
    says = "invalid: content.content must be a string of 1 to 9 characters"
    assert await home.take(told(rover, long, at=NOON + 1)) == [(False, says)]
    set_to(home, "[memory.anamnesis]\nmax_bytes = 19")
    says = "invalid: content.content is over 19 bytes"
    assert await home.take(told(rover, long, at=NOON + 1)) == [(False, says)]
    set_to(home, "[memory.anamnesis]\nmax_bytes = 20")
    assert await home.take(told(rover, long, at=NOON + 1)) == [STORED]


@pytest.mark.proves("X-07", "X-16", "M-07")
async def test_who_owns_a_household_is_an_owner_to_what_its_keys_wrote_and_to_nothing_else(
    home: Home,
) -> None:
    carols = f'[[actors.household]]\nname = "carols"\nowner = "{carol.npub}"\nagents = '
    set_to(home, f'{carols}["{dave.npub}"]')
    note, other = home.made(dave, 1), home.made(robot, 1)
    await home.take(note, other, told(dave, "a"), told(dave, "b"), told(robot, "c"))
    await home.do(alice, 9007, h="tea")
    await home.do(alice, 9000, ["p", carol.pubkey], h="tea")  # so that entries are hers to read
    batch = [
        superseded(carol, A, B),
        superseded(carol, C, B),
        patched(carol, A, confidence=1),
        patched(carol, C, confidence=1),
        patched(carol, D, confidence=1),
        pin(home, carol, note.id),
        pin(home, carol, other.id),
    ]
    assert await home.take(*batch) == [
        STORED,
        MAY_NOT_SUPERSEDE,
        STORED,
        MAY_NOT_PATCH,
        MAY_NOT_PATCH,
        STORED,
        MAY_NOT_PIN,
    ]
    await home.take(told(owner, "x"))
    assert await home.take(superseded(owner, C, A), patched(owner, D, confidence=1)) == [STORED] * 2

"""`rate` and `quota` in the write pipeline: what counts, and what never does."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import pytest

from relay.access.quotas import GUESSES_PER_KEY
from relay.facts import Origin
from relay.groups.notices import bytes_signed
from relay.nostr import kinds
from relay.write.commands import ManagementChange
from tests import cast
from tests.cast import alice, bob, owner
from tests.harness.relay_in_process import (
    DELETED,
    DUPLICATE,
    STORED,
    Home,
    Letter,
    policy_of,
    store_of,
)
from tests.harness.relay_program import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

mallory = cast.person("mallory")
BY_FILE = (False, "restricted: this key is banned by a policy file: change it there")


def slowly(per: str, burst: int = 2, more: str = "", name: str = "slowly") -> str:
    """A rule with a rate of one event a minute."""
    return (
        f'[[rule]]\nname = "{name}"\nmatch = {{ kinds = [1, 9, 20001] }}\n{more}\n'
        f'rate = {{ per = "{per}", burst = {burst}, per_minute = 1 }}\n'
    )


def full(per: str, sizes: str, more: str = "") -> str:
    return f'[[rule]]\nname = "full"\nquota = {{ per = "{per}", {sizes} }}\n{more}\n'


@asynccontextmanager
async def home(*rules: str, preset: str = "open") -> AsyncIterator[Home]:
    async with store_of("sqlite") as store, Home(store, policy_of(preset, *rules)) as here:
        yield here


def too_many(seconds: int) -> tuple[bool, str]:
    return (False, f"rate-limited: too many events; try again in {seconds} s")


def stored(events: int) -> tuple[bool, str]:
    return (False, f"rate-limited: full: at most {events} events may be stored")


# what expires together ---------------------------------------------------------------------------

CROWDED = (
    False,
    "rate-limited: expiration: nearly 2,000 events (fewer, for one with many tags) expire within"
    " the same 60 seconds, choose another time",
)


async def test_few_events_expire_within_the_same_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody passes over what has expired until it is swept: a million at once, written within
    a week, kept readers waiting for an hour."""
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 3)
    async with home() as here:
        minute = (here.now // 60 + 10) * 60
        notes = [
            here.made(who, 1, ["expiration", str(minute + second)])
            for who, second in ((alice, 0), (bob, 20), (mallory, 59), (bob, 30))
        ]
        assert await here.take(*notes) == [STORED, STORED, STORED, CROWDED]
        assert await here.take(*notes) == [DUPLICATE] * 3 + [CROWDED]
        others = [here.made(bob, 1, ["expiration", str(minute + at)]) for at in (-1, 60)]
        assert await here.take(*others, here.made(bob, 1)) == [STORED] * 3
        lasting = [here.made(who, 1, ["expiration", str(minute)]) for who in (owner, cast.robot)]
        assert await here.take(*lasting) == [STORED] * 2
        assert await here.take(notes[3], origin=Origin.IMPORT) == [STORED]
        passed_on = here.made(bob, 20_001, ["expiration", str(minute)])
        assert await here.take(passed_on) == [STORED]


async def test_fewer_with_many_tags_expire_within_the_same_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sweep removed 13 to 40 of them in a second: 2,000 in each of five minutes were left for
    several more, and reads by their tags took seconds."""
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 6)
    async with home() as here:
        tag = ["expiration", str(here.now + 600)]

        def note(tags: int, number: int) -> Event:
            more = [["t", f"{each}"] for each in range(tags - 2)]
            return here.made(bob, 1, tag, *more, content=f"{number}")

        assert await here.take(note(20, 1), note(20, 2), note(20, 3)) == [STORED, STORED, CROWDED]
        assert await here.take(note(19, 4), note(19, 5)) == [STORED, CROWDED]
        small = [note(9, number) for number in range(6, 10)]
        assert await here.take(*small) == [STORED] * 3 + [CROWDED]


async def test_what_expires_has_few_tags() -> None:
    """One of 4,990 tags was refused with four others in the minute, which may all be private: that
    told everybody that somebody's events expire then."""
    async with home() as here:
        tag = ["expiration", str(here.now + 600)]
        tags = [["t", f"{number}"] for number in range(248)]
        too_many = (False, "invalid: expiration: an event that expires has at most 250 tags")
        assert await here.take(here.made(bob, 1, tag, *tags)) == [STORED]
        assert await here.take(here.made(bob, 1, tag, *tags, ["t", "more"])) == [too_many]
        for lasting in (here.made(bob, 1, *tags, *tags), here.made(owner, 1, tag, *tags, *tags)):
            assert await here.take(lasting) == [STORED]


async def test_how_many_events_expire_within_a_minute_cannot_be_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound is another one for each minute and in each minute: who fills one up to a refusal
    does not learn how many private ones are in it, nor at once when one more is."""
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 80)

    def made(here: Home, minute: int, text: str) -> Event:
        return here.made(bob, 1, ["expiration", f"{minute}"], content=text)

    async def fitting(here: Home, minute: int) -> int:
        answers = await here.take(*[made(here, minute, f"{number}") for number in range(81)])
        fit = answers.count(STORED)
        assert 60 < fit <= 80
        assert answers == [STORED] * fit + [CROWDED] * (81 - fit)
        return fit

    async with home() as here:
        monkeypatch.setattr(here.ingest, "_salt", b"a secret")
        here.now -= here.now % 60
        minutes = [(here.now // 60 + after) * 60 for after in range(10, 30)]
        assert len({await fitting(here, minute) for minute in minutes}) > 5
        here.now += 59
        crowded = [[CROWDED]] * len(minutes)
        assert [await here.take(made(here, minute, "more")) for minute in minutes] == crowded
        here.now += 1
        later = [await here.take(made(here, minute, "more")) for minute in minutes]
        assert [STORED] in later
        assert [CROWDED] in later


async def test_what_is_deleted_makes_room_for_what_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 1)
    async with home() as here:
        tag = ["expiration", str(here.now + 600)]
        first = await here.do(alice, 1, tag)
        later = here.made(bob, 1, tag)
        assert await here.take(later) == [CROWDED]
        await here.do(alice, 5, ["e", first.id])
        assert await here.take(later) == [STORED]


async def test_who_expires_with_many_learns_nothing_of_a_hidden_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.write.passed_over.MAX_EXPIRING", 1)
    async with home() as here:
        tag = ["expiration", str(here.now + 600)]
        await here.do(alice, 9007, ["hidden"], h="cave")
        stored = await here.do(alice, 9, tag, h="cave")
        unsent = here.made(alice, 9, tag, h="cave")
        assert await here.take(stored, unsent, logins=[bob.pubkey]) == [CROWDED] * 2
        assert await here.take(stored, unsent, logins=[alice.pubkey]) == [DUPLICATE, CROWDED]


# rates -------------------------------------------------------------------------------------------


async def test_a_burst_is_taken_and_then_one_at_a_time() -> None:
    async with home(slowly("author")) as here:
        notes = [here.made(alice, 1) for _ in range(4)]
        assert await here.take(*notes) == [STORED, STORED, too_many(60), too_many(60)]
        here.now += 59
        assert await here.take(notes[2]) == [too_many(1)]
        here.now += 1
        assert await here.take(*notes[2:]) == [STORED, too_many(60)]


async def test_a_rate_may_count_bytes() -> None:
    rule = slowly("author", burst=3000).replace(
        "per_minute = 1", 'per_minute = 60, counts = "bytes"'
    )
    async with home(rule) as here:
        large = [here.made(alice, 1, content=letter * 1000) for letter in "abc"]
        size = len(large[0].raw)
        assert 1000 < size < 1500
        assert await here.take(*large) == [STORED, STORED, too_many(3 * size - 3000)]
        here.now += 3 * size - 3000
        assert await here.take(large[2]) == [STORED]
        here.now += 3000
        ((accepted, _),) = await here.take(here.made(alice, 1, content="x" * 4000))
        assert not accepted, "more than the bucket holds"


async def test_a_rate_may_count_what_the_relay_signs_for_changes_of_groups() -> None:
    """28 kB/s of short requests that moved subgroups became 140 MB/s for readers of 39000."""
    rule = slowly("network", burst=200_000).replace("[1, 9, 20001]", "[9000, 9002]")
    rule = rule.replace("per_minute = 1", 'per_minute = 60_000, counts = "signed"')
    async with home(rule) as here:
        here.now += 1

        async def sent(kind: int, group: str, *tags: list[str], by: str = "192.0.2.7") -> bool:
            here.now += kind == kinds.CREATE_GROUP
            event = here.made(alice, kind, ["h", group], *tags)
            letter = here.letter_from(by)
            here.ingest.submit(event, letter, Origin.WIRE)
            return (await letter.answer) == STORED

        about = ["about", "x" * 60_000]
        assert await sent(kinds.CREATE_GROUP, "tea", about)
        assert await sent(kinds.CREATE_GROUP, "den", about)
        assert await sent(kinds.CREATE_GROUP, "cup")
        moves = [["parent", "tea"], ["parent", "den"], ["parent", "tea"]]
        # The second one changes both.
        assert [await sent(kinds.EDIT_METADATA, "cup", move) for move in moves] == [
            True,
            True,
            False,
        ]
        assert await sent(kinds.PUT_USER, "cup", ["p", bob.pubkey]), "a list of one is short"
        assert not await sent(kinds.EDIT_METADATA, "cup", moves[0], by="192.0.2.200")
        assert await sent(kinds.EDIT_METADATA, "cup", moves[0], by="192.0.3.1")
        here.now += 120
        assert await sent(kinds.EDIT_METADATA, "cup", moves[1])


@pytest.mark.parametrize(
    ("kind", "group", "tags"),
    [
        (kinds.CREATE_GROUP, "den", [["about", "x" * 9000]]),
        (kinds.EDIT_METADATA, "tea", [["about", "x" * 9000]]),
        (kinds.EDIT_METADATA, "cup", [["parent", "tea"]]),
        (kinds.EDIT_METADATA, "cup", [["name", "it stays"], ["parent", "pot"]]),
        (kinds.DELETE_GROUP, "pot", []),
    ],
)
async def test_a_change_of_a_group_costs_about_what_the_relay_signs_beside_it(
    kind: int, group: str, tags: list[list[str]]
) -> None:
    """A request of 300 bytes may change two descriptions of 64 KiB."""
    async with home() as here:
        long = ["about", "x" * 20_000]
        for made, tag in (("tea", long), ("pot", long), ("cup", ["parent", "pot"])):
            here.now += 1
            assert await here.take(here.made(alice, kinds.CREATE_GROUP, ["h", made], tag)) == [
                STORED
            ]
        here.now += 5
        here.live.said.clear()
        event = here.made(alice, kind, ["h", group], *tags)
        charged = len(event.raw) + bytes_signed(event, here.groups)
        assert await here.take(event) == [STORED]
        signed = sum(len(each.raw) for each in here.live.said if each.kind in kinds.GROUP_STATE)
        assert signed > 0
        assert charged > signed / 2


async def test_calls_of_remote_signers_come_through_from_one_address() -> None:
    """Ten that were large, or 240, a minute were too few: two devices of one person follow
    somebody, 300 people of one office log in."""
    async with home() as here:

        async def sent(who: SecretKey, to: SecretKey, size: int) -> tuple[bool, str]:
            letter = here.letter_from("192.0.2.7")
            call = here.made(who, 24133, ["p", to.pubkey], content="x" * size)
            here.ingest.submit(call, letter, Origin.WIRE)
            return await letter.answer

        client, signer = cast.person("a client"), cast.person("its signer")
        for _ in range(12):
            assert await sent(client, signer, 24_000) == STORED
            assert await sent(signer, client, 24_000) == STORED
        for _ in range(300):
            assert await sent(client, signer, 400) == STORED
        answers = [await sent(signer, client, 400_000) for _ in range(9)]
        assert answers[0] == STORED
        assert answers[-1][1].startswith("rate-limited:")


async def test_a_rate_is_each_authors_own_and_of_its_kinds() -> None:
    async with home(slowly("author", burst=1)) as here:
        await here.do(alice, 1)
        assert await here.take(here.made(alice, 9)) == [too_many(60)]
        await here.do(alice, 7)
        await here.do(bob, 1)


async def test_a_rate_per_kind_is_everybodys() -> None:
    async with home(slowly("kind", burst=1)) as here:
        await here.do(alice, 1)
        assert await here.take(here.made(bob, 1)) == [too_many(60)]
        await here.do(bob, 9)


async def test_a_rate_per_group_is_the_groups_and_of_no_other_events() -> None:
    async with home(slowly("group", burst=1)) as here:
        for group in ("tea", "den"):
            await here.do(owner, kinds.CREATE_GROUP, h=group)
        await here.do(owner, 9, h="tea")
        assert await here.take(here.made(owner, 9, h="tea")) == [too_many(60)]
        await here.do(owner, 9, h="den")
        await here.do(owner, 1)
        await here.do(owner, 1)


async def test_a_rate_per_connection_counts_whoever_signed() -> None:
    async with home(slowly("connection", burst=1)) as here:

        async def sent(who: SecretKey, connection: int) -> tuple[bool, str]:
            letter = Letter()
            letter.connection = connection
            here.ingest.submit(here.made(who, 1), letter, Origin.WIRE)
            return await letter.answer

        assert await sent(alice, 1) == STORED
        assert await sent(bob, 1) == too_many(60)
        assert await sent(alice, 2) == STORED


async def test_the_reject_text_of_a_rate_is_sent_as_written() -> None:
    rule = slowly("author", burst=1, more='reject = "take a breath"')
    async with home(rule) as here:
        await here.do(alice, 1)
        wait = (False, "rate-limited: take a breath")
        assert await here.take(here.made(alice, 1)) == [wait]


async def test_what_another_rule_refuses_takes_nothing() -> None:
    shut = '[[rule]]\nname = "shut"\nmatch = { kinds = [1] }\ncontent = { refuse = ["x"] }'
    async with home(slowly("author", burst=1), shut) as here:
        for _ in range(3):
            [(ok, text)] = await here.take(here.made(alice, 1, content="x"))
            assert (ok, text[:8]) == (False, "blocked:")
        await here.do(alice, 1)


async def test_what_a_group_refuses_takes_nothing() -> None:
    async with home(slowly("author", burst=1), preset="group") as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.CREATE_GROUP, h="den")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="den")
        refused = (False, "restricted: not a member")
        assert await here.take(here.made(alice, 9, h="tea")) == [refused]
        await here.do(alice, 9, h="den")


async def test_a_duplicate_takes_no_token_and_is_a_duplicate_without_tokens_too() -> None:
    async with home(slowly("author", burst=2)) as here:
        note = await here.do(alice, 1)
        assert await here.take(note, note, note) == [DUPLICATE] * 3
        await here.do(alice, 1)
        assert await here.take(note) == [DUPLICATE]


async def test_what_loses_its_place_takes_nothing() -> None:
    rule = '[[rule]]\nname = "r"\nrate = { per = "author", burst = 2, per_minute = 1 }'
    async with home(rule) as here:
        await here.do(alice, 0)
        older = here.made(alice, 0, at=here.now - 9)
        assert await here.take(older) == [(False, "duplicate: a newer version is stored")]
        gone = here.made(alice, 1, ["expiration", str(here.now - 1)])
        assert await here.take(gone) == [(False, "invalid: event expired")]
        await here.do(alice, 1)
        assert await here.take(here.made(alice, 1)) == [too_many(60)]


async def test_what_is_passed_on_counts_too() -> None:
    async with home(slowly("author", burst=1)) as here:
        await here.do(alice, 20001)
        assert await here.take(here.made(alice, 20001)) == [too_many(60)]


async def test_of_several_rates_all_count_or_none() -> None:
    async with home(slowly("author", burst=3), slowly("kind", burst=1, name="kinds")) as here:
        await here.do(alice, 1)
        for _ in range(5):
            assert await here.take(here.made(alice, 1)) == [too_many(60)]
        await here.do(alice, 9)
        assert await here.take(here.made(bob, 9)) == [too_many(60)]
        await here.do(alice, 20001)
        assert await here.take(here.made(alice, 9)) == [too_many(60)]


@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.TRUSTED_IMPORT])
async def test_imports_are_not_held_up(origin: Origin) -> None:
    async with home(slowly("author", burst=1)) as here:
        notes = [here.made(alice, 1) for _ in range(5)]
        assert await here.take(*notes, origin=origin) == [STORED] * 5
        await here.do(alice, 1)


async def test_what_the_relay_signs_itself_is_never_counted() -> None:
    rule = '[[rule]]\nname = "r"\nrate = { per = "group", burst = 2, per_minute = 1 }'
    async with home(rule) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        for _ in range(2):
            await here.do(alice, 9, h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [too_many(60)]
        assert len(await here.log()) > 4


async def test_a_request_to_vanish_is_never_too_much() -> None:
    rules = (
        '[[rule]]\nname = "r"\nrate = { per = "author", burst = 1, per_minute = 1 }',
        full("author", "events = 0"),
    )
    async with home(*rules) as here:
        await here.vanish(alice)


async def test_a_reload_keeps_the_buckets_of_rules_that_stay() -> None:
    async with home(slowly("author", burst=1)) as here:
        await here.do(alice, 1)
        here.state.enforce(policy_of("open", slowly("author", burst=1), slowly("kind", name="k")))
        assert await here.take(here.made(alice, 1)) == [too_many(60)]
        here.state.enforce(policy_of("open", slowly("author", burst=3)))
        await here.do(alice, 1)


async def test_who_is_excepted_is_not_counted() -> None:
    rule = slowly("author", burst=1, more='except = { authors = ["owner"] }')
    async with home(rule) as here:
        for _ in range(3):
            await here.do(owner, 1)


# quotas ------------------------------------------------------------------------------------------


async def test_so_many_events_of_an_author_are_stored() -> None:
    async with home(full("author", "events = 2", "match = { kinds = [1, 7] }")) as here:
        notes = [here.made(alice, kind) for kind in (1, 7, 1)]
        assert await here.take(*notes) == [STORED, STORED, stored(2)]
        await here.do(alice, 9)
        await here.do(bob, 1)
        await here.do(alice, kinds.DELETION, ["e", notes[0].id])
        assert await here.take(here.made(alice, 1), notes[2]) == [STORED, stored(2)]


async def test_a_deletion_makes_room_in_its_own_batch() -> None:
    async with home(full("author", "events = 1")) as here:
        first = await here.do(alice, 1)
        away = here.made(alice, kinds.DELETION, ["e", first.id])
        notes = [here.made(alice, 1) for _ in range(3)]
        assert await here.take(notes[0], away, notes[1], notes[2]) == [
            stored(1),
            STORED,
            STORED,
            stored(1),
        ]


async def test_a_new_version_adds_no_event() -> None:
    async with home(full("author", "events = 1", "match = { kinds = [0] }")) as here:
        await here.do(alice, 0, content="one")
        here.now += 1
        await here.do(alice, 0, content="two")
        here.now += 1
        newer = [here.made(alice, 0, at=here.now + n, content="three") for n in range(3)]
        assert await here.take(*newer) == [STORED] * 3


async def test_bytes_are_counted_as_they_are_stored() -> None:
    async with home(full("author", "bytes = 1000")) as here:
        note = await here.do(alice, 1, content="x" * 400)
        size = len(note.raw)
        refused = (False, f"rate-limited: full: at most 1000 bytes may be stored, {size} are")
        assert await here.take(here.made(alice, 1, content="x" * 400)) == [refused]
        await here.do(bob, 1, content="x" * 400)


async def test_a_smaller_version_is_taken_though_all_is_full() -> None:
    async with home() as here:
        await here.do(alice, 30023, ["d", "x"], content="x" * 900)
        here.state.enforce(policy_of("open", full("author", "bytes = 100")))
        here.now += 1
        larger = here.made(alice, 30023, ["d", "x"], content="x" * 901)
        [(ok, text)] = await here.take(larger)
        assert not ok
        assert text.startswith("rate-limited: ")
        await here.do(alice, 30023, ["d", "x"], content="x" * 800)


async def test_a_group_is_full_for_everybody() -> None:
    rule = full("group", "events = 2", 'match = { kinds = [9] }\nreject = "this group is full"')
    async with home(rule) as here:
        for group in ("tea", "den"):
            await here.do(owner, kinds.CREATE_GROUP, h=group)
        await here.do(alice, 9, h="tea")
        await here.do(bob, 9, h="tea")
        assert await here.take(here.made(mallory, 9, h="tea")) == [
            (False, "rate-limited: this group is full")
        ]
        await here.do(mallory, 9, h="den")
        await here.do(mallory, 9)


async def test_what_the_relay_signs_for_a_group_fills_nothing() -> None:
    async with home(full("group", "events = 1")) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        await here.do(alice, 9, h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [stored(1)]


async def test_a_full_group_can_still_be_led() -> None:
    async with home(full("group", "events = 0")) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [stored(0)]


async def test_authors_limits_whom_a_quota_applies_to() -> None:
    rule = full("author", "events = 1", 'except = { authors = ["owner"] }')
    async with home(rule) as here:
        await here.do(owner, 1)
        await here.do(owner, 1)
        await here.do(alice, 1)
        assert await here.take(here.made(alice, 1)) == [stored(1)]


async def test_what_is_passed_on_needs_no_room() -> None:
    async with home(full("author", "events = 0")) as here:
        await here.do(alice, 20001)


async def test_an_import_is_held_to_quotas_and_a_trusted_one_is_not() -> None:
    async with home(full("author", "events = 1")) as here:
        notes = [here.made(alice, 1) for _ in range(2)]
        assert await here.take(*notes, origin=Origin.IMPORT) == [STORED, stored(1)]
        assert await here.take(notes[1], origin=Origin.TRUSTED_IMPORT) == [STORED]


async def test_a_full_quota_takes_no_token() -> None:
    rule = (
        '[[rule]]\nname = "both"\nmatch = { kinds = [1] }\n'
        'rate = { per = "author", burst = 2, per_minute = 1 }\n'
        'quota = { per = "author", events = 1 }'
    )
    async with home(rule) as here:
        note = await here.do(alice, 1)
        assert await here.take(*(here.made(alice, 1) for _ in range(3))) == [stored(1)] * 3
        await here.do(alice, kinds.DELETION, ["e", note.id])
        await here.do(alice, 1)


# groups that other events decide -----------------------------------------------------------------

OF_ALL = "match = { kinds = [9, 1111], h = true }"


def comment_on(here: Home, who: SecretKey, event: Event) -> Event:
    """Without an `h`."""
    return here.made(who, kinds.COMMENT, ["E", event.id])


async def test_what_names_a_message_of_a_full_group_is_refused_without_h_too() -> None:
    async with home(full("group", "events = 2", OF_ALL)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        message = await here.do(alice, 9, h="tea")
        comments = [comment_on(here, bob, message) for _ in range(3)]
        assert await here.take(*comments) == [STORED, stored(2), stored(2)]
        assert await here.take(comments[1]) == [stored(2)]
        await here.do(bob, 1)


async def test_requests_to_join_take_nothing_of_the_pace_of_a_group() -> None:
    """By made-up keys they kept members from writing, and owners from moderating."""
    rule = '[groups]\njoins = "review"\n[[rule]]\nname = "r"\nmatch = { h = true }\n'
    rule += 'rate = { per = "group", burst = 2, per_minute = 1 }'
    async with home(rule) as here:
        await here.do(owner, kinds.CREATE_GROUP, ["restricted"], h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        asked = [here.made(who, kinds.JOIN_REQUEST, h="tea") for who in (bob, mallory)]
        assert {text for _, text in await here.take(*asked)} == {"restricted: pending review"}
        message = await here.do(alice, 9, h="tea")
        await here.do(alice, 9, h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [too_many(60)]
        await here.do(owner, kinds.DELETE_EVENT, ["e", message.id], h="tea")


async def test_comments_without_h_fill_no_group_whose_rule_does_not_name_their_kind() -> None:
    """Reactions by made-up keys kept members and owners from writing."""
    async with home(full("group", "events = 2", "match = { h = true }")) as here:
        await here.do(owner, kinds.CREATE_GROUP, ["restricted"], ["closed"], h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        message = await here.do(alice, 9, h="tea")
        comments = [comment_on(here, bob, message) for _ in range(4)]
        assert await here.take(*comments) == [STORED, STORED, stored(2), stored(2)]
        await here.do(alice, 9, h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [stored(2)]


async def test_what_it_names_may_come_in_the_same_batch() -> None:
    async with home(full("group", "events = 2", OF_ALL)) as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        message = here.made(alice, 9, h="tea")
        first = comment_on(here, bob, message)
        answers = [comment_on(here, bob, first) for _ in range(2)]
        assert await here.take(message, first, *answers) == [STORED, STORED, stored(2), stored(2)]


async def test_what_names_messages_without_h_takes_nothing_of_the_pace_of_their_group() -> None:
    """Comments by made-up keys kept members, admins and owners from writing."""
    rule = '[[rule]]\nname = "r"\nmatch = { h = ["tea"] }\n'
    rule += 'rate = { per = "group", burst = 2, per_minute = 1 }'
    async with home(rule) as here:
        await here.do(owner, kinds.CREATE_GROUP, ["restricted"], ["closed"], h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        message = await here.do(alice, 9, h="tea")
        comments = [comment_on(here, bob, message) for _ in range(9)]
        assert await here.take(*comments) == [STORED] * 9
        await here.do(alice, 9, h="tea")
        await here.do(owner, kinds.DELETE_EVENT, ["e", message.id], h="tea")
        assert await here.take(here.made(alice, 9, h="tea")) == [too_many(60)]
        await here.do(alice, kinds.COMMENT, ["E", comments[0].id])


async def test_who_sends_for_a_member_does_not_learn_by_a_full_group_what_is_stored() -> None:
    async with home(full("group", "events = 1", OF_ALL), preset="group") as here:
        await here.do(owner, kinds.CREATE_GROUP, h="tea")
        await here.do(owner, kinds.PUT_USER, ["p", alice.pubkey], h="tea")
        message = await here.do(alice, 9, h="tea")
        comment = comment_on(here, alice, message)
        assert await here.take(comment) == [STORED]
        assert comment not in await here.log()
        assert await here.take(comment, logins=[alice.pubkey]) == [stored(1)]


# files of keys -----------------------------------------------------------------------------------


def listing(policy: PolicySet, *keys: str) -> PolicySet:
    return policy.with_actors(replace(policy.actors, banned=frozenset(keys)))


async def test_a_key_that_a_file_bans_is_banned_as_by_a_call() -> None:
    async with home() as here:
        await here.do(mallory, 1)
        here.state.enforce(listing(here.policy, mallory.pubkey))
        banned = (False, "blocked: this key is banned here")
        assert await here.take(here.made(mallory, 1)) == [banned]
        assert await here.call("unbanpubkey", mallory.pubkey) == BY_FILE
        assert await here.call("allowpubkey", mallory.pubkey) == BY_FILE
        assert await here.call("banpubkey", mallory.pubkey) == STORED
        here.state.enforce(here.policy)
        assert await here.call("unbanpubkey", mallory.pubkey) == STORED
        await here.do(mallory, 1)


async def test_events_of_a_banned_key_are_deleted_where_files_say_delete() -> None:
    async with home() as here:
        note = await here.do(mallory, 1)
        kept = await here.do(alice, 1)
        answers: list[object] = []
        banned = frozenset({mallory.pubkey, cast.carol.pubkey})
        here.ingest.manage(ManagementChange((), answers.append, deleted_authors=banned))
        assert await here.take(note) == [(False, "blocked: deleted")]
        assert answers == [None]
        assert [event.id for event in await here.log()] == [kept.id]


# per address, of the whole relay, and per recipient ----------------------------------------------


async def answer_to(
    here: Home, event: Event, address: str | None, *logins: SecretKey
) -> tuple[bool, str]:
    """On a connection of its own from this address."""
    letter = Letter()
    letter.authenticated = frozenset(key.pubkey for key in logins)
    letter.connection = id(letter)
    letter.address = None if address is None else ip_address(address)
    here.ingest.submit(event, letter, Origin.WIRE)
    return await letter.answer


ADDRESSES = [
    ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
    ("2001:db8:1:1::1", "2001:db8:1:1:ffff::2", "2001:db8:1:2::1"),
    ("::ffff:192.0.2.1", "192.0.2.1", "::ffff:192.0.2.2"),
    (None, None, "192.0.2.1"),
]
"""Two that count as one, and another. An address that is not known counts as one."""


@pytest.mark.parametrize(("one", "same", "other"), ADDRESSES)
async def test_a_rate_per_address_counts_all_keys_of_an_address(
    one: str | None, same: str | None, other: str
) -> None:
    async with home(slowly("address")) as here:
        assert await answer_to(here, here.made(alice, 1), one) == STORED
        assert await answer_to(here, here.made(bob, 1), same) == STORED
        assert await answer_to(here, here.made(mallory, 1), one) == too_many(60)
        assert await answer_to(here, here.made(mallory, 1), other) == STORED


async def test_what_others_send_of_an_author_does_not_use_up_the_authors_rate() -> None:
    """Notes that she signed for other relays, sent by anybody one a second, silenced her."""
    async with home(slowly("author")) as here:
        notes = iter([here.made(alice, 1, at=here.now - number) for number in range(9)])
        for logins in ((), (mallory,)):
            address = f"192.0.2.{1 + len(logins)}"
            answers = [await answer_to(here, next(notes), address, *logins) for _ in range(3)]
            assert answers == [STORED, STORED, too_many(60)]
        own = [await answer_to(here, here.made(alice, 9), "192.0.2.3", alice) for _ in range(3)]
        assert own == [STORED, STORED, too_many(60)]
        # Wherever she is logged in, there is one.
        assert await answer_to(here, here.made(alice, 9), "192.0.2.4", alice) == too_many(60)
        # Who does not log in has one for each address.
        assert await answer_to(here, next(notes), "192.0.2.3") == STORED


async def test_a_rate_per_address_lets_what_has_no_connection_pass() -> None:
    async with home(slowly("address", burst=1)) as here:
        notes = [here.made(alice, 1) for _ in range(3)]
        assert await here.take(*notes, origin=Origin.IMPORT) == [STORED] * 3


async def test_a_quota_per_address_is_of_a_day() -> None:
    async with home(full("address", "events = 2, bytes = 2000")) as here:
        address, day = "192.0.2.1", 86_400
        over = (False, "rate-limited: full: at most 2 events, 2000 bytes a day from one address")
        big = here.made(mallory, 1, content="x" * 1500)
        assert await answer_to(here, here.made(alice, 1), address) == STORED
        assert await answer_to(here, big, address) == over
        assert await answer_to(here, here.made(bob, 20001, content="x" * 5000), address) == STORED
        assert await answer_to(here, here.made(bob, 1), address) == STORED
        assert await answer_to(here, here.made(bob, 1), address) == over
        assert await answer_to(here, here.made(bob, 1), "192.0.2.2") == STORED
        here.now += day // 2
        assert await answer_to(here, here.made(bob, 1), address) == STORED
        assert await answer_to(here, here.made(bob, 1), address) == over
        here.now += day
        assert await answer_to(here, big, address) == STORED


async def test_a_quota_of_nothing_per_address_takes_nothing() -> None:
    over = (False, "rate-limited: full: at most 0 events a day from one address")
    async with home(full("address", "events = 0")) as here:
        assert await answer_to(here, here.made(alice, 1), "192.0.2.1") == over


async def test_a_rate_of_the_relay_counts_what_all_clients_send() -> None:
    async with home(slowly("relay")) as here:
        notes = [here.made(alice, 1) for _ in range(3)]
        assert await here.take(*notes, origin=Origin.IMPORT) == [STORED] * 3
        assert await answer_to(here, here.made(alice, 1), "192.0.2.1") == STORED
        assert await answer_to(here, here.made(bob, 9), "192.0.2.2", bob) == STORED
        assert await answer_to(here, here.made(mallory, 1), "192.0.2.3") == too_many(60)
        assert await answer_to(here, here.made(mallory, 7), "192.0.2.3") == STORED


async def test_a_quota_of_the_relay_is_of_a_day() -> None:
    async with home(full("relay", "events = 2, bytes = 2000")) as here:
        day = 86_400
        over = (
            False,
            "rate-limited: full: at most 2 events, 2000 bytes a day from all clients together",
        )
        big = here.made(mallory, 1, content="x" * 1500)
        assert await here.take(here.made(alice, 1), origin=Origin.IMPORT) == [STORED]
        assert await answer_to(here, here.made(alice, 1), "192.0.2.1") == STORED
        assert await answer_to(here, big, "192.0.2.2") == over
        assert await answer_to(here, here.made(bob, 1), "192.0.2.3") == STORED
        assert await answer_to(here, here.made(bob, 1), "192.0.2.4") == over
        assert await here.take(here.made(bob, 1), origin=Origin.IMPORT) == [STORED]
        here.now += day // 2
        assert await answer_to(here, here.made(bob, 1), "192.0.2.3") == STORED
        assert await answer_to(here, here.made(bob, 1), "192.0.2.1") == over
        here.now += day
        assert await answer_to(here, big, "192.0.2.1") == STORED


@pytest.mark.parametrize("order", [1, -1])
async def test_what_one_address_sends_beyond_its_own_quota_takes_nothing_of_the_relays(
    order: int,
) -> None:
    own, total = full("address", "events = 2"), full("relay", "events = 3").replace("full", "all")
    async with home(*(own, total)[::order]) as here:
        answers = [await answer_to(here, here.made(mallory, 1), "192.0.2.1") for _ in range(9)]
        refused = (False, "rate-limited: full: at most 2 events a day from one address")
        assert answers == [STORED] * 2 + [refused] * 7
        assert await answer_to(here, here.made(alice, 1), "192.0.2.2") == STORED
        refused = (False, "rate-limited: full: at most 3 events a day from all clients together")
        assert await answer_to(here, here.made(alice, 1), "192.0.2.2") == refused
        # What it refuses takes nothing of an address.
        here.now += 86_400
        answers = [await answer_to(here, here.made(alice, 1), "192.0.2.2") for _ in range(2)]
        assert answers == [STORED] * 2


def wrap(here: Home, *recipients: SecretKey) -> Event:
    """By a key of its own, as all are."""
    by = cast.person(f"wrap {here.now}")
    here.now += 1
    return here.made(by, 1059, *(["p", key.pubkey] for key in recipients))


INBOX = (
    '[[rule]]\nname = "inbox"\nmatch = { kinds = [1059] }\nexcept = { login = ["known"] }\n'
    'quota = { per = "recipient", events = 2 }\n'
)


@pytest.mark.parametrize("together", [True, False])
async def test_gift_wraps_of_unknown_senders_fill_an_inbox_to_its_quota(*, together: bool) -> None:
    async with home(INBOX) as here:
        wraps = [wrap(here, alice) for _ in range(3)]
        if together:
            answers = await here.take(*wraps)
        else:
            answers = [await answer_to(here, each, "192.0.2.1") for each in wraps]
        assert answers == [STORED, STORED, stored(2)]
        assert await answer_to(here, wrap(here, bob), "192.0.2.1") == STORED
        # A known sender logs in; the recipient makes room.
        assert await answer_to(here, wrap(here, alice), "192.0.2.1", owner) == STORED
        gone = [["e", each.id] for each in wraps[:2]]
        assert await answer_to(here, here.made(alice, 5, *gone), None) == STORED
        assert await answer_to(here, wrap(here, alice), "192.0.2.1") == STORED
        assert await answer_to(here, wrap(here, alice), "192.0.2.1") == stored(2)


async def test_a_wrap_for_several_counts_for_each_of_them() -> None:
    crowd = [cast.person(f"reader {number}") for number in range(16)]
    async with home(INBOX) as here:
        assert await here.take(wrap(here, alice, bob), wrap(here, alice)) == [STORED, STORED]
        assert await here.take(wrap(here, mallory, alice)) == [stored(2)]
        assert await here.take(wrap(here, mallory, bob)) == [STORED]
        assert await here.take(wrap(here, *crowd), wrap(here, *crowd, mallory)) == [
            STORED,
            (False, "invalid: p: a gift wrap for more than 16 recipients"),
        ]
        assert await answer_to(here, wrap(here, *crowd, mallory), None, owner) == STORED


async def test_who_vanished_is_told_at_the_pace_of_wraps_that_are_stored() -> None:
    """Anybody found them, and the second of their requests, among thousands of keys."""
    pace = (
        '[[rule]]\nname = "pace"\nmatch = { kinds = [1059] }\n'
        'rate = { per = "address", burst = 2, per_minute = 1 }\n'
    )
    crowd = [cast.person(f"reader {number}") for number in range(16)]
    async with home(INBOX, pace) as here:
        await here.do(alice, 1)
        to_alice, to_bob = wrap(here, alice), wrap(here, bob)
        to_many = wrap(here, *crowd, alice)
        await here.vanish(alice)
        too_wide = (False, "invalid: p: a gift wrap for more than 16 recipients")
        assert await answer_to(here, to_many, "192.0.2.1") == too_wide
        assert await answer_to(here, to_alice, "192.0.2.1") == DELETED
        assert await answer_to(here, to_alice, "192.0.2.1") == DELETED
        for asked in (to_alice, to_bob):
            assert await answer_to(here, asked, "192.0.2.1") == too_many(60)


async def test_requests_to_vanish_are_asked_for_rates_that_name_them_only() -> None:
    late = '[[rule]]\nname = "late"\n{}rate = {{ per = "address", burst = 1, per_minute = 1 }}\n'
    address = "192.0.2.1"
    async with home(late.format("")) as here:
        await answer_to(here, here.made(alice, 1), address)
        assert await answer_to(here, here.request(alice), address) == STORED
    async with home(late.format("match = { kinds = [62] }\n")) as here:
        assert await answer_to(here, here.request(alice), address) == STORED
        assert await answer_to(here, here.request(bob), address) == too_many(60)


async def test_bytes_of_requests_to_vanish_count_for_their_address() -> None:
    """A key that has something stored has its request kept whole, for ever, and anybody may store
    a gift wrap by a new key first. The answer is the same of a key that has nothing stored."""
    quota = full("address", "bytes = 3000", "match = { kinds = [62] }")
    over = (False, "rate-limited: full: at most 3000 bytes a day from one address")
    async with home(quota) as here:

        async def answer(number: int, length: int, address: str = "192.0.2.1") -> tuple[bool, str]:
            request = cast.person(f"key {number}").sign(
                62, [["relay", "ALL_RELAYS"]], "x" * length, here.now
            )
            return await answer_to(here, request, address)

        for number in (1, 2, 3):
            await here.do(cast.person(f"key {number}"), 1)
        assert await answer(1, 1200) == STORED
        assert await answer(1, 1100) == STORED, "the last one of the key covers it, and is kept"
        for number in (2, 4):
            assert await answer(number, 1200) == over
        assert await answer(2, 0) == STORED
        assert await answer(3, 1200, "192.0.2.2") == STORED


# who is known here --------------------------------------------------------------------------------

NOT_HERE = (False, "restricted: only people known here may write; join a group first")
TOO_MANY_ASKED = (
    False,
    "rate-limited: too many events to keys that are not known here, wait a minute",
)


@pytest.mark.parametrize("kind", sorted(kinds.WRAPS))
async def test_a_client_asks_of_few_keys_whether_they_are_known_here(kind: int) -> None:
    """By the answers to wraps, of which nothing was stored, it found the members of hidden groups
    among a hundred thousand keys."""

    def wrap(*to: str) -> Event:
        return here.made(cast.person("one-time key"), kind, *(["p", pubkey] for pubkey in to))

    async with home(preset="group") as here:
        await here.do(owner, 9007, ["hidden"], h="tea")
        await here.do(owner, 9000, ["p", alice.pubkey], h="tea")
        several = wrap(alice.pubkey, bob.pubkey)
        assert await here.take(several) == [NOT_HERE]
        assert await here.take(several, logins=[alice.pubkey]) == [STORED]
        assert await here.take(wrap(alice.pubkey)) == [STORED]
        for _ in range(GUESSES_PER_KEY - 1):
            assert await here.take(wrap(bob.pubkey)) == [NOT_HERE]
        for pubkey in (alice.pubkey, bob.pubkey):
            assert await here.take(wrap(pubkey)) == [TOO_MANY_ASKED]
            assert await here.take(wrap(alice.pubkey), logins=[alice.pubkey]) == [STORED]
        here.now += 60
        assert await here.take(wrap(alice.pubkey)) == [STORED]


# deletions that others may not read --------------------------------------------------------------

PRIVATE = (
    False,
    "rate-limited: deletions of private events: at most 100,000 bytes a day from one network",
)


def deletion(here: Home, who: SecretKey, *tags: list[str], number: int = 0) -> Event:
    """Of some 30,000 bytes."""
    others = [["e", f"{number:04}{target:060x}"] for target in range(420)]
    return here.made(who, 5, *tags, *others)


async def test_few_deletions_that_others_may_not_read_are_stored() -> None:
    """Who asks for kind 5 passes over each: 8,000 with `e` of fifty popular notes, written by one
    network within seconds, kept such reads waiting for 40 s."""
    async with home() as here:
        hidden = [deletion(here, alice, ["k", "4"], number=number) for number in range(4)]
        answers = [await answer_to(here, each, "192.0.2.1") for each in hidden]
        assert answers == [STORED] * 3 + [PRIVATE]
        assert await answer_to(here, hidden[0], "192.0.2.1") == DUPLICATE
        assert await answer_to(here, hidden[3], "192.0.2.77") == PRIVATE, "of that network"
        assert await answer_to(here, deletion(here, bob, ["k", "1"]), "192.0.2.1") == STORED
        for operator in (owner, cast.robot):
            by_operator = deletion(here, operator, ["k", "4"])
            assert await answer_to(here, by_operator, "192.0.2.1") == STORED
        assert await answer_to(here, hidden[3], "198.51.100.1") == STORED
        more = [deletion(here, alice, ["k", "4"], number=number) for number in range(4, 8)]
        assert await here.take(*more) == [STORED] * 4, "by a program on the relay's machine"


FULL = (False, "rate-limited: full: at most 100000 bytes a day from one network")
OPENS = (
    False,
    "restricted: the deletions in it, which stay private, have more than 100,000 bytes, or with"
    " others of your network today: an owner of the relay opens it",
)


async def test_a_group_is_opened_with_few_deletions() -> None:
    """They stay hidden, and then everybody passes over them: else anybody wrote any number in a
    private group, and opened it."""
    async with home() as here:
        for group, most in (("inn", 2), ("den", 2), ("cave", 4), ("nook", 4)):
            await here.do(alice, 9007, ["hidden" if group == "cave" else "private"], h=group)
            for number in range(most):
                hidden = deletion(here, alice, ["h", group], ["k", "4"], number=number)
                assert await answer_to(here, hidden, "192.0.2.1") == STORED
                await here.do(alice, 9, h=group, content="x" * 30_000)

        opened = {
            group: here.made(alice, 9002, [tag], h=group)
            for group, tag in (
                ("inn", "public"),
                ("den", "public"),
                ("cave", "visible"),
                ("nook", "public"),
            )
        }

        async def answer(group: str, address: str, who: SecretKey = alice) -> tuple[bool, str]:
            return await answer_to(here, opened[group], address, who)

        assert await answer("cave", "198.51.100.1", bob) == STORED, "he may not know of it"
        assert await answer("cave", "198.51.100.1") == OPENS
        assert await answer("inn", "192.0.2.1") == STORED
        assert await answer("den", "192.0.2.1") == OPENS, "with those of the other group"
        private = deletion(here, bob, ["k", "4"])
        assert await answer_to(here, private, "192.0.2.1") == STORED, "nothing was taken for den"
        assert await answer("den", "203.0.113.1") == STORED
        by_owner = here.made(owner, 9002, ["visible"], h="cave")
        assert await answer_to(here, by_owner, "192.0.2.1") == STORED
        assert await answer("nook", "192.0.2.1") == OPENS
        assert await here.take(opened["nook"]) == [STORED], "by a program on the relay's machine"


async def test_reports_that_name_a_message_of_a_group_count_as_those_with_its_h() -> None:
    """They belong to it, so only its admins read them."""
    async with home() as here:
        await here.do(alice, 9007, h="square")
        said = await here.do(alice, 9, h="square")
        others = [["e", f"{target:064x}"] for target in range(420)]
        outside = here.made(mallory, 1984, ["p", alice.pubkey], *others)
        for tag, wanted in (
            (["e", said.id], STORED),
            (["h", "square"], STORED),
            (["e", said.id], STORED),
            (["e", said.id], FULL),
            (["h", "square"], FULL),
        ):
            report = here.made(mallory, 1984, tag, ["p", alice.pubkey], *others)
            assert await answer_to(here, report, "192.0.2.1") == wanted
        assert await answer_to(here, outside, "192.0.2.1") == STORED


async def test_where_only_known_keys_write_deletions_have_no_such_limit() -> None:
    async with home(preset="group") as here:
        await here.do(owner, 9007, ["private"], h="tea")
        await here.do(owner, 9000, ["p", alice.pubkey, "admin"], h="tea")
        for more in ([], [["h", "tea"]]):
            hidden = [deletion(here, alice, ["k", "4"], *more, number=n) for n in range(4)]
            assert [await answer_to(here, each, "192.0.2.1") for each in hidden] == [STORED] * 4
        opened = here.made(alice, 9002, ["public"], h="tea")
        assert await answer_to(here, opened, "192.0.2.1", alice) == STORED


async def test_where_only_known_keys_write_hidden_deletions_by_others_are_few() -> None:
    """Anybody writes gift wraps to known keys, and deletes them, with fifty popular notes: 5,000 by
    one network kept reads by tag waiting for 17 s."""
    async with home(preset="group") as here:
        await here.do(owner, 9007, h="tea")
        await here.do(owner, 9000, ["p", alice.pubkey], h="tea")
        wraps = [here.made(mallory, 1059, ["p", alice.pubkey], content=f"{n}") for n in range(4)]
        assert await here.take(*wraps) == [STORED] * 4
        hidden = [
            deletion(here, mallory, ["e", wrap.id], number=number)
            for number, wrap in enumerate(wraps)
        ]
        answers = [await answer_to(here, each, "192.0.2.1") for each in hidden]
        assert answers == [STORED] * 3 + [PRIVATE]
        assert await answer_to(here, hidden[3], "192.0.2.1", alice) == STORED, "a member logged in"


async def test_deletions_that_remove_what_others_may_not_read_count_too() -> None:
    async with home() as here:
        letters = [await here.do(alice, 4, ["p", bob.pubkey]) for _ in range(4)]
        removals = [
            deletion(here, alice, ["e", letter.id], number=number)
            for number, letter in enumerate(letters)
        ]
        answers = [await answer_to(here, each, "192.0.2.1") for each in removals]
        assert answers == [STORED] * 3 + [PRIVATE]
        assert letters[3].id in {event.id for event in await here.log()}, "it was not carried out"


async def removal_in_pieces(
    here: Home, number: int, last: Event, group: str | None = None, h: str | None = None
) -> Event:
    """By alice, of some 30,000 bytes, of ten of her notes and this; the notes come first."""
    kind = 1 if group is None else 9
    notes = [await here.do(alice, kind, h=group, content=f"{n}" * 500) for n in range(10)]
    others = [["e", f"{number:04}{target:060x}"] for target in range(410)]
    tags = [["e", note.id] for note in notes] + others
    return here.made(alice, 5, *tags, ["e", last.id], h=h)


@pytest.mark.parametrize("kind", [4, 1])
async def test_deletions_in_pieces_count_whichever_piece_deletes_what_is_private(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr("relay.write.pieces.MOST_DELETED", 2_000)
    async with home() as here:
        last = [await here.do(alice, kind, ["p", bob.pubkey]) for _ in range(5)]
        removals = [await removal_in_pieces(here, n, each) for n, each in enumerate(last)]
        answers = [await answer_to(here, each, "192.0.2.1") for each in removals]
        assert answers == [STORED] * 3 + [PRIVATE if kind == 4 else STORED] * 2
        left = {event.id for event in await here.log()}
        assert (removals[4].tags[0][1] in left) is (kind == 4), "nothing of it was carried out"


async def test_deletions_in_pieces_in_groups_that_only_members_read_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.write.pieces.MOST_DELETED", 2_000)
    async with home() as here:
        await here.do(alice, 9007, ["private"], h="den")
        last = await here.do(alice, 9, h="den")
        for number in range(4):
            removal = await removal_in_pieces(here, number, last, "den")
            assert await answer_to(here, removal, "192.0.2.1") == STORED
        removal = await removal_in_pieces(here, 4, last, "den", "den")
        hidden = [deletion(here, alice, ["k", "4"], number=number) for number in range(3)]
        assert [await answer_to(here, each, "192.0.2.1") for each in hidden] == [STORED] * 3
        assert await answer_to(here, removal, "192.0.2.1") == STORED


async def test_a_deletion_counts_whose_group_is_opened_between_its_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.write.pieces.MOST_DELETED", 2_000)
    async with home() as here:
        await here.do(alice, 9007, ["private"], h="den")
        removal = await removal_in_pieces(here, 0, await here.do(alice, 9, h="den"), "den", "den")
        opening, sent = here.made(alice, 9002, ["public"], h="den"), list[Letter]()
        stored = here.ingest._stored

        async def then_open(items: Sequence[Any]) -> Any:
            batch = await stored(items)
            if batch.is_piece and batch.plan.removes and not sent:
                sent.append(here.post(opening, connection=2))
                await eventually("it waits", lambda: here.ingest.waiting["commit"] == 1)
            return batch

        monkeypatch.setattr(here.ingest, "_stored", then_open)
        assert await answer_to(here, removal, "192.0.2.1") == STORED
        assert await sent[0].answer == STORED
        log = [event.id for event in await here.log()]
        assert log.index(opening.id) < log.index(removal.id)
        hidden = [deletion(here, alice, ["k", "4"], number=number) for number in range(3)]
        answers = [await answer_to(here, each, "192.0.2.1") for each in hidden]
        assert answers == [STORED] * 2 + [PRIVATE]


async def test_those_of_groups_that_only_members_read_do_not_count() -> None:
    async with home() as here:
        for group, flags, last in (("den", [["private"]], STORED), ("square", [], PRIVATE)):
            await here.do(alice, 9007, *flags, h=group)
            hidden = [deletion(here, alice, ["h", group], ["k", "4"], number=n) for n in range(4)]
            answers = [await answer_to(here, each, "192.0.2.1") for each in hidden]
            assert answers == [STORED] * 3 + [last]


# what only those learn who are within their rates -------------------------------------------------


async def test_whether_a_key_is_in_many_groups_is_asked_within_the_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who had used up the day's changes was told it again and again, and nobody saw that it was
    asked."""
    monkeypatch.setattr("relay.groups.rules._most_groups", lambda *_: 0)
    rule = '[[rule]]\nname = "slow"\nmatch = { kinds = [9000] }\n'
    rate = 'rate = { per = "author", burst = 2, per_minute = 1 }\n'
    async with home(rule + rate) as here:
        await here.do(alice, 9007, h="tea")
        asked = [here.made(alice, 9000, ["p", bob.pubkey], h="tea") for _ in range(3)]
        text = f"p: {bob.pubkey} is in many groups: let it join by itself, or an owner put it in"
        answers = await here.take(*asked)
        assert answers == [(False, f"blocked: {text}")] * 2 + [too_many(60)]

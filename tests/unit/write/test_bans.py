"""Bans in the write pipeline: ordered with events in the lane. N86-11…26, N29-19.

On both stores, with the policies that `rookery init` makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.access.management import ListName
from relay.access.visibility import Viewer
from relay.facts import Origin
from tests.cast import alice, bob, carol, owner, robot
from tests.harness.relay_in_process import DELETED, RELAY, STORED, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.lifecycle.rows import Stored
    from relay.nostr.event import Event
    from relay.storage import Store

BAD_CODE = (False, "restricted: the group is closed: this code is not valid")
BANNED = (False, "blocked: this key is banned here")
BANNED_EVENT = (False, "blocked: this event is banned here")
KIND = (False, "blocked: events of this kind are not accepted here")
DONE = (True, "")
DELETE = '[bans]\nstored = "delete"\n'


@pytest.fixture
async def home(store: Store) -> AsyncIterator[Home]:
    """With a group "tea", whose members are alice, an admin, and bob."""
    async with Home(store, policy_of("open")) as home:
        await with_tea(home)
        yield home


@pytest.fixture
async def strict(store: Store) -> AsyncIterator[Home]:
    """The same, with `[bans] stored = "delete"`."""
    async with Home(store, policy_of("open", DELETE)) as home:
        await with_tea(home)
        yield home


async def with_tea(home: Home) -> None:
    await home.do(alice, 9007, h="tea")
    await home.do(alice, 9000, ["p", bob.pubkey], h="tea")


async def rows(home: Home) -> list[Stored]:
    return list(await home.store.since(0, 10_000))


# the order of the lane ---------------------------------------------------------------------------


@pytest.mark.proves("N86-11", "N29-19", "N42-16")
async def test_what_is_sent_after_a_ban_is_refused_in_the_same_batch(home: Home) -> None:
    assert await home.take(home.made(bob, 9, h="tea")) == [STORED]
    (banned,) = home.calls(("banpubkey", bob.pubkey))
    sent = home.take(home.made(bob, 9, h="tea"), home.made(bob, 1), home.made(bob, 20001))
    assert await sent == [BANNED] * 3
    assert await banned == DONE


async def test_several_calls_in_a_row_come_to_what_the_last_one_says(home: Home) -> None:
    ban, unban = ("banpubkey", bob.pubkey), ("unbanpubkey", bob.pubkey)
    answers = home.calls(ban, unban, ban, ("allowpubkey", bob.pubkey), unban)
    done = [await answer for answer in answers]
    assert [accepted for accepted, _ in done] == [True, True, True, False, True]
    assert await home.take(home.made(bob, 1)) == [STORED]
    assert not home.state.management.of(ListName.BANNED_KEYS)


@pytest.mark.proves("N86-11")
async def test_a_ban_counts_for_imports_too_but_not_for_ones_own(home: Home) -> None:
    await home.call("banpubkey", bob.pubkey)
    note = home.made(bob, 1)
    assert await home.take(note, origin=Origin.IMPORT) == [BANNED]
    assert await home.take(note, origin=Origin.TRUSTED_IMPORT) == [STORED]
    stranger = home.state.visibility(Viewer())
    (row,) = [row for row in await rows(home) if row.event.id == note.id]
    assert not stranger.may_read(row, None)


@pytest.mark.proves("N86-23")
@pytest.mark.parametrize("origin", list(Origin))
async def test_a_banned_event_is_refused_from_every_origin(home: Home, origin: Origin) -> None:
    note = home.made(bob, 1)
    await home.call("banevent", note.id)
    assert await home.take(note, origin=origin) == [BANNED_EVENT]


@pytest.mark.proves("N86-26")
@pytest.mark.parametrize("origin", list(Origin))
async def test_a_disallowed_kind_is_refused_from_every_origin(home: Home, origin: Origin) -> None:
    await home.call("disallowkind", 30023)
    article = home.made(bob, 30023, ["d", "x"])
    assert await home.take(article, origin=origin) == [KIND]
    await home.call("allowkind", 30023)
    assert await home.take(article, origin=origin) == [STORED]


@pytest.mark.proves("N86-11")
async def test_a_call_that_cannot_be_carried_out_changes_nothing(home: Home) -> None:
    head = await home.store.head()
    for key in (owner.pubkey, RELAY.pubkey):
        done, text = await home.call("banpubkey", key)
        assert not done
        assert text.startswith("restricted: ")
    assert await home.store.management() == home.state.management
    assert not home.state.actors.banned
    assert await home.store.head() == head


# restarts ----------------------------------------------------------------------------------------


@pytest.mark.proves("N86-11", "N86-14", "N86-23", "N86-26")
async def test_everything_is_as_it_was_after_a_restart(home: Home) -> None:
    advert = await home.do(bob, 1)
    await home.call("banpubkey", carol.pubkey, "spam")
    await home.call("allowpubkey", robot.pubkey)
    await home.call("banevent", advert.id)
    await home.call("disallowkind", 7)
    before = home.state.management
    await home.restart()
    assert {key: dict(items) for key, items in home.state.management.entries.items()} == {
        key: dict(items) for key, items in before.entries.items() if items
    }
    assert await home.take(home.made(carol, 1), advert, home.made(bob, 7)) == [
        BANNED,
        BANNED_EVENT,
        KIND,
    ]


async def test_members_go_on_naming_what_a_ban_hides(home: Home) -> None:
    """Clients name messages that they hold: nobody could write for a while after a ban."""
    message = await home.do(bob, 9, h="tea")
    await home.call("banpubkey", bob.pubkey)
    await home.do(alice, 9, ["previous", message.id[:8]], h="tea")


# what goes with a ban ----------------------------------------------------------------------------


@pytest.mark.proves("N86-11")
async def test_rows_go_with_the_ban_where_the_policies_say_so(strict: Home) -> None:
    note, wrote = await strict.do(bob, 1), await strict.do(bob, 0)
    other = await strict.do(carol, 1)
    await strict.call("banpubkey", bob.pubkey)
    assert await strict.found(kinds=[0, 1]) == [other]
    await strict.call("unbanpubkey", bob.pubkey)
    assert await strict.take(note, wrote) == [DELETED] * 2
    assert await strict.take(strict.made(bob, 0, at=strict.now + 1)) == [STORED]


@pytest.mark.proves("N86-11")
@pytest.mark.parametrize("together", [True, False])
async def test_versions_before_those_that_went_with_a_ban_do_not_come_back(
    strict: Home,
    together: bool,  # noqa: FBT001
) -> None:
    old = await strict.do(bob, 30023, ["d", "essay"], at=strict.now - 2)
    newest = strict.made(bob, 30023, ["d", "essay"], at=strict.now - 1)
    if together:  # in the batch of the ban
        sent = strict.post(newest)
        (banned,) = strict.calls(("banpubkey", bob.pubkey))
        assert [await sent.answer, await banned] == [STORED, DONE]
    else:
        assert await strict.take(newest) == [STORED]
        await strict.call("banpubkey", bob.pubkey)
    await strict.call("unbanpubkey", bob.pubkey)
    assert await strict.take(newest, old) == [DELETED] * 2
    newer = await strict.do(bob, 30023, ["d", "essay"])
    assert await strict.found(kinds=[30023]) == [newer]


@pytest.mark.proves("N86-11")
async def test_group_records_of_a_banned_admin_stay(strict: Home) -> None:
    before = strict.groups
    await strict.do(alice, 9, h="tea")
    await strict.call("banpubkey", alice.pubkey)
    assert await strict.found(authors=[alice.pubkey], kinds=[9]) == []
    assert strict.groups.by_id["tea"] == before.by_id["tea"]
    assert await strict.rebuilt() == strict.groups
    assert await strict.take(strict.made(alice, 9000, ["p", carol.pubkey], h="tea")) == [BANNED]


@pytest.mark.proves("N86-11")
async def test_a_login_from_before_the_ban_gives_nothing(home: Home, store: Store) -> None:
    """Its connection stays open, and could send what throw-away keys sign."""
    strict = policy_of(
        "open",
        '[[rule]]\nname = "r"\nmatch = { kinds = [1] }\nwrite = ["owner"]\n'
        'except = { login = ["known"] }\n',
    )
    home.state.enforce(strict)
    assert await home.take(home.made(carol, 1), logins=[bob.pubkey]) == [STORED]
    await home.call("banpubkey", bob.pubkey)
    ((accepted, _),) = await home.take(home.made(carol, 1), logins=[bob.pubkey])
    assert not accepted
    assert await home.take(home.made(carol, 1), logins=[bob.pubkey, alice.pubkey]) == [STORED]


@pytest.mark.proves("N86-11")
async def test_a_banned_key_is_unknown(home: Home) -> None:
    """It had the places, turns and shares of known keys, on a connection from before the ban."""
    bobs = Viewer(frozenset({bob.pubkey}))
    assert home.state.visibility(bobs).is_known
    await home.call("banpubkey", bob.pubkey)
    assert not home.state.visibility(bobs).is_known
    assert home.state.visibility(Viewer(frozenset({bob.pubkey, alice.pubkey}))).is_known


@pytest.mark.proves("N29-42")
async def test_the_last_admin_who_is_not_banned_cannot_leave(home: Home) -> None:
    await home.do(alice, 9000, ["p", carol.pubkey, "admin"], h="tea")
    await home.call("banpubkey", carol.pubkey)
    ((accepted, _),) = await home.take(home.made(alice, 9022, h="tea"))
    assert not accepted
    await home.call("unbanpubkey", carol.pubkey)
    await home.do(alice, 9022, h="tea")


@pytest.mark.proves("N29-39", "N86-11")
async def test_codes_of_a_banned_admin_are_not_valid_while_the_ban_lasts(home: Home) -> None:
    await home.do(alice, 9002, ["closed"], h="tea")
    await home.do(alice, 9009, ["code", "let-me-in"], h="tea")
    await home.call("banpubkey", alice.pubkey)
    assert await home.take(home.made(carol, 9021, ["code", "let-me-in"], h="tea")) == [BAD_CODE]
    assert not home.groups.is_member(carol.pubkey)
    await home.call("unbanpubkey", alice.pubkey)
    await home.do(carol, 9021, ["code", "let-me-in"], h="tea")
    assert home.groups.is_member(carol.pubkey)


async def pinned(home: Home) -> tuple[Event, Event]:
    """Two messages by bob and carol, both pinned."""
    await home.do(alice, 9000, ["p", carol.pubkey], h="tea")
    one, two = await home.do(bob, 9, h="tea"), await home.do(carol, 9, h="tea")
    await home.do(alice, 9010, ["e", one.id], ["e", two.id], h="tea")
    return one, two


async def pins(home: Home) -> list[str]:
    (state,) = await home.found(kinds=[39005], tag_d=["tea"])
    return state.tag_values("e")


@pytest.mark.proves("N86-23", "N29-172")
async def test_a_banned_event_is_no_longer_pinned(home: Home) -> None:
    one, two = await pinned(home)
    assert await pins(home) == [one.id, two.id]
    await home.call("banevent", one.id)
    assert await pins(home) == [two.id]
    assert await home.rebuilt() == home.groups


@pytest.mark.parametrize("flag", ["private", "hidden"])
async def test_a_banned_comment_of_a_private_group_does_not_come_back_public(
    home: Home, flag: str
) -> None:
    """Without `h` it is of the group only while the message that it answers is stored."""
    await home.do(alice, 9007, [flag], h="den")
    message = await home.do(alice, 9, h="den")
    comment, own = await home.do(alice, 1111, ["e", message.id]), await home.do(alice, 9, h="den")
    await home.do(alice, 5, ["e", message.id], h="den")
    for event in (comment, own):
        await home.call("banevent", event.id)
        await home.call("allowevent", event.id)
        await home.take(event)
    assert await home.found(kinds=[9, 1111]) == [own]


async def test_a_banned_comment_of_a_public_group_comes_back_when_it_is_allowed(home: Home) -> None:
    message = await home.do(alice, 9, h="tea")
    comment = await home.do(alice, 1111, ["e", message.id])
    await home.call("banevent", comment.id)
    await home.call("allowevent", comment.id)
    assert await home.take(comment) == [STORED]


@pytest.mark.proves("N86-23")
@pytest.mark.parametrize(("kind", "tags"), [(0, []), (30023, [["d", "essay"]])])
async def test_versions_before_a_banned_one_do_not_come_back(
    home: Home, kind: int, tags: list[list[str]]
) -> None:
    """Whoever had kept the previous one could send it again."""
    at = home.now - 10
    old = await home.do(alice, kind, *tags, content="{}", at=at - 1)
    one, other = [home.made(alice, kind, *tags, content="{}", at=at) for _ in range(2)]
    winner, loser = sorted((one, other), key=lambda event: event.id)
    assert await home.take(winner) == [STORED]
    await home.call("banevent", winner.id)
    assert await home.take(old, loser) == [DELETED] * 2
    await home.call("allowevent", winner.id)
    assert await home.take(old, loser, winner) == [DELETED, DELETED, STORED]
    assert await home.found(kinds=[kind]) == [winner]


@pytest.mark.proves("N86-11", "N29-172")
async def test_events_removed_with_their_author_are_unpinned(strict: Home) -> None:
    _one, two = await pinned(strict)
    await strict.call("banpubkey", bob.pubkey)
    assert await pins(strict) == [two.id]
    assert await strict.rebuilt() == strict.groups


@pytest.mark.proves("N86-11")
async def test_what_a_ban_hides_is_not_sent_live(home: Home) -> None:
    """Accepted before the ban, delivered after it: visibility is checked on delivery."""
    note = await home.do(bob, 1)
    (row,) = [row for row in await rows(home) if row.event.id == note.id]
    assert home.state.is_public(row)
    await home.call("banpubkey", bob.pubkey)
    assert not home.state.is_public(row)
    assert not home.state.visibility(Viewer(frozenset({owner.pubkey}))).may_read(row, None)
    await home.call("unbanpubkey", bob.pubkey)
    assert home.state.is_public(row)


@pytest.mark.proves("N86-11")
async def test_who_becomes_an_owner_is_banned_no_more(home: Home, store: Store) -> None:
    await home.call("banpubkey", bob.pubkey)
    named = policy_of("open", f'[actors]\nowners = ["{owner.npub}", "{bob.npub}"]\n')
    home.state.enforce(named)
    assert await home.take(home.made(bob, 1)) == [STORED]
    home.state.enforce(policy_of("open"))
    assert await home.take(home.made(bob, 1)) == [BANNED]

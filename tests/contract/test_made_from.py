"""A version that was made from a deleted one, on every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.lifecycle.rows import Slot
from relay.nostr.event import made_from
from tests.cast import admin, alice, bob
from tests.harness.relay_in_process import DELETED, STORED, Home, policy_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.storage import Store

BASE_DELETED = (False, "duplicate: the version that it was made from is deleted")
HISTORY = '[[retention]]\nname = "old"\nmatch = { kinds = [30023] }\nhistory = { count = 3 }\n'
SWEPT = '[[retention]]\nname = "soon"\nmatch = { kinds = [30023] }\ndays = 1\n'
LOGINS = [alice.pubkey, bob.pubkey, admin.pubkey]
HOWS = ["id", "address", "vanish", "9005"]


@pytest.fixture
async def home(store: Store) -> AsyncIterator[Home]:
    async with Home(store, policy_of("open", HISTORY)) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9000, ["p", alice.pubkey], h="tea")
        yield home


def version(
    home: Home,
    text: str,
    ago: int,
    base: Event | None,
    *,
    who: SecretKey = alice,
    h: str | None = None,
) -> Event:
    tags = [["d", "a"], made_from(base), *([] if h is None else [["h", h]])]
    return who.sign(30023, tags, text, home.now - ago)


def deletion(home: Home, how: str, deleted: Event) -> Event:
    """40 s ago."""
    at, address = home.now - 40, f"30023:{deleted.pubkey}:a"
    if how == "vanish":
        return home.request(alice, at=at)
    if how == "9005":
        return home.made(admin, 9005, ["e", deleted.id], h="tea", at=at)
    return home.made(alice, 5, ["a", address] if how == "address" else ["e", deleted.id], at=at)


async def stored(home: Home) -> list[str]:
    return [event.content for event in await home.found(kinds=[30023])]


@pytest.mark.proves("N09-12")
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("how", HOWS)
async def test_what_was_deleted_does_not_come_back_in_a_version_made_from_it(
    home: Home, how: str, *, together: bool
) -> None:
    """The other machine did not know that the record was forgotten, and stored its text again."""
    h = "tea" if how == "9005" else None
    first = version(home, "forget me", 60, None, h=h)
    assert await home.take(first, logins=LOGINS) == [STORED]
    request = deletion(home, how, first)
    late = version(home, "forget me, and more", 20, first, h=h)
    before = version(home, "forget me, before", 45, first, h=h)
    if together:
        assert await home.take(request, late, logins=LOGINS) == [STORED, BASE_DELETED]
    else:
        assert await home.take(request, logins=LOGINS) == [STORED]
        await home.restart()
        assert await home.take(late, logins=LOGINS) == [BASE_DELETED]
    # One that is older than the deletion itself is refused in any case.
    (refused,) = await home.take(before, logins=LOGINS)
    assert refused == (DELETED if how in ("address", "vanish") else BASE_DELETED)
    assert await stored(home) == []
    anew = version(home, "more", 30, None, h=h)
    assert await home.take(anew, late, logins=LOGINS) == [STORED, BASE_DELETED]
    assert await home.take(first, logins=LOGINS) == [DELETED]
    assert await stored(home) == ["more"]


async def test_a_version_that_came_before_the_deletion_of_the_one_it_was_made_from_stays(
    home: Home,
) -> None:
    """A kind 5 with an id says nothing of other versions (N09-02)."""
    first = version(home, "one", 60, None)
    second = version(home, "two", 50, first)
    request, third = deletion(home, "id", first), version(home, "three", 20, second)
    answers = await home.take(first, second, request, third, logins=LOGINS)
    assert answers == [STORED] * 4
    assert await stored(home) == ["three"]


@pytest.mark.proves("N09-14")
async def test_a_version_that_a_deletion_of_another_group_names_is_not_deleted(home: Home) -> None:
    first = version(home, "one", 60, None, h="tea")
    request = home.made(alice, 5, ["e", first.id], ["a", f"30023:{alice.pubkey}:a"], h="den")
    await home.do(alice, 9007, h="den")
    late = version(home, "two", -1, first, h="tea")
    assert await home.take(first, request, late, logins=LOGINS) == [STORED] * 3
    assert await stored(home) == ["two"]


@pytest.mark.proves("G-11")
@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
@pytest.mark.parametrize("more", [HISTORY, ""], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ["id", "9005"])
async def test_the_versions_before_a_deleted_one_are_deleted_with_it(
    home: Home, how: str, more: str, *, together: bool
) -> None:
    """Its author had them too, whether or not they are kept as old versions."""
    home.state.enforce(policy_of("open", more))
    h = "tea" if how == "9005" else None
    first = version(home, "forget me", 60, None, h=h)
    second = version(home, "forget me, please", 50, first, h=h)
    assert await home.take(first, second, logins=LOGINS) == [STORED] * 2
    request, late = deletion(home, how, second), version(home, "forget me not", 20, first, h=h)
    if together:
        assert await home.take(request, late, logins=LOGINS) == [STORED, BASE_DELETED]
    else:
        assert await home.take(request, logins=LOGINS) == [STORED]
        await home.restart()
        assert await home.take(late, logins=LOGINS) == [BASE_DELETED]
    anew = version(home, "anew", 15, None, h=h)
    after = version(home, "anew, and more", 10, anew, h=h)
    assert await home.take(anew, after, logins=LOGINS) == [STORED] * 2


async def test_a_deleted_version_is_none_that_the_relay_has_missed(home: Home) -> None:
    """It would have replaced the stored one, by its date."""
    ahead = version(home, "forget me", -60, None)
    assert await home.take(ahead, logins=LOGINS) == [STORED]
    assert await home.take(deletion(home, "id", ahead), logins=LOGINS) == [STORED]
    anew = version(home, "anew", 0, None)
    late = version(home, "forget me, and more", -90, ahead)
    assert await home.take(anew, late, logins=LOGINS) == [STORED, BASE_DELETED]
    assert await stored(home) == ["anew"]


@pytest.mark.parametrize("how", HOWS[:3])
async def test_of_a_version_that_was_never_here_nothing_is_known(home: Home, how: str) -> None:
    """Another relay has it. Its id was not named, and it is younger than what was deleted."""
    first, unknown = version(home, "one", 60, None), version(home, "elsewhere", 30, None)
    assert await home.take(first, deletion(home, how, first), logins=LOGINS) == [STORED] * 2
    late = version(home, "two", 20, unknown)
    assert await home.take(late, logins=LOGINS) == [STORED]


@pytest.mark.proves("N29-52")
@pytest.mark.parametrize("group", ["tea", "coffee"])
async def test_an_imported_9005_deletes_an_old_version_of_its_group(home: Home, group: str) -> None:
    """An admin deleted it elsewhere, before there was a newer one."""
    first = version(home, "one", 60, None, h="tea")
    await home.do(admin, 9007, h="coffee")
    assert await home.take(first, version(home, "two", 30, first, h="tea")) == [STORED] * 2
    assert await versions(home) == ["two", "one"]
    request = home.made(admin, 9005, ["e", first.id], h=group)
    assert await home.take(request, origin=Origin.TRUSTED_IMPORT) == [STORED]
    assert await versions(home) == (["two"] if group == "tea" else ["two", "one"])


async def versions(home: Home) -> list[str]:
    slot = Slot(alice.pubkey, 30023, "a")
    rows = await home.store.versions(slot, before=None, limit=9, now=home.now)
    return [row.event.content for row in rows]


async def test_what_retention_swept_may_be_written_again(home: Home) -> None:
    """Nobody asked to forget it."""
    home.state.enforce(policy_of("open", SWEPT))
    first = version(home, "one", 100_000, None)
    assert await home.take(first, logins=LOGINS) == [STORED]
    await home.sweep.once()
    assert await stored(home) == []
    late = version(home, "two", 20, first)
    assert await home.take(late, logins=LOGINS) == [STORED]


async def test_what_was_deleted_stays_so_when_a_later_version_is_swept(home: Home) -> None:
    """By another client, without `made-from`: the tombstones of both are by the address."""
    home.state.enforce(policy_of("open", SWEPT))
    first = alice.sign(30023, [["d", "a"]], "one", home.now - 100_000)
    request = home.made(alice, 5, ["a", f"30023:{alice.pubkey}:a"], at=home.now - 95_000)
    later = alice.sign(30023, [["d", "a"]], "new", home.now - 90_000)
    assert await home.take(first, request, later, logins=LOGINS) == [STORED] * 3
    await home.sweep.once()
    assert await stored(home) == []
    late = version(home, "one, and more", 20, first)
    assert await home.take(late, logins=LOGINS) == [BASE_DELETED]


@pytest.mark.proves("N86-23")
@pytest.mark.parametrize("restarts", [True, False])
async def test_what_an_owner_banned_does_not_come_back_in_a_version_made_from_it(
    home: Home, *, restarts: bool
) -> None:
    """Its author, who is not told of the ban, stored all of it again with the next edit."""
    first = version(home, "banned", 60, None)
    second = version(home, "banned, too", 50, first)
    assert await home.take(first, second, logins=LOGINS) == [STORED] * 2
    await home.call("banevent", second.id)
    if restarts:
        await home.restart()
    for base in (first, second):
        late = version(home, "banned, and more", 20, base)
        assert await home.take(late, logins=LOGINS) == [BASE_DELETED]
    anew = version(home, "more", 30, None)
    assert await home.take(anew, version(home, "most", 10, anew), logins=LOGINS) == [STORED] * 2
    assert await stored(home) == ["most"]


@pytest.mark.proves("N86-23")
async def test_of_a_banned_version_that_is_allowed_again_the_next_one_is_made(home: Home) -> None:
    first = version(home, "one", 60, None)
    assert await home.take(first, logins=LOGINS) == [STORED]
    await home.call("banevent", first.id)
    await home.call("allowevent", first.id)
    late = version(home, "two", 20, first)
    assert await home.take(late, first, late, logins=LOGINS) == [BASE_DELETED, STORED, STORED]
    assert await stored(home) == ["two"]


@pytest.mark.proves("N01-96")
async def test_what_others_deleted_is_told_to_nobody(home: Home) -> None:
    """The tag may name any id: of a message that an admin deleted, of somebody else's version."""
    await home.do(admin, 9007, ["private"], ["hidden"], h="den")
    said = await home.do(admin, 9, h="den")
    theirs = version(home, "one", 60, None, who=bob)
    never = version(home, "never sent", 60, None, who=bob)
    assert await home.take(theirs, logins=LOGINS) == [STORED]
    await home.do(admin, 9005, ["e", said.id], h="den")
    await home.do(bob, 5, ["e", theirs.id])
    await home.call("banevent", never.id)
    for ago, base in enumerate((said, theirs, never)):
        (answer,) = await home.take(
            alice.sign(30023, [["d", base.id], made_from(base)], "", home.now - ago),
            logins=[alice.pubkey],
        )
        assert answer == STORED


@pytest.mark.parametrize("origin", [Origin.IMPORT, Origin.WIRE])
async def test_what_others_bring_is_taken_whatever_it_was_made_from(
    home: Home, origin: Origin
) -> None:
    """Relays that exchange events agree."""
    first = version(home, "one", 60, None)
    late = version(home, "two", 20, first)
    assert await home.take(first, deletion(home, "id", first), logins=LOGINS) == [STORED] * 2
    assert await home.take(late, origin=origin, logins=[bob.pubkey]) == [STORED]


async def test_without_the_tag_a_deleted_record_is_written_anew(home: Home) -> None:
    first = version(home, "one", 60, None)
    plain = alice.sign(30023, [["d", "a"]], "two", home.now - 20)
    request = deletion(home, "id", first)
    assert await home.take(first, request, plain, logins=LOGINS) == [STORED] * 3

"""Events that are stored, withdrawn or deleted, sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.facts import Origin
from relay.lifecycle.rows import MAX_WITH_PREFIX
from tests.cast import admin, alice, bob, carol, owner, robot, stranger
from tests.contract.writing import unsigned, with_id, write
from tests.harness.reference_store import ReferenceStore
from tests.harness.relay_in_process import (
    DELETED,
    DUPLICATE,
    NOON,
    STORED,
    Home,
    policy_of,
    store_of,
)

if TYPE_CHECKING:
    from relay.nostr.keys import SecretKey

PENDING = (False, "restricted: pending review")


@pytest.mark.proves("N01-96")
async def test_an_invite_that_is_stored_or_withdrawn_is_answered_as_a_new_one() -> None:
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, h="cave")
        await home.do(admin, 9002, ["hidden"], h="cave")
        stored = await home.do(admin, 9009, ["code", "aaaaaaaa"], h="cave")
        withdrawn = await home.do(admin, 9009, ["code", "bbbbbbbb"], h="cave")
        await home.do(admin, 5, ["code", "bbbbbbbb"], h="cave")
        new = home.made(admin, 9009, ["code", "cccccccc"], h="cave")
        for keys in ((), (stranger.pubkey,)):
            answers = await home.take(stored, withdrawn, new, logins=keys)
            assert answers == [STORED] * 3
        assert await home.take(stored, new, logins=[admin.pubkey]) == [DUPLICATE] * 2
        again = home.made(admin, 9009, ["code", "aaaaaaaa"], ["x"], h="cave")
        taken = (False, "duplicate: code: already in use in this group")
        assert await home.take(again) == [STORED]
        assert await home.take(again, logins=[admin.pubkey]) == [taken]


@pytest.mark.proves("N29-25", "N01-96")
async def test_what_a_member_signed_tells_others_nothing_of_a_hidden_group() -> None:
    """The rules judge its author; their answers are for who may read the group."""
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, ["hidden"], h="cave")
        await home.do(admin, 9000, ["p", alice.pubkey], h="cave")
        gone = await home.do(alice, 9, h="cave")
        await home.do(admin, 9005, ["e", gone.id], h="cave")
        refused = [
            home.made(alice, 7, ["previous", gone.id[:8]], h="cave"),
            home.made(admin, 9010, ["e", gone.id], h="cave"),
            home.made(admin, 9005, ["e", gone.id], h="cave"),
            home.made(admin, 9001, ["p", stranger.pubkey], h="cave"),
            home.made(admin, 9002, ["hidden"], ["child", "elsewhere"], h="cave"),
            home.made(alice, 9000, ["p", stranger.pubkey], h="cave"),
        ]
        before = len(await home.log())
        for keys in ((), (stranger.pubkey,)):
            assert await home.take(*refused, logins=keys) == [STORED] * len(refused)
        assert len(await home.log()) == before
        for keys in ((alice.pubkey,), (admin.pubkey,)):
            answers = await home.take(*refused, logins=keys)
            assert not any(is_accepted for is_accepted, _ in answers)


@pytest.mark.proves("N01-96")
async def test_a_pending_request_is_answered_as_a_new_one() -> None:
    """Only its author and those who may review it learn whether it is stored or withdrawn."""
    policy = policy_of("open", '[groups]\njoins = "review"\n')
    async with Home(ReferenceStore(), policy) as home:
        await home.do(admin, 9007, h="tea")
        stored, deleted = home.made(alice, 9021, h="tea"), home.made(bob, 9021, h="tea")
        assert await home.take(stored, deleted) == [PENDING] * 2
        await home.do(bob, 5, ["e", deleted.id])
        unsent = home.made(carol, 9021, h="tea")
        for logins in ((), (stranger.pubkey,)):
            assert await home.take(stored, deleted, unsent, logins=logins) == [PENDING] * 3


@pytest.mark.proves("N29-35", "N29-43")
async def test_an_earlier_request_to_join_does_not_come_back() -> None:
    """Sent again, by anybody, it made a member of who had left."""
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        await home.do(admin, 9000, ["p", alice.pubkey], h="tea")
        await home.do(admin, 9001, ["p", alice.pubkey], h="tea")
        earlier, later = home.made(alice, 9021, h="tea"), home.made(alice, 9021, ["x"], h="tea")
        assert await home.take(earlier, later) == [PENDING] * 2
        assert await home.take(earlier) == [PENDING]
        assert home.groups.by_id["tea"].requests == {alice.pubkey: later.id}
        await home.do(admin, 9000, ["p", alice.pubkey], h="tea")
        leave = home.made(alice, 9022, h="tea")
        assert await home.take(leave, earlier, logins=[alice.pubkey]) == [STORED, DELETED]
        assert alice.pubkey not in home.groups.by_id["tea"].members


@pytest.mark.proves("N29-25", "N01-96")
async def test_previous_and_pins_find_only_what_the_author_may_read() -> None:
    """Eight digits of the id of a report were enough to learn that it is stored."""
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        message = await home.do(alice, 9, h="tea")
        report = await home.do(alice, 1984, ["p", stranger.pubkey], h="tea")
        invite = await home.do(admin, 9009, ["code", "aaaaaaaa"], h="tea")
        wrap = await home.do(alice, 1059, ["p", admin.pubkey], h="tea")
        withdrawn = await home.do(alice, 1984, ["p", stranger.pubkey], content="a", h="tea")
        why = "x" * 20_000  # of a long one it was not known what it deletes
        deletion = await home.do(alice, 5, ["e", withdrawn.id], content=why, h="tea")
        request = await home.do(alice, 9021, h="tea")

        async def answers(who: SecretKey) -> list[bool]:
            named = (message, report, invite, wrap, deletion, request)
            sent = [home.made(who, 7, ["previous", each.id[:8]], h="tea") for each in named]
            return [accepted for accepted, _ in await home.take(*sent)]

        assert await answers(stranger) == [True, False, False, False, False, False]
        assert await answers(alice) == [True, True, False, False, True, True]
        assert await answers(admin) == [True] * 6  # and the wrap is for the admin
        for each in (report, invite, wrap):
            pin = home.made(admin, 9010, ["e", each.id], h="tea")
            [(is_pinned, _)] = await home.take(pin, logins=[admin.pubkey])
            assert is_pinned is (each is not wrap)
        together = home.made(alice, 1984, ["p", stranger.pubkey], content="another", h="tea")
        after = home.made(stranger, 7, ["previous", together.id[:8]], h="tea")
        assert [accepted for accepted, _ in await home.take(together, after)] == [True, False]


async def test_who_makes_ids_that_begin_alike_has_no_honest_reference_refused() -> None:
    """They are made in seconds; of as many the store reads none."""
    store = ReferenceStore()
    async with Home(store, policy_of("open")) as home:
        await home.do(admin, 9007, h="tea")
        message = await home.do(alice, 9, h="tea")
        prefix = message.id[:8]
        others = [unsigned(stranger, content=str(place)) for place in range(MAX_WITH_PREFIX)]
        await write(store, *[with_id(each, prefix + each.id[8:]) for each in others])
        await home.do(alice, 9, ["previous", prefix], h="tea")
        [(is_accepted, _)] = await home.take(home.made(alice, 9, ["previous", "ffffffff"], h="tea"))
        assert not is_accepted


@pytest.mark.proves("N29-25")
async def test_previous_and_pins_find_what_a_rule_about_tags_hides_from_others_only() -> None:
    """A rule that names no kinds kept every message from being answered."""
    rule = '[[rule]]\nname = "drafts"\nmatch = { tags = { t = ["draft"] } }\nread = ["author"]\n'
    async with Home(ReferenceStore(), policy_of("open", rule)) as home:
        await home.do(admin, 9007, h="tea")
        message = await home.do(alice, 9, h="tea")
        draft = await home.do(alice, 9, ["t", "draft"], h="tea")
        article = await home.do(alice, 30023, ["d", "essay"], h="tea", content="x" * 20_000)
        soon = await home.do(alice, 9, ["expiration", str(home.now + 10)], h="tea")
        for who, reads in ((alice, True), (stranger, False)):
            for each, is_found in ((message, True), (draft, reads), (article, True), (soon, True)):
                answer = home.made(who, 7, ["previous", each.id[:8]], h="tea")
                assert [accepted for accepted, _ in await home.take(answer)] == [is_found]
        for named in (message, article):
            await home.do(admin, 9010, ["e", named.id], h="tea")
        home.now += 20
        answer = home.made(alice, 7, ["previous", soon.id[:8]], h="tea")
        assert [accepted for accepted, _ in await home.take(answer)] == [False]


@pytest.mark.proves("N29-16", "N01-96")
async def test_an_address_in_a_hidden_group_is_refused_outside_for_its_readers_alone() -> None:
    async with Home(ReferenceStore(), policy_of("open")) as home:
        await home.do(admin, 9007, ["hidden"], h="cave")
        await home.do(admin, 9007, h="square")
        await home.do(admin, 9000, ["p", alice.pubkey], h="cave")
        await home.do(alice, 30023, ["d", "essay"], h="cave")
        elsewhere = (False, "invalid: address belongs to another group")
        for tags in ((), (["h", "square"],)):
            for at in (home.now - 1, home.now + 1):
                version = home.made(alice, 30023, ["d", "essay"], *tags, at=at)
                for keys in ((), (stranger.pubkey,)):
                    assert await home.take(version, version, logins=keys) == [STORED] * 2
                assert await home.take(version, logins=[alice.pubkey]) == [elsewhere]
        assert len(await home.found(kinds=[30023])) == 1


@pytest.mark.proves("N01-96")
@pytest.mark.parametrize(("kind", "name"), [(30078, "nmem:pin:y"), (30095, "hk1:aa")])
async def test_who_has_left_a_hidden_group_is_told_what_is_not_stored_of_their_own(
    kind: int, name: str
) -> None:
    """A client takes OK true without a text for stored, and drops its own. Of a 30095 the first
    one stays."""
    async with Home(ReferenceStore(), policy_of("open", '[memory]\nschema = "off"\n')) as home:
        await home.do(admin, 9007, ["hidden"], h="cave")
        await home.do(admin, 9000, ["p", robot.pubkey], h="cave")
        tags = [["d", name], ["hk", "hk1"], ["ts", str(home.now)]]
        await home.do(robot, kind, *tags, h="cave")
        await home.do(admin, 9001, ["p", robot.pubkey], h="cave")
        other = home.made(robot, kind, *tags, at=home.now - 1, content="written offline")
        for keys in ((), (stranger.pubkey,)):
            assert await home.take(other, logins=keys) == [STORED]
        ((_, text),) = await home.take(other, logins=[robot.pubkey])
        assert text.startswith("duplicate: ")
        assert len(await home.found(kinds=[kind])) == 1


@pytest.mark.proves("N09-02", "N01-96")
async def test_a_deletion_sent_by_others_tells_nothing_of_what_a_former_member_wrote() -> None:
    """In this preset only who deletes something of their own may write without being known."""
    async with Home(ReferenceStore(), policy_of("group")) as home:
        await home.do(owner, 9007, ["hidden"], h="cave")
        await home.do(owner, 9000, ["p", alice.pubkey], h="cave")
        message = await home.do(alice, 9, h="cave")
        article = await home.do(alice, 30023, ["d", "essay"], h="cave")
        await home.do(owner, 9001, ["p", alice.pubkey], h="cave")
        deletions = [
            home.made(alice, 5, ["e", message.id]),
            home.made(alice, 5, ["a", f"30023:{alice.pubkey}:essay"]),
        ]
        nothing = home.made(alice, 5, ["e", "0" * 64])
        for keys in ((), (stranger.pubkey,)):
            (refused,) = await home.take(nothing, logins=keys)
            assert not refused[0]
            assert await home.take(*deletions, logins=keys) == [refused] * 2
        assert await home.take(*deletions, logins=[alice.pubkey]) == [STORED] * 2
        assert {event.id for event in await home.log()}.isdisjoint({message.id, article.id})


@pytest.mark.proves("N01-96")
async def test_a_rule_about_stored_events_is_not_passed_by_leaving_out_the_login() -> None:
    rule = "".join(
        f'[[rule]]\nname = "{name}"\nmatch = {{ kinds = [{kind}], replaces = true }}\n'
        'write = ["owner"]\nreject = "only owners"\n'
        for name, kind in (("once", 30023), ("kept", 5))
    )
    async with Home(ReferenceStore(), policy_of("open", rule)) as home:
        await home.do(owner, 9007, ["private"], h="den")
        await home.do(owner, 9000, ["p", alice.pubkey], h="den")
        article = await home.do(alice, 30023, ["d", "essay"], h="den")
        message = await home.do(alice, 9, h="den")
        refused = [
            home.made(alice, 30023, ["d", "essay"], h="den", at=home.now + 1),
            home.made(alice, 5, ["e", message.id]),
            home.made(alice, 5, ["a", f"30023:{alice.pubkey}:essay"]),
        ]
        assert await home.take(*refused) == [STORED] * 3  # untold
        answers = await home.take(*refused, logins=[alice.pubkey])
        assert answers == [(False, "restricted: only owners")] * 3
        stored = {event.id for event in await home.log()}
        assert {article.id, message.id} <= stored
        assert stored.isdisjoint([event.id for event in refused])


_BY_ADDRESS = [
    'rate = { per = "address", burst = 1, per_minute = 1 }',
    'rate = { per = "connection", burst = 1, per_minute = 1 }',
    'rate = { per = "relay", burst = 1, per_minute = 1 }',
    'quota = { per = "address", events = 1 }',
    'quota = { per = "relay", events = 1 }',
]
_BY_AUTHOR = [
    'rate = { per = "author", burst = 1, per_minute = 1 }',
    'rate = { per = "group", burst = 1, per_minute = 1 }',
]


@pytest.mark.proves("N01-96")
@pytest.mark.parametrize("kind", [30023, 5])
@pytest.mark.parametrize(
    ("which", "limit"),
    [
        *(("match", limit) for limit in (*_BY_ADDRESS, *_BY_AUTHOR)),
        *(("except", limit) for limit in _BY_ADDRESS),
    ],
)
async def test_a_limit_of_what_is_stored_tells_others_nothing_of_a_hidden_group(
    kind: int, which: str, limit: str
) -> None:
    """The sender fills his own bucket with some events, and asks it with the next."""
    match = f"match = {{ kinds = [{kind}], replaces = true }}"
    if which == "except":
        match = f"match = {{ kinds = [{kind}] }}\nexcept = {{ replaces = true }}"
    policy = policy_of("open", f'[[rule]]\nname = "paced"\n{match}\n{limit}\n')
    answers: dict[str, list[tuple[bool, str]]] = {}
    taken: dict[str, int] = {}
    for state in ("never", "stored", "deleted"):
        async with Home(ReferenceStore(), policy) as home:
            await home.do(owner, 9007, ["hidden"], h="den")
            await home.do(owner, 9000, ["p", alice.pubkey], h="den")
            article = ["d", "open"]
            public = [await home.do(alice, 30023, article), await home.do(alice, 1)]
            hidden = [home.made(alice, 30023, ["d", name], h="den") for name in "abc"]
            if state != "never":
                assert await home.take(*hidden, origin=Origin.IMPORT) == [STORED] * 3
            for event in hidden if state == "deleted" else ():
                home.now += 3600
                await home.take(home.made(owner, 9005, ["e", event.id], h="den"))
            home.now = NOON + 86_400
            if kind == 5:
                sent = [home.made(alice, 5, ["e", event.id], h="den") for event in hidden]
                sent += [home.made(alice, 5, ["e", event.id]) for event in public]
            else:
                sent = [home.made(alice, 30023, ["d", name], h="den") for name in "abc"]
                sent += [home.made(alice, 30023, article, at=home.now + n) for n in (1, 2)]
            letters = [home.post(event, connection=7) for event in sent]
            answers[state] = [await letter.answer for letter in letters]
            stored = {event.id for event in await home.log()}
            taken[state] = len(stored & {event.id for event in sent[:3]})
    assert answers["stored"] == answers["never"] == answers["deleted"]
    if which == "match":
        assert answers["never"][:3] == [STORED] * 3
        assert taken["stored"] <= 1 < taken["never"]  # it holds all the same


@pytest.mark.proves("N01-96")
@pytest.mark.parametrize("per", ["author", "relay"])
async def test_a_rate_of_an_author_or_the_relay_does_not_tell_others_what_is_stored(
    per: str,
) -> None:
    """What is answered as if it were stored took no token of it."""
    match = "match = { kinds = [9] }"
    rate = f'{match}\nrate = {{ per = "{per}", burst = 2, per_minute = 1 }}'
    answers: list[list[tuple[bool, str]]] = []
    for is_stored in (False, True):
        async with Home(
            ReferenceStore(), policy_of("open", f'[[rule]]\nname = "r"\n{rate}')
        ) as home:
            await home.do(owner, 9007, ["hidden"], h="den")
            await home.do(owner, 9000, ["p", alice.pubkey], h="den")
            said = [home.made(alice, 9, h="den") for _ in range(3)]
            if is_stored:
                assert await home.take(*said[:2], logins=[alice.pubkey]) == [STORED] * 2
            home.now += 120
            letters = [home.post(event, connection=7) for event in said]
            answers.append([await letter.answer for letter in letters])
    assert answers[0] == answers[1]
    assert [accepted for accepted, _ in answers[0]] == [True, True, False]


@pytest.mark.proves("N01-96")
async def test_a_rule_about_hidden_events_is_not_told_by_the_refusals_after_it() -> None:
    """The event would be refused anyway, by a group that anybody may read."""
    rule = (
        '[[rule]]\nname = "once"\nmatch = { kinds = [30023], replaces = true }\n'
        'write = ["owner"]\nreject = "only owners"\n'
    )
    async with Home(ReferenceStore(), policy_of("open", rule)) as home:
        for group, flag in (("den", "hidden"), ("club", "restricted")):
            await home.do(owner, 9007, [flag], h=group)
        await home.do(owner, 9000, ["p", alice.pubkey], h="den")
        await home.do(alice, 30023, ["d", "essay"], h="den")
        sent = [home.made(alice, 30023, ["d", name], h="club") for name in ("essay", "other")]
        there, never = await home.take(*sent)
        assert there == never
        assert not never[0]


@pytest.mark.proves("N09-11")
@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_a_deleted_address_refuses_older_versions_also_where_all_are_kept(kind: str) -> None:
    rule = '[[retention]]\nname = "all"\nmatch = { kinds = [30023, 10002] }\nkeep = "all"\n'
    async with store_of(kind) as store, Home(store, policy_of("open", rule)) as home:
        for kept, tags in ((30023, [["d", "essay"]]), (10002, [])):
            versions = [await home.do(alice, kept, *tags, at=home.now - n) for n in (3, 2)]
            address = f"{kept}:{alice.pubkey}:{'essay' if tags else ''}"
            ids = [["e", version.id] for version in versions]
            await home.do(alice, 5, ["a", address], *ids, at=home.now - 1)
            assert await home.found(kinds=[kept]) == []
            older = home.made(alice, kept, *tags, at=home.now - 2)
            assert await home.take(older) == [DELETED]
            await home.do(alice, kept, *tags)


@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_an_old_version_does_not_come_back_in_the_batch_that_deletes_it(kind: str) -> None:
    """The store finds the old versions after the batch is judged."""
    rule = '[[retention]]\nname = "history"\nmatch = { kinds = [30023] }\nhistory = { count = 3 }\n'
    async with store_of(kind) as store, Home(store, policy_of("open", rule)) as home:
        for kept, answer in ((30023, DELETED), (30024, STORED)):
            old, newest = [
                await home.do(alice, kept, ["d", "essay"], at=home.now - n) for n in (2, 1)
            ]
            deletion = home.made(alice, 5, ["e", newest.id])
            newer = home.made(alice, kept, ["d", "essay"])
            answers = await home.take(deletion, old, newer)
            assert answers == [STORED, answer, STORED]
            assert await home.found(kinds=[kept]) == [newer]


@pytest.mark.proves("N29-124", "N09-10")
@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_a_comment_of_a_group_that_has_ended_does_not_come_back_outside(kind: str) -> None:
    """It has no `h`, and what it names is gone."""
    async with store_of(kind) as store, Home(store, policy_of("open")) as home:
        await home.do(alice, 9007, ["private"], h="den")
        message = await home.do(alice, 9, h="den")
        comments = [await home.do(alice, 1111, ["e", message.id]) for _ in range(2)]
        comments.append(await home.do(alice, 7, ["e", comments[0].id]))
        await home.do(alice, 5, ["e", comments[1].id])
        (deletion,) = await home.found(kinds=[5])
        await home.do(alice, 9008, h="den")
        for keys in ((), (alice.pubkey,)):
            await home.take(*comments, deletion, logins=keys)
            assert await home.found(kinds=[5, 7, 9, 1111]) == []


@pytest.mark.proves("N29-124", "N09-10")
@pytest.mark.parametrize("kind", ["reference", "sqlite"])
async def test_a_comment_that_was_swept_with_its_group_s_messages_stays_away(kind: str) -> None:
    rule = '[[retention]]\nname = "old"\nmatch = { h = true, kinds = [9, 1111] }\ndays = 7\n'
    async with store_of(kind) as store, Home(store, policy_of("open", rule)) as home:
        await home.do(alice, 9007, ["private"], h="den")
        message = await home.do(alice, 9, h="den")
        comment = await home.do(alice, 1111, ["e", message.id])
        home.now += 8 * 86_400
        await home.sweep.once()
        assert await home.found(kinds=[9, 1111]) == []
        await home.take(comment)
        assert await home.found(kinds=[1111]) == []

"""What an answer tells beside events: of a hidden group, of an id, of a code that one may not know.

Each test says the same thing twice, of what is there and of what never was; the answers are equal,
frame by frame.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests import cast
from tests.leaks.people import ENDED, FLAGS, KEYS, NOWHERE
from tests.leaks.read_paths import text_of
from tests.leaks.relay import ALL_IDS, Asker, LeakRelay, leak_relay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from relay.nostr.event import Event
    from tests.harness.relay_program import Wire
    from tests.leaks.read_paths import Filters

pytestmark = pytest.mark.slow

UNKNOWN_ID = "a" * 64


def event_named(relay: LeakRelay, says: str) -> Event:
    return next(row.event for row in relay.table.rows if row.says == says)


ASKED: list[Filters] = [
    [{"#h": ["?"]}],
    [{"#h": ["?"], "limit": 0}],
    [{"#h": ["?"], "limit": 1}],
    [{"kinds": [9], "#h": ["?"]}],
    [{"kinds": [9], "#h": ["?"], "limit": 0}],
    [{"kinds": [30078], "#h": ["?"]}],
    [{"kinds": [30093], "#h": ["?"]}],
    [{"kinds": [1059], "#h": ["?"]}],
    [{"kinds": [39000], "#h": ["?"]}],
    [{"kinds": [9000, 9001], "#h": ["?"]}],
    [{"kinds": [9021], "#h": ["?"]}],
    [{"kinds": [9], "#h": ["square", "?"]}],
    [{"kinds": [9], "#h": ["tea", "?"]}],
    [{"kinds": [9], "#h": ["?"]}, {"kinds": [9], "#h": ["tea"]}],
    [{"kinds": [9], "#h": ["?"]}, {"kinds": [1]}],
    [{"authors": [KEYS["alice"].pubkey], "#h": ["?"]}],
    [{"#p": [KEYS["rita"].pubkey], "#h": ["?"]}],
    [{"since": 1, "until": 2**40, "#h": ["?"]}],
    [{"kinds": [39000], "#d": ["?"]}],
    [{"kinds": [39001, 39002, 39003, 39005], "#d": ["?"]}],
    [{"kinds": [39000, 39001, 39002, 39003], "#d": ["?"]}],
    [{"kinds": [39000, 39001], "#d": ["tea", "?"]}],
    [{"kinds": [39002], "#d": ["square", "?"]}],
    [{"kinds": [39002], "#d": ["?"]}, {"kinds": [39001], "#d": ["?"], "limit": 0}],
    [{"#d": ["?"]}],
    [{"#d": ["?"], "#h": ["?"]}],
    [{"kinds": [30078], "#d": ["snowclaw:memory:group:?"]}],
    [{"kinds": [30078], "#d": ["snowclaw:memory:group:?"], "#h": ["?"]}],
    [{"kinds": [30093], "#hk": ["?"]}],
    [{"#r": ["https://?.example"]}],
]
"""`?` is the id of a group."""
OUTSIDERS = ("nobody", "an outsider", "a recipient", "a member elsewhere", "a trusted address")


@pytest.mark.proves("N29-90", "N29-91", "N29-93", "N29-97", "N29-105", "N42-11", "N42-12", "N45-06")
async def test_a_hidden_group_is_asked_for_as_one_that_never_was(relay: LeakRelay) -> None:
    for viewer in (*OUTSIDERS, "a member of tea"):
        asker = Asker(await relay.enter(viewer))
        for hidden in ("cave", "attic"):
            for verb in ("REQ", "COUNT", "NEG-OPEN"):
                for filters in ASKED:
                    if verb == "NEG-OPEN" and len(filters) > 1:
                        continue
                    there, never = (
                        text_of(filters).replace("?", group) for group in (hidden, NOWHERE)
                    )
                    await asker.ask(verb, [there, never])
                    assert asker.answers[verb, there] == asker.answers[verb, never], (
                        viewer,
                        verb,
                        there,
                    )


def writes(known_id: str, bob: str) -> Iterator[tuple[int, list[list[str]]]]:
    """What somebody might say into a group to hear whether it is there."""
    p_self, p_alice = ["p", KEYS["stranger"].pubkey], ["p", KEYS["alice"].pubkey]
    known, unknown = ["e", known_id], ["e", UNKNOWN_ID]
    for kind in (0, 1, 9, 11, 1985, 5, 20001, 9002, 9008, 9003, 9022, 9099, 10002, 31234):
        yield kind, []
    for kind in (5, 7, 6, 16, 1111, 1984, 9005, 9010):
        yield kind, [known]
        yield kind, [unknown]
    for kind in (9, 9021, 9022, 9000):
        for prefix in (known_id[:8], known_id, "bbbbbbbb", "zz", ""):
            yield kind, [["previous", prefix], p_self]
    for kind in (9000, 9001):
        yield from ((kind, [who]) for who in (p_self, p_alice, ["p", bob], ["p", "x"]))
    yield from ((kind, [["d", "x"]]) for kind in (30023, 30078, 78, 1988, 1080))
    yield from (
        (9, [["-"]]),
        (1059, [p_alice]),
        (1984, [p_alice]),
        (9000, []),
        (9002, [["name", "mine"], ["public"]]),
        (9002, [["parent", "square"]]),
        (9009, [["code", "long enough"]]),
        (9009, [["code", "sesame-cave"]]),
        (9021, [["code", "wrong code"]]),
        (9022, [["code", "sesame-cave"]]),
        (5, [["a", f"30023:{KEYS['alice'].pubkey}:?-a"]]),
        (39000, [["d", "?"]]),
        (
            30093,
            [["d", "?:preference"], ["k", "aman_preference"], ["hk", "?"], ["v", "1"], ["ts", "1"]],
        ),
        (30078, [["d", "snowclaw:memory:group:?"]]),
        (9, [["expiration", "1"]]),
        (9, [["h", "square"]]),
    )


@pytest.mark.proves("N29-06", "N29-12", "N29-25", "N29-93", "N29-97")
@pytest.mark.parametrize("who", ["stranger", "carol", "tess"])
async def test_a_hidden_group_is_written_to_as_one_that_never_was(
    relay: LeakRelay, who: str
) -> None:
    for hidden in ("cave", "attic"):
        known = event_named(relay, f"a post, {hidden}")
        for logs_in in (False, True):
            wire = await relay.connect("nobody")
            if logs_in:
                await relay.log_in_as(wire, who)
            for kind, tags in writes(known.id, KEYS["bob"].pubkey):
                answers = []
                for group in (hidden, NOWHERE):
                    own = [[value.replace("?", group) for value in tag] for tag in tags]
                    event = relay.sign(who, kind, [["h", group], *own])
                    answers.append(await wire.publish(event))
                assert answers[0] == answers[1], (kind, tags)
                assert answers[0][0] is False, (kind, tags, "was taken")


@pytest.mark.proves("N29-93", "N29-97", "N77-08")
async def test_what_happens_in_a_hidden_group_is_not_felt_elsewhere(relay: LeakRelay) -> None:
    """An open set goes on as it was, whatever groups are made, filled and ended meanwhile."""
    wires = [await relay.enter(viewer) for viewer in ("an outsider", "a member of tea")]
    for wire in wires:
        await wire.send("NEG-OPEN", "n", {"kinds": [1, 9]}, ALL_IDS)
    said = [await wire.receive() for wire in wires]
    new = ["p", cast.person("new").pubkey]
    happenings: list[tuple[str, int, list[list[str]]]] = [
        ("admin", 9000, [["h", "cave"], new]),
        ("admin", 9001, [["h", "cave"], new]),
        ("admin", 9002, [["h", "cave"], ["hidden"], ["private"], ["closed"], ["name", "new"]]),
        ("admin", 9009, [["h", "attic"], ["code", "a new code"]]),
        ("admin", 9007, [["h", "loft"], ["hidden"]]),
        ("admin", 9008, [["h", "loft"]]),
        ("robot", 9022, [["h", "cave"]]),
        ("admin", 9008, [["h", "cave"]]),
        ("carol", 9007, [["h", "den"], ["private"], ["hidden"]]),
    ]
    for by, kind, tags in happenings:
        await relay.say(by, kind, *tags)
        for wire, before in zip(wires, said, strict=True):
            await wire.send("NEG-MSG", "n", ALL_IDS)
            assert await wire.receive() == before, (kind, tags)


@pytest.mark.proves("N50-09", "N29-90")
async def test_hidden_hits_move_nothing_in_a_search(relay: LeakRelay) -> None:
    """Neither the order nor the places, however many there are and however good."""
    asked = [
        text_of([{"search": text, **more}])
        for text in ("psst", "psst tea", '"psst tea"', "tea -psst", "cave", "psst -cave")
        for more in ({}, {"limit": 1}, {"limit": 3}, {"kinds": [9]})
    ]
    for number in range(9):
        await relay.say("carol", 1, content="tea " * number + f"psst tea {number}")
    before = Asker(await relay.enter("an outsider"))
    await before.ask("REQ", asked)
    await before.ask("COUNT", asked)
    assert len(before.answers["REQ", asked[0]]) > 9
    for number in range(60):
        text = "psst tea cave " * (number % 7 + 1)
        await relay.say("alice", 9, ["h", "cave"], content=f"{text} {number}")
    after = Asker(await relay.enter("an outsider"))
    await after.ask("REQ", asked)
    await after.ask("COUNT", asked)
    assert before.answers == after.answers


@pytest.mark.proves("N29-94", "N29-101", "N77-09")
async def test_an_open_set_ends_with_the_right_to_it(relay: LeakRelay) -> None:
    """For who is removed, and for everybody when a group turns private."""
    outsider, member = [await relay.enter(name) for name in ("an outsider", "a member of tea")]
    for wire in (outsider, member):
        await wire.send("NEG-OPEN", "n", {"kinds": [9]}, ALL_IDS)
        assert (await wire.receive())[0] == "NEG-MSG"
    await relay.say("admin", 9001, ["h", "tea"], ["p", KEYS["tess"].pubkey])
    assert await next_of(outsider) == "NEG-MSG"
    assert await next_of(member) == "NEG-ERR restricted"
    await relay.say("admin", 9002, ["h", "square"], ["private"], ["closed"])
    assert await next_of(outsider) == "NEG-ERR restricted"


async def next_of(wire: Wire) -> str:
    """What the next message of a set is answered: the verb, and the word of a refusal."""
    await wire.send("NEG-MSG", "n", ALL_IDS)
    verb, _, text = await wire.receive()
    return verb if verb == "NEG-MSG" else f"{verb} {text.partition(':')[0]}"


@pytest.mark.proves("N29-39", "N29-93")
async def test_a_code_is_no_oracle(relay: LeakRelay) -> None:
    """Wrong, of another group, used: one answer, also where no group is."""
    for tags in (["cave", "right and used"], ["tea", "of another group"]):
        await relay.say("admin", 9009, ["h", tags[0]], ["code", tags[1]])
    wire = await relay.enter("nobody")
    used = relay.sign("carol", 9021, [["h", "cave"], ["code", "right and used"]])
    assert await wire.publish(used) == (True, "")
    answers = set()
    for group in ("cave", NOWHERE, ENDED):
        for code in ("wrong altogether", "of another group", "right and used"):
            answers.add(
                await wire.publish(relay.sign("stranger", 9021, [["h", group], ["code", code]]))
            )
    assert len(answers) == 1, answers


def namings(
    value: str, address: str, code: str, group: str
) -> Iterator[tuple[int, list[list[str]]]]:
    """What an admin of another group, or nobody special, may say of an id, a code, a group."""
    h = ["h", "mine"]
    yield from ((kind, [h, ["e", value]]) for kind in (9005, 9010, 5, 7, 1984))
    yield from ((kind, [["e", value]]) for kind in (5, 7, 1984, 1985))
    yield from (
        (9, [h, ["previous", value[:8]]]),
        (9, [h, ["previous", value]]),
        (9, [h, ["q", value]]),
        (9010, [h, ["a", address]]),
        (5, [["a", address]]),
        (5, [["e", value], ["k", "9"]]),
        (9009, [h, ["code", code]]),
        (9021, [h, ["code", code]]),
        (9002, [h, ["parent", group]]),
        (9002, [h, ["child", group]]),
        (9002, [h, ["hidden"], ["parent", group]]),
        (78, [["d", "x"], ["e", value]]),
        (1985, [["L", "x"], ["l", group]]),
    )


@pytest.mark.proves("N29-25", "N29-50", "N29-135", "N29-171", "N09-03", "N01-96")
async def test_naming_what_one_may_not_know_of_is_answered_as_naming_nothing(
    relay: LeakRelay,
) -> None:
    """Ids, addresses, codes and groups: of a hidden group, of a wrap, of app data, of nothing."""
    await relay.say("stranger", 9007, ["h", "mine"])
    await relay.say("admin", 9009, ["h", "cave"], ["code", "code of the cave"])
    post, article = event_named(relay, "a post, cave"), event_named(relay, "an article, attic")
    wrap, own = event_named(relay, "a gift wrap"), event_named(relay, "own app data")
    note = event_named(relay, "an own app record")
    address = f"30023:{article.pubkey}:{article.d}"
    mine = f"30078:{own.pubkey}:{own.d}"
    known = [
        (post.id, address, "code of the cave", "cave"),
        (wrap.id, mine, "sesame-attic", "attic"),
        (note.id, address, "sesame-cave", "cave"),
        (own.id, mine, "sesame-tea", "attic"),
    ]
    unknown = (UNKNOWN_ID, f"30023:{article.pubkey}:never", "code of nobody", NOWHERE)
    wire = await relay.enter("an outsider")
    for number in range(len(list(namings(*unknown)))):
        kind, tags = list(namings(*unknown))[number]
        answers: set[tuple[bool, str]] = set()
        for names in (*known, unknown):
            kind, tags = list(namings(*names))[number]
            nonce = ["t", f"{len(answers)} {names[0][:4]}"]
            answers.add(await wire.publish(relay.sign("stranger", kind, [*tags, nonce])))
        assert len(answers) == 1, (kind, tags, answers)


@pytest.mark.proves("N01-96")
async def test_a_removed_member_cannot_ask_by_sending_again(relay: LeakRelay) -> None:
    """Own posts, stored or never sent: not a member says both; what others wrote is not shown."""
    wire = await relay.enter("a removed member")
    for group in FLAGS:
        if "restricted" not in FLAGS[group] and "hidden" not in FLAGS[group]:
            continue
        stored = event_named(relay, f"bob's own post, {group}")
        fresh = relay.sign("bob", 9, [["h", group]], "never sent")
        answers = [await wire.publish(event) for event in (stored, fresh)]
        assert answers == [(False, "restricted: not a member")] * 2


@pytest.mark.proves("N11-24", "N29-90")
async def test_what_everybody_may_get_over_http_names_nobody(tmp_path: Path) -> None:
    """N11-24: before and after all was said, the same."""
    async with leak_relay(tmp_path / "data") as relay:
        before = await _pages(relay)
        await relay.publish(relay.write())
        after = await _pages(relay)
        # The page lists groups that everybody may see: tests/leaks/test_console.py.
        assert before | {"page": ""} == after | {"page": ""}
        secrets = {*FLAGS, ENDED, *(row.word for row in relay.table.rows if row.word)} | {
            key.pubkey for name, key in KEYS.items() if name != "owner"
        }
        for text in after.values():
            assert not [secret for secret in secrets if f'"{secret}"' in text]
        assert stat.S_IMODE((relay.rookery.folder / "control.sock").stat().st_mode) == 0o600
        rooms = {
            await _get(relay, f"/.well-known/nip29/livekit/{group}", {})
            for group in ("tea", "cave", NOWHERE)
        }
        assert len(rooms) == 1
        numbers = await _get(relay, "/metrics", {})
        assert not [secret for secret in secrets if secret in numbers]


async def _pages(relay: LeakRelay) -> dict[str, str]:
    return {
        "NIP-11": await _get(relay, "/", {"Accept": "application/nostr+json"}),
        "page": await _get(relay, "/", {"Accept": "text/html"}),
        "healthz": await _get(relay, "/healthz", {}),
        "readyz": await _get(relay, "/readyz", {}),
        "metrics": await _get(relay, "/metrics", {"X-Forwarded-For": "203.0.113.1"}),
    }


async def _get(relay: LeakRelay, path: str, headers: dict[str, str]) -> str:
    url = relay.rookery.url.replace("ws", "http", 1) + path
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return await response.text()

"""The runner of the conversations: what it reads, what it lets pass, what it says of the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.conversations.fake import FakeRelay, fake_relay
from tests.conversations.runner import Failed, Manner, play
from tests.conversations.script import (
    BadScript,
    Either,
    Having,
    JsonText,
    Key,
    Name,
    Rest,
    Times,
    all_paths,
    name_of,
    read_value,
    script_file,
)
from tests.conversations.script import script_from as read
from tests.conversations.values import Names, Unknown, alike, made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEAD = "# A title.\npeople alice bob\nnames tea\n"


@pytest.fixture
async def fake() -> AsyncIterator[FakeRelay]:
    async with fake_relay() as relay:
        yield relay


async def played(fake: FakeRelay, text: str, **manner: Any) -> None:
    await play(read(HEAD + text, "a-script"), fake, Manner(**manner))


async def failure(fake: FakeRelay, text: str, **manner: Any) -> str:
    with pytest.raises(Failed) as failed:
        await played(fake, text, **manner)
    return str(failed.value)


# Reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["EVENT", {"kind": 1, "tags": []}]', ["EVENT", {"kind": 1, "tags": []}]),
        ("[1, -2, 1.5, 1e3, true, null]", [1, -2, 1.5, 1000.0, True, None]),
        ('"a # no comment" # a comment', "a # no comment"),
        (
            "[@alice, $tea, $now-60, $now+5]",
            [Key("alice"), Name("tea"), Name("now", -60), Name("now", 5)],
        ),
        ('["EVENT", "s", …]', ["EVENT", "s", Rest()]),
        ('{"tags": ⊇ [["private"]]}', {"tags": Having([["private"]], [])}),
        ('⊇ ["a"] ∌ ["b"]', Having(["a"], ["b"])),
        ('∌ ["b"]', Having([], ["b"])),
        ('["EOSE" | "CLOSED" | 1, "s"]', [Either(["EOSE", "CLOSED", 1]), "s"]),
        ('{"content": json {"a": $tea}}', {"content": JsonText({"a": Name("tea")})}),
        ('"x" × 300', Times("x", 300)),
        ("[1,\n  # in between\n  2]", [1, 2]),
    ],
)
def test_values_are_json_and_a_little_more(text: str, value: object) -> None:
    assert read_value(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line must be the title"),
        ("people alice", "first line must be the title"),
        ("# T\ncarol → AUTH", "carol is not among the people"),
        (HEAD + "alice → [1", "something is missing"),
        (HEAD + "alice → [1] [2]", "more than one value"),
        (HEAD + "alice → {}", "must be a list"),
        (HEAD + "alice ← …", "begins with its verb"),
        (HEAD + "alice ← [1]", "begins with its verb"),
        (HEAD + "alice says hello", "cannot read"),
        (HEAD + "preset closed", "cannot read"),
        (HEAD + "alice signs {}", "needs a name"),
        (HEAD + 'alice → ["EVENT" {}]', "',' expected"),
    ],
)
def test_a_script_that_cannot_be_read_says_where_and_why(text: str, why: str) -> None:
    with pytest.raises(BadScript, match=why):
        read(text, "a-script")


def test_each_script_can_be_read_and_says_what_it_holds_the_relay_to() -> None:
    ours = re.compile(r"\b([A-Z]-\d|docs/|policies/|memory §|R[CGPE0]\b)")
    scripts = {name_of(path): script_file(path) for path in all_paths()}
    assert len(scripts) > 200
    assert [
        name
        for name, script in scripts.items()
        if not script.proves and not ours.search(script.title)
    ] == []


def test_a_script_tells_what_relay_it_wants() -> None:
    script = read(
        "# T.  N01-01\n# N09-02, 04\npreset open  # for all\nlimit max_filters 50\n"
        "policy\n    [groups]\n\n    joins = 'review'\npeople alice\nrestart\n",
        "x",
    )
    assert (script.title, script.preset) == ("T. N01-01", "open")
    assert script.proves == ("N01-01", "N09-02", "N09-04")
    assert script.limits == {"max_filters": 50}
    assert script.policy == "[groups]\njoins = 'review'\n"
    assert script.restarts
    assert read(HEAD, "x").preset == "group"


def test_an_indented_line_belongs_to_the_one_before() -> None:
    script = read(HEAD + 'alice → ["REQ", "s",  # one\n   {"kinds": [1]}]\nalice → AUTH', "x")
    assert [step.line for step in script.steps] == [4, 6]


# Values

NAMES = {"tea": "tea-1", "now": 100}
KEYS = {"alice": "aa"}


def compared(pattern: str, value: object) -> bool:
    return alike(read_value(pattern), value, Names(dict(NAMES), {"id": "last"}, KEYS))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('["h", $tea, $id, @alice]', ["h", "tea-1", "last", "aa"]),
        ('"30078:@alice:$tea:x"', "30078:aa:tea-1:x"),
        ('"$now-1 $now+20"', "99 120"),
        ('"costs $$5, mail@@tea"', "costs $5, mail@tea"),
        ('{"since": $now-60}', {"since": 40}),
        ('"ab" × 3', "ababab"),
        ('[["t"]] × 2', [["t"], ["t"]]),
        ('"…"', "…"),
        ('json {"a": $tea, "é": [1, "@alice"]}', '{"a":"tea-1","é":[1,"aa"]}'),
    ],
)
def test_names_get_their_values_in_what_is_said(text: str, value: object) -> None:
    assert made(read_value(text), Names(dict(NAMES), {"id": "last"}, KEYS)) == value


@pytest.mark.parametrize("text", ["$nobody", '"$nobody"', "@bob", '"@bob"', "…", "⊇ []", "1 | 2"])
def test_what_has_no_value_cannot_be_said(text: str) -> None:
    with pytest.raises(Unknown):
        made(read_value(text), Names(dict(NAMES), {}, KEYS))


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ('["OK", $id, true, ""]', ["OK", "last", True, ""]),
        ('["EVENT", "s", …]', ["EVENT", "s", {"kind": 1}]),
        ('["EVENT", …]', ["EVENT"]),
        (
            '["EVENT", "s", {"kind": 1, "tags": [["h", $tea], …]}]',
            ["EVENT", "s", {"kind": 1, "tags": [["h", "tea-1"], ["p"]], "more": 1}],
        ),
        ('"invalid: …expired…"', "invalid: event expired"),
        ('"a.c…"', "a.cdc\nd"),
        ('⊇ [["b"], ["a", …]]', [["a", "1"], ["c"], ["b"]]),
        ('∌ [["b", …]]', [["a", "1"], ["c"]]),
        ('["OK", $id, false, "blocked: …" | "restricted: …"]', ["OK", "last", False, "blocked: x"]),
        ("$now+1", 101),
    ],
)
def test_what_is_heard_is_alike(pattern: str, value: object) -> None:
    assert compared(pattern, value)


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ('["OK", $id, true, ""]', ["OK", "other", True, ""]),
        ('["OK", $id, true, ""]', ["OK", "last", True, "", 1]),
        ('["OK", $id, true, …]', ["OK", "last"]),
        ("true", 1),
        ("1", 1.0),
        ("1", True),
        ('"a.c"', "abc"),
        ('"$tea"', "tea-12"),
        ('{"kind": 1}', {"kind": 2}),
        ('{"kind": 1}', {}),
        ("[]", [1]),
        ('⊇ [["a"]]', [["b"]]),
        ('⊇ [["a"]]', "a"),
        ('⊇ [["a"]] ∌ [["b"]]', [["b"], ["a"]]),
        ("1 | 2", 3),
        ('"…"', 7),
    ],
)
def test_what_is_heard_is_not_alike(pattern: str, value: object) -> None:
    assert not compared(pattern, value)


# Playing


async def test_an_event_must_get_ok_true(fake: FakeRelay) -> None:
    await played(fake, 'alice → ["EVENT", {"kind": 1}]')
    said = await failure(fake, 'alice → ["EVENT", {"kind": 1, "sig": "0" × 128}]')
    assert 'a-script.nostr:4: alice → ["EVENT"' in said
    assert "came instead:" in said
    assert "sig: is not this author's" in said


async def test_the_next_line_may_say_otherwise(fake: FakeRelay) -> None:
    bad = 'alice → ["EVENT", {"kind": 1, "sig": "0" × 128}]\n'
    await played(fake, bad + 'alice ← ["OK", $id, false, "invalid: …"]')
    await failure(fake, bad + 'alice ← ["OK", $id, true, ""]')
    await failure(fake, bad + 'bob → ["CLOSE", "s"]')


async def test_events_are_told_apart_by_subscription_and_come_in_order(fake: FakeRelay) -> None:
    await played(
        fake,
        """
alice → ["EVENT", {"content": "first", "tags": [["t", $tea]]}]
alice ← ["OK", $first, true, ""]
alice → ["EVENT", {"content": "second", "tags": [["t", $tea]]}]
bob → ["REQ", "a", {"#t": [$tea]}]
bob → ["REQ", "b", {"ids": [$first]}]
bob ← ["EVENT", "b", {"id": $first, "content": "first", "pubkey": @alice}]
bob ← ["EOSE", "b"]
bob ← ["EVENT", "a", {"content": "second"}]
bob ← ["EVENT", "a", {"id": $first}]
bob ← ["EOSE", "a"]
bob → ["COUNT", "c", {"#t": [$tea]}]
bob ← ["COUNT", "c", {"count": 2}]
""",
    )


async def test_another_answer_of_the_subscription_fails_at_once(fake: FakeRelay) -> None:
    said = await failure(fake, 'bob → ["REQ", "a", {"ids": []}]\nbob ← ["EVENT", "a", …]')
    assert 'a-script.nostr:5: bob ← ["EVENT", "a", …]' in said
    assert 'came instead: ["EOSE", "a"]' in said


async def test_a_notice_in_place_of_an_answer_fails_at_once(fake: FakeRelay) -> None:
    said = await failure(fake, 'bob → ["EVENT", "x"]')
    assert 'came instead: ["NOTICE", "invalid: event: must be a JSON object"]' in said


async def test_a_notice_that_nobody_read_fails_at_the_end(fake: FakeRelay) -> None:
    ask = '\nbob → ["REQ", "a", {"ids": []}]\nbob ← ["EOSE", "a"]'
    said = await failure(fake, ask + '\nbob → text hello\nbob ← no ["EOSE", "a"]')
    assert "NOTICE" in said
    await played(fake, 'bob → text hello\nbob ← ["NOTICE", "invalid: …"]' + ask)


async def test_no_is_proved_by_the_answer_to_another_question(fake: FakeRelay) -> None:
    live = 'bob → ["REQ", "a", {"#t": [$tea]}]\nbob ← ["EOSE", "a"]\n'
    event = 'alice → ["EVENT", {"kind": 20001, "tags": [["t", %s]]}]\n'
    await played(fake, live + event % '"else"' + 'bob ← no ["EVENT", "a", …]')
    said = await failure(fake, live + event % "$tea" + 'bob ← no ["EVENT", "a", …]')
    assert 'came: ["EVENT", "a", {' in said
    await played(fake, live + event % "$tea" + 'bob ← no ["EVENT", "b", …]')


async def test_a_name_keeps_what_it_first_stood_for(fake: FakeRelay) -> None:
    two = 'alice → ["EVENT", {}]\nalice ← ["OK", $one, true, ""]\nalice → ["EVENT", {}]\n'
    said = await failure(fake, two + 'alice ← ["OK", $one, true, ""]')
    assert "$one = " in said
    await played(fake, two + 'alice ← ["OK", $two, true, ""]')


async def test_an_event_can_be_sent_again_and_by_others(fake: FakeRelay) -> None:
    await played(
        fake,
        """
alice signs $note {"content": "hello"}
bob → ["EVENT", $note]
alice → ["EVENT", $note]
alice ← ["OK", $note, true, "duplicate: …"]
""",
    )


async def test_the_lower_of_two_ids_comes_first(fake: FakeRelay) -> None:
    await played(
        fake,
        """
alice signs $low < $high {"kind": 0, "created_at": $now-30}
alice → ["EVENT", $high]
alice → ["EVENT", $low]
alice → ["EVENT", $high]
alice ← ["OK", $high, false, "duplicate: a newer version is stored"]
""",
    )


async def test_auth_answers_the_challenge(fake: FakeRelay) -> None:
    event = '["AUTH", {"kind": 22242, "tags": [["relay", "%s"], ["challenge", $challenge]], %s}]'
    right = event % ("$relay", '"created_at": $now')
    wrong = event % ("wss://elsewhere", '"created_at": $now')
    await played(fake, f"alice → AUTH\nalice → AUTH bob\nbob → {right}\nalice/phone → AUTH")
    await played(fake, f'alice → {wrong}\nalice ← ["OK", $id, false, "invalid: relay: …"]')
    await played(fake, 'alice ← ["AUTH", $given]\nbob ← ["AUTH", $given]')


async def test_the_end_of_a_connection_has_its_code(fake: FakeRelay) -> None:
    bye = 'alice → ["REQ", "a", {}]\nalice ← ["EOSE", "a"]\nalice → text ["goodbye"]\n'
    heard = 'alice ← ["NOTICE", …]\n'
    await played(fake, bye + heard + 'alice ← closed 1008\nalice → ["CLOSE", "a"]')
    assert "with 1008" in await failure(fake, bye + heard + "alice ← closed 1009")
    assert "ended the connection (1008)" in await failure(
        fake, bye + heard + 'alice ← ["EOSE", "a"]'
    )


async def test_leaving_ends_what_one_had(fake: FakeRelay) -> None:
    await played(
        fake,
        """
bob → ["REQ", "a", {"#t": [$tea]}]
bob ← ["EOSE", "a"]
bob leaves
alice → ["EVENT", {"tags": [["t", $tea]]}]
bob ← no ["EVENT", …]
restart
""",
    )
    assert fake.restarts == 1


async def test_only_the_word_of_a_refusal_counts_with_prefix(fake: FakeRelay) -> None:
    refused = 'alice → ["EVENT", {"sig": "0" × 128}]\nalice ← ["OK", $id, false, "%s"]'
    await failure(fake, refused % "invalid: other words")
    await played(fake, refused % "invalid: other words", texts="prefix")
    await failure(fake, refused % "blocked: other words", texts="prefix")
    await played(fake, 'bob → ["REQ", "a", 7]\nbob ← ["CLOSED", "a", "invalid: x"]', texts="prefix")
    twice = 'alice → ["EVENT", {}]\nalice → ["EVENT", $id]\nalice ← ["OK", $id, true, "had it"]'
    await played(fake, twice, texts="prefix")


async def test_names_and_people_are_new_in_each_script_and_visit(fake: FakeRelay) -> None:
    profile = 'alice → ["EVENT", {"kind": 0, "created_at": $now-1, "tags": [["t", $tea]]}]'
    again = 'alice → ["EVENT", {"kind": 0, "created_at": $now-2}]'
    await played(fake, profile)
    assert "newer version" in await failure(fake, again)
    await played(fake, again, salt="another visit")
    await play(read(HEAD + again, "another-script"), fake, Manner())


async def test_a_relay_that_is_silent_fails_in_time(fake: FakeRelay) -> None:
    with pytest.raises(Failed, match="nothing came in"):
        await play(read(HEAD + 'alice ← ["COUNT", "x", …]', "x"), fake, Manner(patience_s=0.05))


async def test_several_frames_alike_are_heard_in_one_line(fake: FakeRelay) -> None:
    await played(fake, "3 × text x".join(["alice → ", '\nalice ← 3 × ["NOTICE", …]']))
    said = await failure(fake, 'alice → 3 × text x\nalice ← 2 × ["NOTICE", …]\nalice ← no ["OK"]')
    assert "NOTICE" in said

"""relay/memory/snowclaw: user and group records, encryption, annotations."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.check_options import CheckOptions
from relay.memory.draft import Draft
from relay.memory.snowclaw.checks import check
from relay.memory.snowclaw.contents import KNOWN
from relay.memory.snowclaw.encryption import OwnKey, encrypted
from relay.memory.snowclaw.groups import GroupMemory
from relay.memory.snowclaw.keys import group_d, user_d
from relay.memory.snowclaw.records import (
    GroupRecord,
    UserRecord,
    annotated_group,
    annotated_user,
    newest,
    record_draft,
    record_in,
)
from relay.memory.snowclaw.users import MAX_NAMES, UserMemory
from relay.memory.unreadable import UnreadableRecord
from tests.cast import alice, robot, rover
from tests.unit.memory.snowclaw.making import AT, record, signed, text_record

USER, GROUP = user_d(alice.pubkey), group_d("tea")
SELF = OwnKey.of(robot)
NONCE = bytes(range(32))
OWN = {name for name, _, _ in KNOWN} | {"display_name", "first_seen_group"}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEXTS = st.lists(TEXT, max_size=4).map(tuple)
TIME = st.integers(-(2**62), 2**62)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
EXTRA = st.dictionaries(TEXT.filter(lambda name: name not in OWN), JSON, max_size=4)
USERS = st.builds(
    UserMemory,
    display_names=st.lists(st.tuples(TEXT, TIME), max_size=3).map(tuple),
    first_seen=st.none() | TIME,
    notes=TEXTS,
    owner_notes=TEXTS,
    preferences=st.dictionaries(TEXT, TEXT, max_size=3),
    is_owner=st.booleans(),
    last_interaction=st.none() | TIME,
    first_seen_group=st.none() | TEXT,
    extra=EXTRA,
)
GROUPS = st.builds(
    GroupMemory,
    purpose=st.none() | TEXT,
    members=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    themes=TEXTS,
    decisions=st.lists(st.tuples(TEXT, TIME), max_size=3).map(tuple),
    notes=TEXTS,
    owner_notes=TEXTS,
    last_activity=st.none() | TIME,
    extra=EXTRA,
)


def user_in(fields: object, at: int = AT) -> UserMemory:
    found = record_in(record(USER, fields, at=at))
    assert isinstance(found, UserRecord), found
    return found.memory


def group_in(fields: object) -> GroupMemory:
    found = record_in(record(GROUP, fields))
    assert isinstance(found, GroupRecord), found
    return found.memory


@pytest.mark.slow
@pytest.mark.proves("S-10")
@given(memory=USERS | GROUPS)
def test_what_is_written_is_read_again_with_every_unknown_field(
    memory: UserMemory | GroupMemory,
) -> None:
    d = USER if isinstance(memory, UserMemory) else GROUP
    event = signed(record_draft(memory, d, AT))
    assert check(event, CheckOptions()) is None
    found = record_in(event)
    assert not isinstance(found, UnreadableRecord)
    assert found.memory == memory
    # The first version may be of anybody; from then on the bytes stay as they are.
    assert record_draft(found.memory, d, AT).content == event.content


@pytest.mark.proves("S-07", "S-10")
def test_the_code_s_shape_is_written_as_the_document_s_and_loses_nothing() -> None:
    memory = user_in(
        {
            "hex_pubkey": alice.pubkey,
            "display_name": "Al",
            "first_seen": 5,
            "first_seen_group": None,
            "last_interaction": 9,
            "profile_json": '{"name":"al"}',
            "name_history_json": None,
            "notes_json": '["a"]',
            "owner_notes_json": None,
            "preferences_json": None,
            "is_owner": False,
            "mood": {"today": [1, None]},
        }
    )
    draft = record_draft(memory, USER, AT, "tea")
    assert draft.tags == [["d", USER], ["h", "tea"]]
    assert draft.content == (
        '{"display_names":[["Al",5]],"first_seen":5,"notes":["a"],"preferences":{},'
        '"is_owner":false,"owner_notes":[],"last_interaction":9,'
        f'"hex_pubkey":"{alice.pubkey}","profile_json":"{{\\"name\\":\\"al\\"}}",'
        '"mood":{"today":[1,null]}}'
    )


@pytest.mark.proves("S-10")
def test_a_group_is_written_in_the_document_s_shape() -> None:
    memory = group_in({"group_id": "tea", "purpose": None, "members_json": '["aa"]', "x": 1})
    memory = memory.with_theme("green").with_decision("no sugar", 7).seen(9)
    assert record_draft(memory, GROUP, AT).content == (
        '{"members":[["aa",""]],"themes":["green"],"decisions":[["no sugar",7]],"notes":[],'
        '"last_activity":9,"group_id":"tea","x":1}'
    )


@pytest.mark.parametrize("text", ["", "no json", '{"a":1}', "[1]", '["a",null]'])
def test_a_json_text_that_cannot_be_read_is_carried_over(text: str) -> None:
    memory = user_in({"notes_json": text}).noted("new")
    assert memory.notes == ("new",)
    assert orjson.loads(record_draft(memory, USER, AT).content)["notes_json"] == text


def test_the_document_s_field_goes_before_the_code_s() -> None:
    memory = user_in({"notes": ["new"], "notes_json": '["old"]'})
    assert memory.notes == ("new",)
    assert memory.extra == {"notes_json": '["old"]'}


@pytest.mark.proves("S-08")
def test_a_name_begins_where_the_one_before_ended() -> None:
    history = '[[20,"a"],[30,"b"]]'
    fields = {"display_name": "c", "first_seen": 10, "name_history_json": history}
    assert user_in(fields).display_names == (("a", 10), ("b", 20), ("c", 30))
    assert user_in({"display_name": "c"}, at=50).display_names == (("c", 50),)
    assert user_in({"name_history_json": history, "first_seen": 1}).name == "b"
    for odd in ('[["a",20]]', "[[20,20]]", '[["a","b"]]', "[20]", '[[20,"a",1]]'):
        memory = user_in({"name_history_json": odd, "display_name": "c"})
        assert (memory.name, memory.extra) == ("c", {"name_history_json": odd})


@pytest.mark.parametrize("odd", [[["a", "b"]], [[1, 2]], [["a", 1.5]], [["a", True]]])
def test_pairs_of_other_things_are_reported(odd: object) -> None:
    for d, field in ((USER, "display_names"), (GROUP, "decisions")):
        unread = record_in(record(d, {field: odd}))
        assert isinstance(unread, UnreadableRecord)
        assert unread.why == f"content.{field} must have pairs of a text and unix seconds"
    unread = record_in(record(GROUP, {"members": [["a", 1]]}))
    assert isinstance(unread, UnreadableRecord)
    assert unread.why == "content.members must have pairs of texts"


@pytest.mark.parametrize(
    ("d", "content", "why"),
    [
        (USER, "x", "content is not a JSON object"),
        (USER, '{"notes": "x"}', "content.notes must be an array of strings"),
        (GROUP, '{"purpose": 1}', "content.purpose must be a string"),
        (
            "snowclaw:memory:npub:x",
            "{}",
            "d must end with an npub or 16, 32 or 64 lowercase hex characters",
        ),
        (
            "snowclaw:core:x",
            "{}",
            "d must be snowclaw:memory:npub:<key> or snowclaw:memory:group:<id>",
        ),
    ],
)
def test_what_another_relay_let_in_is_reported(d: str, content: str, why: str) -> None:
    event = text_record(d, content)
    assert record_in(event) == UnreadableRecord(event, why)


def test_an_unchecked_field_of_another_type_is_carried_over() -> None:
    memory = user_in({"first_seen_group": 5, "display_name": ["x"]})
    assert memory == UserMemory(extra={"first_seen_group": 5, "display_name": ["x"]})
    known = memory.seen(1, "tea")
    written = orjson.loads(record_draft(known, USER, AT).content)
    assert (written["first_seen_group"], written["display_name"]) == ("tea", ["x"])


@pytest.mark.parametrize(("h", "told"), [(None, "den"), ("den", "den"), ("tea", None)])
def test_a_group_is_not_told_in_which_other_one_a_user_was_first_seen(
    h: str | None, told: str | None
) -> None:
    """The other one may be hidden."""
    memory = UserMemory().seen(AT, "den")
    written = orjson.loads(record_draft(memory, USER, AT, h).content)
    assert (written["first_seen"], written.get("first_seen_group")) == (AT, told)


def test_a_null_is_read_as_absent() -> None:
    assert user_in({"notes": None, "first_seen": None, "is_owner": None}) == UserMemory()


@pytest.mark.proves("S-12", "S-13")
def test_encrypted_memory_is_read_by_its_agent_alone() -> None:
    memory = UserMemory(notes=("secret",))
    draft = encrypted(record_draft(memory, USER, AT, "tea"), SELF, NONCE)
    assert draft.tags == [["d", USER], ["h", "tea"], ["encrypted", "nip44"]]
    assert "secret" not in draft.content
    event = signed(draft)
    assert check(event, CheckOptions()) is None
    found = record_in(event, SELF)
    assert isinstance(found, UserRecord)
    assert found.memory == memory
    for key, why in (
        (None, "encrypted, and no key is at hand"),
        (OwnKey.of(rover), "encrypted, and not with the key at hand"),
    ):
        assert record_in(event, key) == UnreadableRecord(event, why, is_locked=True)


@pytest.mark.proves("S-13")
def test_an_agents_ciphertext_in_a_record_of_somebody_else_stays_locked() -> None:
    draft = encrypted(Draft(30078, [["d", USER]], '{"notes":["secret"]}', AT), SELF, NONCE)
    assert isinstance(record_in(signed(draft), SELF), UserRecord)
    unread = record_in(rover.sign(*draft), SELF)
    assert isinstance(unread, UnreadableRecord)
    assert unread.is_locked


@pytest.mark.proves("S-13")
def test_ciphertext_is_locked_also_without_its_tag_or_under_another() -> None:
    sealed = encrypted(Draft(30078, [["d", USER]], "{}", AT), SELF, NONCE).content
    for event in (text_record(USER, sealed), text_record(USER, "x", ["enc", "secretbox-v1"])):
        unread = record_in(event)
        assert isinstance(unread, UnreadableRecord)
        assert unread.is_locked


@pytest.mark.proves("S-02")
def test_of_all_versions_the_newest_counts_and_of_one_second_the_lowest_id() -> None:
    versions = [record(USER, {"notes": [str(n)]}, at=AT + n // 2) for n in range(4)]
    last = min(versions[2:], key=lambda event: event.id)
    assert newest(versions) == newest(versions[::-1]) == last
    assert newest([]) is None


@pytest.mark.proves("S-22")
def test_notes_of_the_owner_are_merged_once() -> None:
    mine = UserMemory(notes=("a",), owner_notes=("b",))
    theirs = [UserMemory(notes=("b", "c")), UserMemory(notes=("c", "d"), owner_notes=("e",))]
    assert annotated_user(mine, theirs).owner_notes == ("b", "c", "d")
    assert annotated_user(mine, theirs).notes == ("a",)
    assert annotated_group(GroupMemory(), [GroupMemory(notes=("x",))]).owner_notes == ("x",)


@pytest.mark.proves("S-30")
def test_a_user_is_known_from_the_first_message() -> None:
    memory = UserMemory().seen(100, "tea").seen(90, "den").seen(200, "den")
    assert (memory.first_seen, memory.last_interaction) == (90, 200)
    assert memory.first_seen_group == "tea"
    assert UserMemory().seen(1).name is None


@pytest.mark.proves("S-30")
@given(st.lists(st.integers(0, 4), min_size=5).filter(lambda told: {*told} == {*range(5)}))
def test_names_are_those_since_the_first_message_however_often_and_late_they_are_told(
    told: list[int],
) -> None:
    memory = UserMemory().seen(25)
    for number in told:
        memory = memory.named(f"n{number}", number * 10)
    assert memory.display_names == (("n2", 20), ("n3", 30), ("n4", 40))
    assert memory.name == "n4"


def test_names_of_a_record_that_does_not_say_since_when_are_kept() -> None:
    stored = user_in({"display_names": [["al", 10], ["Al", 20]]})
    known = stored.seen(200, "tea").named("alice", 80)
    assert known.display_names == (("al", 10), ("Al", 20), ("alice", 80))
    assert known.first_seen == 10


def test_what_is_learned_is_added() -> None:
    user = UserMemory().noted("a").noted("a").annotated("o").preferring("lang", "en")
    assert (user.notes, user.owner_notes) == (("a", "a"), ("o",))
    assert user.preferring("lang", "de").preferences == {"lang": "de"}
    group = GroupMemory().noted("n").with_theme("t").with_theme("t").seen(5).seen(3)
    assert (group.notes, group.themes, group.last_activity) == (("n",), ("t",), 5)
    assert user.named("a", 3).named("a", 5).named("b", 1).display_names == (("b", 1), ("a", 3))
    assert user.named("a", 5).named("a", 3).display_names == (("a", 3),), "as early as it is told"
    for number in range(MAX_NAMES + 5):
        user = user.named(str(number), number)
    assert (len(user.display_names), user.name) == (MAX_NAMES, str(MAX_NAMES + 4))
    assert group.annotated("x", "x").owner_notes == ("x",)

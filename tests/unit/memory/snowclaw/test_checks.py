"""relay/memory/snowclaw/checks.py: every refusal, and what is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from relay.memory.check_options import CheckOptions
from relay.memory.snowclaw.checks import check, check_lenient
from tests.cast import alice
from tests.unit.memory.snowclaw.making import TAGS_OF_COLLECTIVE, config, record, text_record

if TYPE_CHECKING:
    from relay.nostr.event import Event

TERMS = CheckOptions()
USER = f"snowclaw:memory:npub:{alice.pubkey[:32]}"
GROUP = "snowclaw:memory:group:tea"
TOPIC = "snow:memory:rust"
BAD_KEY = "d must end with an npub or 16, 32 or 64 lowercase hex characters"
BAD_CONFIG = (
    "d must be snowclaw:config:global, snowclaw:config:group:<id> or snowclaw:config:npub:<key>"
)
BAD_MEMORY = "d must be snowclaw:memory:npub:<key> or snowclaw:memory:group:<id>"
BAD_CATEGORY = "d must be snowclaw:<category>:<key>"
BAD_MODE = "respond_mode must be all, mention, owner or none"
BAD_COUNT = "context_history must be an integer from 0 to 1000"
NO_OBJECT = "content is not a JSON object"
KEYS = [alice.npub, alice.pubkey, alice.pubkey[:32], alice.pubkey[:16]]
NO_KEYS = [
    "",
    "alice",
    alice.npub[:-1],
    alice.npub[:-1] + "!",
    alice.npub.upper(),
    alice.pubkey.upper(),
    alice.pubkey[:31],
    alice.pubkey + "00",
    alice.nsec,
    f" {alice.pubkey}",
    f"{alice.pubkey[:16]}\n",
]


@pytest.mark.proves("S-01")
@pytest.mark.parametrize("key", KEYS)
def test_a_user_has_four_forms_of_key(key: str) -> None:
    assert check(record(f"snowclaw:memory:npub:{key}"), TERMS) is None
    assert check(config(f"npub:{key}"), TERMS) is None


@pytest.mark.proves("S-01", "S-04")
@pytest.mark.parametrize("key", NO_KEYS)
def test_a_user_has_no_other_key(key: str) -> None:
    assert check(record(f"snowclaw:memory:npub:{key}"), TERMS) == BAD_KEY
    assert check(config(f"npub:{key}"), TERMS) == (BAD_CONFIG if key == "" else BAD_KEY)


@pytest.mark.proves("G-24", "S-03", "S-04", "S-06")
@pytest.mark.parametrize(
    ("d", "fault"),
    [
        ("snowclaw:memory:room:x", BAD_MEMORY),
        ("snowclaw:memory:group:", BAD_MEMORY),
        ("snowclaw:memory:group", BAD_MEMORY),
        ("snowclaw:memory:", BAD_MEMORY),
        ("snowclaw:memory", BAD_CATEGORY),
        ("snowclaw:config", BAD_CATEGORY),
        ("snowclaw:core", BAD_CATEGORY),
        ("snowclaw:", BAD_CATEGORY),
        ("snowclaw::x", BAD_CATEGORY),
        ("snowclaw:core:", BAD_CATEGORY),
        ("snowclaw:config:", BAD_CONFIG),
        ("snowclaw:config:room:x", BAD_CONFIG),
        ("snowclaw:config:group:", BAD_CONFIG),
        ("snowclaw:config:group", BAD_CONFIG),
        ("snowclaw:config:globally", BAD_CONFIG),
        ("snowclaw:config:global:x", BAD_CONFIG),
    ],
)
def test_another_d_is_refused(d: str, fault: str) -> None:
    assert check(record(d), TERMS) == fault


@pytest.mark.parametrize(
    "d",
    [
        "snowclaw:memory:group:a:b",
        "snowclaw:config:global",
        "snowclaw:config:group:a:b",
        "snowclaw:core:user:k0:profile",
        "snowclaw:whatever:x",
    ],
)
def test_a_d_in_its_form_is_taken(d: str) -> None:
    assert check(record(d), TERMS) is None


def test_agent_memory_has_any_content() -> None:
    for content in ("", "prefers tabs", "[1"):
        event = text_record("snowclaw:core:x", content)
        assert check(event, TERMS) is None
        assert check_lenient(event, TERMS) is None


@pytest.mark.proves("S-03")
def test_the_group_of_a_record_is_the_group_in_its_d() -> None:
    assert check(record(GROUP, None, ["h", "tea"]), TERMS) is None
    assert check(record(GROUP), TERMS) is None
    assert check(record(GROUP, None, ["h", "den"]), TERMS) == "tag h must be tea"
    assert check(record(USER, None, ["h", "den"]), TERMS) is None
    assert check_lenient(record(GROUP, None, ["h", "den"]), TERMS) is None
    assert check(config("group:tea", None, ["h", "den"]), TERMS) is None


@pytest.mark.parametrize("content", ["", "x", "[]", "null", "{"])
@pytest.mark.parametrize("d", [USER, GROUP, "snowclaw:config:global", TOPIC])
def test_a_content_that_is_no_object_is_refused(d: str, content: str) -> None:
    event = text_record(d, content, *TAGS_OF_COLLECTIVE)
    may_be_empty = d.startswith("snowclaw:config:") and content == ""
    for found in (check(event, TERMS), check_lenient(event, TERMS)):
        assert found == (None if may_be_empty else NO_OBJECT)


@pytest.mark.proves("S-12")
@pytest.mark.parametrize("d", [USER, GROUP, TOPIC])
def test_what_is_encrypted_is_not_looked_into(d: str) -> None:
    event = text_record(d, '{"notes": 1}', *TAGS_OF_COLLECTIVE, ["encrypted", "nip44"])
    assert check(event, TERMS) is None
    assert check_lenient(text_record(d, "x", ["encrypted", "nip44"]), TERMS) is None
    assert (
        check(text_record(d, "x", *TAGS_OF_COLLECTIVE, ["encrypted", "rot13"]), TERMS) == NO_OBJECT
    )


NO_STRINGS: list[object] = ["x", None, [1], {}]
NO_PAIRS: list[object] = ["x", None, [1], [[1]], [[1, 2, 3]], {}]
NO_STRING_MAP: list[object] = ["x", None, [], {"a": 1}]
NO_INTEGER: list[object] = ["1", None, 1.5, True, []]
NO_STRING: list[object] = [[], 1]


@pytest.mark.proves("S-11")
@pytest.mark.parametrize(
    ("field", "bad", "shape"),
    [
        *(
            (name, bad, "an array of strings")
            for name in ("notes", "owner_notes", "themes")
            for bad in NO_STRINGS
        ),
        *(
            (name, bad, "an array of pairs")
            for name in ("display_names", "members", "decisions")
            for bad in NO_PAIRS
        ),
        *(("preferences", bad, "an object of strings") for bad in NO_STRING_MAP),
        *(
            (name, bad, "an integer")
            for name in ("first_seen", "last_interaction", "last_activity")
            for bad in NO_INTEGER
        ),
        *(("is_owner", bad, "a boolean") for bad in (1, "true", None)),
        *(
            (f"{name}_json", bad, "a string")
            for name in (
                "profile",
                "name_history",
                "notes",
                "owner_notes",
                "preferences",
                "members",
            )
            for bad in NO_STRING
        ),
        *(("purpose", bad, "a string") for bad in NO_STRING),
    ],
)
def test_a_known_field_of_another_type_is_named(field: str, bad: object, shape: str) -> None:
    for d in (USER, GROUP):
        event = record(d, {field: bad})
        assert check(event, TERMS) == f"content.{field} must be {shape}"
        assert check_lenient(event, TERMS) is None


@pytest.mark.proves("S-11")
def test_fields_may_be_missing_or_others() -> None:
    nulls: dict[str, object] = {
        "purpose": None,
        "notes_json": None,
        "members_json": None,
        "profile_json": None,
    }
    good: dict[str, object] = {
        "notes": [],
        "display_names": [["a", 1]],
        "preferences": {},
        "first_seen": -1,
    }
    odd: dict[str, object] = {"hex_pubkey": 1, "mood": None, "display_name": []}
    for fields in ({}, nulls, good, odd):
        assert check(record(USER, fields), TERMS) is None


def test_the_first_fault_alone_is_told() -> None:
    assert check(record(USER, {"is_owner": 1, "themes": 1, "notes": 1}), TERMS) == (
        "content.notes must be an array of strings"
    )


@pytest.mark.proves("S-16")
@pytest.mark.parametrize("mode", ["all", "mention", "owner", "none", "ALL", "Silent", "listen"])
def test_a_mode_is_taken_in_any_case_and_by_its_other_names(mode: str) -> None:
    assert check(config("global", None, ["respond_mode", mode]), TERMS) is None
    assert check(config("global", {"respond_mode": mode}), TERMS) is None


@pytest.mark.proves("S-16")
@pytest.mark.parametrize("mode", ["", "often", " all", "al", "nonе"])
def test_an_unknown_mode_is_refused_in_both_places(mode: str) -> None:
    assert check(config("global", {}, ["respond_mode", mode]), TERMS) == BAD_MODE
    assert check(config("global", {"respond_mode": mode}), TERMS) == BAD_MODE


@pytest.mark.proves("S-16")
@pytest.mark.parametrize("count", ["0", "20", "1000"])
def test_a_count_is_taken_as_digits_and_as_a_number(count: str) -> None:
    for event in (
        config("global", None, ["context_history", count]),
        config("global", {"context_history": count}),
        config("global", {"context_history": int(count)}),
    ):
        assert check(event, TERMS) is None


@pytest.mark.proves("S-16")
@pytest.mark.parametrize("count", ["", "-1", "1001", "1e2", "20.0", "٢٠", "thirty", " 20"])
def test_a_bad_count_is_refused_in_both_places(count: str) -> None:
    assert check(config("global", {}, ["context_history", count]), TERMS) == BAD_COUNT
    assert check(config("global", {"context_history": count}), TERMS) == BAD_COUNT


@pytest.mark.parametrize("count", [-1, 1001, 20.0, True, [], {}])
def test_a_count_is_an_integer(count: object) -> None:
    assert check(config("global", {"context_history": count}), TERMS) == BAD_COUNT


@pytest.mark.parametrize("mode", [1, True, ["all"]])
def test_a_mode_is_a_string(mode: object) -> None:
    assert check(config("global", {"respond_mode": mode}), TERMS) == BAD_MODE


@pytest.mark.proves("S-16")
def test_a_good_tag_does_not_hide_a_bad_content() -> None:
    event = config("global", {"respond_mode": "often"}, ["respond_mode", "all"])
    assert check(event, TERMS) == BAD_MODE
    event = config("global", {"context_history": -1}, ["context_history", "5"])
    assert check(event, TERMS) == BAD_COUNT


def test_a_mode_is_looked_at_before_a_count() -> None:
    event = config("global", {"respond_mode": "often"}, ["context_history", "many"])
    assert check(event, TERMS) == BAD_MODE


def test_a_value_that_is_null_is_not_set() -> None:
    fields = {"respond_mode": None, "context_history": None, "more": {"a": 1}}
    assert check(config("global", fields), TERMS) is None


def collective(**values: str) -> Event:
    tags = [
        [name, values.get(name.removeprefix("snow:"), given)] for name, given in TAGS_OF_COLLECTIVE
    ]
    return record(TOPIC, None, *tags)


@pytest.mark.proves("S-27")
@pytest.mark.parametrize(
    ("tag", "good", "bad", "fault"),
    [
        (
            "tier",
            ["public", "group", "private"],
            ["", "Public", "secret"],
            "snow:tier must be public, group or private",
        ),
        (
            "confidence",
            ["0", "1", "0.92", "1.0", ".5", "1e-3"],
            [
                "",
                "1.01",
                "-0.1",
                "NaN",
                "inf",
                "high",
                "0,5",
                "0_1",
                " 1",
                "٠",
                "1e999",
                "1" * 400_000 + "x",
            ],
            "snow:confidence must be a number from 0 to 1",
        ),
        (
            "version",
            ["0", "1", "-1", "20"],
            ["", "1.0", "one", "--1", "١"],
            "snow:version must be an integer",
        ),
    ],
)
def test_collective_memory_says_what_it_is_worth(
    tag: str, good: list[str], bad: list[str], fault: str
) -> None:
    assert [check(collective(**{tag: value}), TERMS) for value in good] == [None] * len(good)
    assert [check(collective(**{tag: value}), TERMS) for value in bad] == [fault] * len(bad)
    assert check_lenient(collective(**{tag: bad[0]}), TERMS) is None

"""relay/memory/search_text.py: the searchable text of each record type."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from relay.memory.systems import MEMORY_SYSTEMS
from tests.cast import robot
from tests.contract.writing import unsigned

NIP44 = base64.b64encode(b"\2" + bytes(98)).decode()
NIP04 = f"{base64.b64encode(bytes(32)).decode()}?iv={base64.b64encode(bytes(16)).decode()}"


def text(
    kind: int, content: object = "", *tags: tuple[str, ...], d: str | None = None
) -> str | None:
    """What is found of such an event; objects are written as JSON."""
    said = content if isinstance(content, str) else json.dumps(content)
    named = () if d is None else (("d", d),)
    return MEMORY_SYSTEMS.search_text(unsigned(robot, kind, [*named, *tags], said))


def words(*args: Any, **more: Any) -> list[str]:
    return (text(*args, **more) or "").split()


@pytest.mark.proves("N50-02")
def test_an_event_is_found_by_its_content_and_by_what_names_it() -> None:
    tags = [("title", "Leaves"), ("summary", "about tea"), ("subject", "brew"), ("t", "hidden")]
    assert words(30023, "steep it", *tags) == ["steep", "it", "Leaves", "about", "tea", "brew"]
    assert words(39000, "", ("name", "Tea"), ("about", "all of it"), d="tea") == [
        "Tea",
        "all",
        "of",
        "it",
    ]
    assert text(1, "", ("t", "tea")) is None


@pytest.mark.proves("N50-02")
def test_a_profile_is_found_by_its_names_and_its_about() -> None:
    profile = {"name": "alice", "about": "tea", "picture": "https://x", "nip05": "a@example.com"}
    assert words(0, profile) == ["alice", "tea", "a@example.com"]
    assert text(0, "no JSON") is None


SYSTEMS = {
    "30090": ((30090, {"title": "Doc", "x": "no"}), ["Doc"]),
    "30091": ((30091, {"text": "chunk", "doc": "no"}), ["chunk"]),
    "30092": ((30092, {"title": "no"}), []),
    "30093": ((30093, {"preference": "tea", "history_key": "no"}), ["tea"]),
    "30094": ((30094, {"summary": "sum", "history_key": "no"}), ["sum"]),
    "30095": ((30095, {"content": "ok", "tool_name": "weather", "x": "no"}), ["weather", "ok"]),
    "30096": ((30096, {"history_key": "no"}), []),
    "30097": ((30097, {"topics": ["a", "b"], "history_key": "no"}), ["a", "b"]),
    "1988": ((1988, "a note"), ["a", "note"]),
    "1989": ((1989, "", ("source-data", "no")), []),
    "31988": ((31988, "no", ("title", "T"), ("custom_title", "C"), ("cwd", "no")), ["T", "C"]),
    "31989": ((31989, "no", ("command", "no")), []),
    "31991": ((31991, "no", ("name", "N"), ("command", "run"), ("cwd", "no")), ["N", "run"]),
    "1080": ((1080, "no"), []),
    "1081": ((1081, "no"), []),
    "1082": ((1082, "no"), []),
    "9": ((9, "chat"), ["chat"]),
    "1621": ((1621, "task"), ["task"]),
    "31234": ((31234, "nomen"), ["nomen"]),
    "30100": ((30100, "said"), ["said"]),
}


@pytest.mark.proves("G-22")
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_kind_of_memory_is_found_by_what_the_table_says(name: str) -> None:
    """G-22"""
    given, found = SYSTEMS[name]
    assert words(*given) == found


RECORDS = {
    "snowclaw:config:global": ({"respond_mode": "no"}, []),
    "snowclaw:memory:npub:ab": (
        {
            "display_names": [["k0", 17]],
            "notes": ["likes tea"],
            "owner_notes": ["core"],
            "preferences": {"no": "no"},
            "first_seen": 17,
        },
        ["k0", "likes", "tea", "core"],
    ),
    "snowclaw:memory:npub:cd": (
        {
            "display_name": "Bobby",
            "name_history_json": '[[17,"Bob"]]',
            "profile_json": '"no"',
            "notes_json": '["tables"]',
            "owner_notes_json": "null",
            "hex_pubkey": "no",
        },
        ["Bobby", "Bob", "tables"],
    ),
    "snowclaw:memory:group:tea": (
        {
            "purpose": "brew",
            "themes": ["nostr"],
            "decisions": [["use it", 17]],
            "members": [["no", "no"]],
            "notes": ["nine"],
            "notes_json": "not JSON",
            "owner_notes": ["by the window"],
        },
        ["brew", "nostr", "use", "it", "nine", "by", "the", "window"],
    ),
    "snowclaw:memory:other:x": ("no", []),
    "snowclaw:core:who:me": ("a fact", ["who:me", "a", "fact"]),
    "snow:memory:tea": ({"summary": "s", "detail": "d", "context": "no"}, ["tea", "s", "d"]),
    "nmem:session:x": (
        {
            "project": "no",
            "signature": [["no", 3]],
            "summary": {"intent": "fix", "learned": ["a"], "notes": {"no-key": "deep"}, "x": "no"},
        },
        ["fix", "a", "deep"],
    ),
    "nmem:session:y": ({"project": "no", "summary": None}, []),
    "nmem:pin:x": ({"pinned": True}, []),
    "anamnesis:vouch:x": ({"confidence": 1}, []),
    "anamnesis:superseded:x": ({"by": "no"}, []),
    "anamnesis:meta:x": ({"tags": ["new"], "memory_type": "no"}, ["new"]),
    "nomen:group:x": ("a group", ["a", "group"]),
    "my app": ("no", []),
}


@pytest.mark.proves("G-22")
@pytest.mark.parametrize("d", RECORDS)
def test_a_record_is_found_by_what_the_table_says(d: str) -> None:
    """G-22"""
    content, found = RECORDS[d]
    assert words(30078, content, d=d) == found


def test_of_a_group_of_nomen_the_beginning_is_found() -> None:
    """Strangers may write them, and agents' searches wait for records of memory."""
    assert words(30078, "tea " + "x " * 2045 + "milk", d="nomen:group:x")[-1] == "mi"
    assert words(30078, "tea " + "x " * 2044 + "milk", d="nomen:group:x")[-1] == "milk"


def test_records_of_kind_78_are_found_by_their_content_field() -> None:
    """G-22"""
    seen = {"content": "ran ls", "file_path": "/src/a.py", "tool_name": "no"}
    assert words(78, seen, d="nmem:obs:s:0") == ["ran", "ls", "/src/a.py"]
    assert words(78, {"content": "why", "source": "no"}, d="nmem:prompt:s:0") == ["why"]
    entry = {"content": "learned", "tags": ["x"], "author": {"name": "no"}}
    assert words(78, entry, d="anamnesis:memory:0") == ["learned", "x"]
    assert text(78, "no", d="my app") is None


@pytest.mark.proves("G-22")
def test_collective_memory_is_found_by_its_t_tags_too() -> None:
    found = words(30078, {"summary": "s"}, ("t", "brew"), d="snow:memory:tea")
    assert found == ["tea", "s", "brew"]


@pytest.mark.proves("N50-11")
@pytest.mark.parametrize("kind", [4, 13, 1059, 21059, 24133, 1080, 1081, 20001])
def test_what_is_encrypted_or_passes_by_is_never_found(kind: int) -> None:
    assert text(kind, "plain", ("title", "plain"), ("subject", "plain")) is None


@pytest.mark.proves("N50-11", "G-21")
@pytest.mark.parametrize("tag", [("enc", "secretbox-v1"), ("encrypted", "nip44"), ("enc",)])
def test_a_tag_that_says_encrypted_hides_everything(tag: tuple[str, ...]) -> None:
    """G-21"""
    assert text(30093, {"preference": "tea"}, tag) is None
    assert text(30078, "tea", tag, ("title", "tea"), d="snowclaw:core:x") is None


@pytest.mark.proves("N50-11", "G-21")
@pytest.mark.parametrize("content", [NIP44, NIP04])
def test_content_of_the_form_of_a_ciphertext_is_not_looked_at(content: str) -> None:
    """G-21: lists with private items carry no tag that says so."""
    assert text(10000, content) is None
    assert text(1, f"{content} said he") is not None


def test_a_repost_is_not_found_in_place_of_what_it_repeats() -> None:
    assert text(6, json.dumps({"content": "tea"})) is None
    assert text(16, json.dumps({"content": "tea"})) is None


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "null", "{", ""])
def test_content_that_is_no_object_is_no_text(content: str) -> None:
    assert text(30094, content) is None


def test_however_deep_a_field_is_nested_its_texts_are_found() -> None:
    """As deep as a parser goes: anybody may send such a profile, and an index must get past it."""
    for depth in (1, 100, 1000, 1020):
        nested = "[" * depth + '"tea", "cake"' + "]" * depth
        profile = f'{{"about": {nested}, "name": "al"}}'
        assert MEMORY_SYSTEMS.search_text(unsigned(robot, 0, content=profile)) == "al\ntea\ncake"


@pytest.mark.parametrize(
    "content", ["B" + NIP44[1:], f"{NIP44[:131]}=", f"{NIP44}===", f"{NIP44}!"]
)
def test_what_only_resembles_encrypted_text_is_found(content: str) -> None:
    assert text(1, content) is not None
    assert text(1, f"{content}?iv=") is not None
    assert text(1, f"{NIP04}?iv=AAAA") is not None


def test_a_profile_over_64_kib_is_not_found() -> None:
    """One of 400,000 characters took the loop for 0.1 s, for each live search that is open."""
    assert words(0, {"name": "alice", "more": "x" * 65_000}) == ["alice"]
    assert text(0, {"name": "alice", "more": "x" * 65_536}) is None


def test_a_field_of_many_values_is_found_by_the_first() -> None:
    profile = {"name": ["early", *[0] * 16_384, "late"]}
    assert words(0, profile) == ["early"]

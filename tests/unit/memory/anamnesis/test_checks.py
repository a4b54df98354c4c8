"""The refusals of Anamnesis records, one by one, and their order."""

from __future__ import annotations

from typing import Any

import pytest

from relay.errors import Prefix, Refused
from relay.memory.anamnesis.checks import check, content_hash, time_in
from relay.memory.anamnesis.records import Memory, record_in, validated
from relay.memory.check_options import CheckOptions
from relay.memory.fields import compact
from relay.memory.unreadable import UnreadableRecord
from relay.nostr import kinds
from relay.nostr.messages import ok
from tests import cast
from tests.contract.writing import unsigned

HASH = content_hash("tea")
OTHER = content_hash("coffee")
ENTRY: dict[str, Any] = {
    "content": "tea",
    "author": {"id": "r", "name": "Robot"},
    "timestamp": "2026-02-02T16:00:00Z",
    "content_hash": HASH,
}
TIME = "must be an ISO 8601 date-time with zone"
CONFIDENCE = "must be a number from 0 to 1"
UNKNOWN = "d must be anamnesis:memory, vouch, superseded or meta and a hash"
VOUCH = {"id": "a", "timestamp": "2026-02-02T16:00:00Z"}


def entry_says(
    fields: object, *, d: str = HASH, x: str = HASH, options: CheckOptions | None = None
) -> Any:
    content = fields if isinstance(fields, str) else compact(fields)
    tags = [["d", f"anamnesis:memory:{d}"], ["x", x]]
    return check(unsigned(cast.robot, kinds.APP_RECORD, tags, content), options or CheckOptions())


def record_says(what: str, fields: object, *, hashed: str = HASH, x: str = HASH) -> Any:
    content = fields if isinstance(fields, str) else compact(fields)
    tags = [["d", f"anamnesis:{what}:{hashed}"], ["x", x]]
    return check(unsigned(cast.robot, kinds.APP_DATA, tags, content), CheckOptions())


ROWS = [
    ("nope", "content is not a JSON object"),
    ("[]", "content is not a JSON object"),
    (ENTRY | {"mood": 1}, "unknown field mood"),
    (ENTRY | {"content": None}, "content.content must be a string of 1 to 10000 characters"),
    (ENTRY | {"content": ""}, "content.content must be a string of 1 to 10000 characters"),
    (
        ENTRY | {"content": "x" * 10_001},
        "content.content must be a string of 1 to 10000 characters",
    ),
    (ENTRY | {"author": "r"}, "content.author must be an object"),
    (ENTRY | {"author": {"name": "R"}}, "content.author.id must be a string"),
    (ENTRY | {"author": {"id": "r", "name": 1}}, "content.author.name must be a string"),
    (ENTRY | {"timestamp": "2026-02-02T16:00:00"}, f"content.timestamp {TIME}"),
    (ENTRY | {"content_hash": HASH.upper()}, "content_hash must be 64 lowercase hex characters"),
    (ENTRY | {"content_hash": OTHER}, "content_hash does not match content"),
    (
        ENTRY | {"memory_type": "mood"},
        "content.memory_type must be episodic, semantic, procedural or insight",
    ),
    (
        ENTRY | {"memory_type": None},
        "content.memory_type must be episodic, semantic, procedural or insight",
    ),
    (
        ENTRY | {"parent_refs": "x"},
        "content.parent_refs must be an array of 64 lowercase hex characters",
    ),
    (
        ENTRY | {"parent_refs": [OTHER, "x"]},
        "content.parent_refs must be an array of 64 lowercase hex characters",
    ),
    (ENTRY | {"parent_refs": [OTHER, HASH]}, "a memory cannot be its own parent"),
    (
        ENTRY | {"vouchers": [{"id": "a", "timestamp": "2026-02-02T16:00:00Z"}, {}]},
        "content.vouchers[1].id must be a string",
    ),
    (ENTRY | {"vouchers": ["a"]}, "content.vouchers[0].id must be a string"),
    (ENTRY | {"vouchers": [{"id": "a"}]}, f"content.vouchers[0].timestamp {TIME}"),
    (
        ENTRY | {"vouchers": [{"id": "a", "timestamp": "2026-02-02T16:00:00Z", "confidence": 2}]},
        f"content.vouchers[0].confidence {CONFIDENCE}",
    ),
    (ENTRY | {"vouchers": {}}, "content.vouchers must be an array of objects"),
    (ENTRY | {"confidence": True}, f"content.confidence {CONFIDENCE}"),
    (ENTRY | {"confidence": 1.01}, f"content.confidence {CONFIDENCE}"),
    (ENTRY | {"confidence": None}, f"content.confidence {CONFIDENCE}"),
    (ENTRY | {"tags": "x"}, "content.tags must be an array of strings"),
    (ENTRY | {"tags": [1]}, "content.tags must be an array of strings"),
    (ENTRY | {"context": "x"}, "content.context must be an object"),
    (ENTRY | {"superseded_by": "x"}, "content.superseded_by must be 64 lowercase hex characters"),
]


@pytest.mark.proves("X-03", "X-04", "X-08")
@pytest.mark.parametrize(("fields", "says"), ROWS, ids=[str(row[0])[-40:] for row in ROWS])
def test_an_entry_that_is_wrong_is_told_so(fields: object, says: str) -> None:
    assert entry_says(fields) == says


@pytest.mark.proves("X-04", "G-03")
def test_of_several_faults_the_first_of_the_table_is_told() -> None:
    """Wrong in everything; what was told is mended, and the next is told."""
    fields: dict[str, Any] = {
        "superseded_by": 1,
        "context": 1,
        "tags": 1,
        "confidence": "1",
        "vouchers": 1,
        "parent_refs": 1,
        "memory_type": 1,
        "content_hash": 1,
        "timestamp": 1,
        "author": 1,
        "content": "",
        "mood": 1,
    }
    mended: dict[str, Any] = ENTRY | {
        "memory_type": "insight",
        "parent_refs": [],
        "vouchers": [],
        "confidence": 0,
        "tags": [],
        "context": {},
        "superseded_by": OTHER,
    }
    assert entry_says(fields, d=OTHER) == "unknown field mood"
    del fields["mood"]
    said = []
    for name in list(mended)[:4]:
        said.append(entry_says(fields, d=OTHER))
        fields[name] = mended[name]
    assert [fault.split(" must")[0] for fault in said] == [
        "content.content",
        "content.author",
        "content.timestamp",
        "content_hash",
    ]
    assert entry_says(fields, d=OTHER) == f"d must be anamnesis:memory:{HASH}"
    assert entry_says(fields, x=OTHER) == f"d must be anamnesis:memory:{HASH}"
    said = []
    for name in list(mended)[4:]:
        said.append(entry_says(fields))
        fields[name] = mended[name]
    assert [fault.split(" must")[0] for fault in said] == [
        f"content.{name}" for name in list(mended)[4:]
    ]
    assert entry_says(fields) is None


@pytest.mark.proves("X-04")
def test_every_field_may_be_there_and_more_inside_some() -> None:
    full = ENTRY | {
        "author": {"id": "r", "name": "R", "platform": "p", "age": 3},
        "memory_type": "procedural",
        "parent_refs": [OTHER],
        "confidence": 1,
        "tags": ["a"],
        "context": {"any": [1]},
        "superseded_by": OTHER,
        "vouchers": [{"id": "a", "timestamp": "2026-02-02T16:00:00+01:00", "more": 1}],
    }
    assert entry_says(full) is None


@pytest.mark.proves("X-20")
def test_validation_gives_every_error_and_what_may_be_forgotten() -> None:
    found = validated({"content": "é" * 6000, "mood": 1, "confidence": 7})
    assert not found.valid
    assert found.errors == (
        "unknown field mood",
        "content.author must be an object",
        f"content.timestamp {TIME}",
        "content_hash must be 64 lowercase hex characters",
        f"content.confidence {CONFIDENCE}",
    )
    assert found.warnings == ("memory_type is missing", "tags is missing", "content is over 10 KB")
    assert validated(ENTRY).valid


@pytest.mark.proves("X-20")
@pytest.mark.parametrize("value", ["{}", None, [ENTRY], 1, True])
def test_what_is_no_object_is_no_entry(value: object) -> None:
    found = validated(value)
    assert not found.valid
    assert found.errors == ("content is not a JSON object",)


@pytest.mark.proves("X-03")
def test_bytes_are_counted_where_the_policy_says_so() -> None:
    long = ENTRY | {"content": "é" * 5}
    assert entry_says(long, options=CheckOptions(max_bytes=9)) == "content.content is over 9 bytes"
    assert entry_says(ENTRY, options=CheckOptions(max_bytes=3)) is None


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-02-02T16:00:00+01:00", 1_770_044_400),
        ("2026-02-02T16:00:00.999Z", 1_770_048_000),
        ("2026-02-02", None),
        ("2026-02-02T16:00Z", None),
        ("2026-02-02T16:00:00", None),
        ("2026-02-02 16:00:00Z", None),
        ("2026-02-30T16:00:00Z", None),
        ("2026-02-02T16:00:00+99:00", None),
        (1_770_048_000, None),
    ],
)
def test_a_timestamp_has_a_date_seconds_and_a_zone(timestamp: object, seconds: int | None) -> None:
    assert time_in(timestamp) == seconds


@pytest.mark.proves("X-11")
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("x", "content is not a JSON object"),
        ({}, "content.id must be a string"),
        ({"id": "a", "timestamp": "x"}, f"content.timestamp {TIME}"),
        (
            {"id": "a", "timestamp": "2026-02-02T16:00:00Z", "confidence": "1"},
            f"content.confidence {CONFIDENCE}",
        ),
        (
            {"id": "a", "timestamp": "2026-02-02T16:00:00Z", "attestation": "no"},
            "content.attestation must be confirm, partial or dispute",
        ),
        ({"id": "a", "timestamp": "2026-02-02T16:00:00Z", "attestation": "dispute"}, None),
        ({"id": "a", "timestamp": "2026-02-02T16:00:00Z"}, None),
    ],
)
def test_a_vouch_says_who_and_when(fields: object, says: str | None) -> None:
    assert record_says("vouch", fields) == says


def test_a_vouch_is_about_one_hash() -> None:
    says = "d must be anamnesis:vouch:<64 lowercase hex>"
    assert record_says("vouch", {}, hashed="zz", x="zz") == says
    assert record_says("vouch", {}, x=OTHER) == says


def test_a_record_names_no_other_memory_in_x() -> None:
    """Who asks for records about that one would get this one too."""
    entry = ["d", f"anamnesis:memory:{HASH}"], compact(ENTRY)
    vouch = ["d", f"anamnesis:vouch:{HASH}"], compact(VOUCH)
    patch = ["d", f"anamnesis:meta:{HASH}"], "{}"
    supersession = (
        ["d", f"anamnesis:superseded:{HASH}"],
        compact({"superseded_by": OTHER}),
    )
    for kind, (d, content), says in (
        (kinds.APP_RECORD, entry, f"d must be anamnesis:memory:{HASH}"),
        (kinds.APP_DATA, vouch, "d must be anamnesis:vouch:<64 lowercase hex>"),
        (kinds.APP_DATA, patch, UNKNOWN),
        (kinds.APP_DATA, supersession, UNKNOWN),
    ):
        for others, wanted in (([], None), ([["x", HASH]], None), ([["x", OTHER]], says)):
            event = unsigned(cast.robot, kind, [d, ["x", HASH], *others], content)
            assert check(event, CheckOptions()) == wanted


@pytest.mark.proves("G-24")
@pytest.mark.parametrize("kind", [kinds.APP_DATA, kinds.APP_RECORD])
@pytest.mark.parametrize("d", ["anamnesis:", "anamnesis:thought:x", "anamnesis:memory", "other:x"])
def test_there_are_no_other_records(kind: int, d: str) -> None:
    event = unsigned(cast.robot, kind, [["d", d], ["x", HASH]], "{}")
    says = "d must be anamnesis:memory, vouch, superseded or meta and a hash"
    assert check(event, CheckOptions()) == says
    assert record_in(event) == UnreadableRecord(event, says)


@pytest.mark.parametrize("name", ["\\ud800", "x" * 500])
def test_a_name_that_cannot_be_said_is_told_as_far_as_it_can(name: str) -> None:
    says = entry_says(f'{{"{name}":1}}')
    assert says.startswith("unknown field ")
    assert len(says) < 100
    assert says.encode() in ok("0" * 64, Refused(Prefix.INVALID, says))


def test_half_a_surrogate_pair_has_no_hash() -> None:
    content = compact(ENTRY).replace('"tea"', '"\\ud800"')
    assert entry_says(content) == "content_hash does not match content"
    tags = [["d", f"anamnesis:memory:{HASH}"], ["x", HASH]]
    inside = compact(ENTRY | {"context": {"a": "b"}}).replace('"b"', '"\\ud800"')
    event = unsigned(cast.robot, kinds.APP_RECORD, tags, inside)
    assert check(event, CheckOptions()) is None
    assert isinstance(record_in(event), UnreadableRecord)


def test_a_reader_takes_what_a_more_generous_relay_took() -> None:
    content = "x" * 20_000
    hashed = content_hash(content)
    fields = ENTRY | {"content": content, "content_hash": hashed}
    tags = [["d", f"anamnesis:memory:{hashed}"], ["x", hashed]]
    assert isinstance(
        record_in(unsigned(cast.robot, kinds.APP_RECORD, tags, compact(fields))), Memory
    )

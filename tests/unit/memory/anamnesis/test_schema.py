"""The JSON Schema of entries agrees with the validator."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from relay.cli.anamnesis_offline import schema
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.records import validated
from tests.golden import document

jsonschema = pytest.importorskip("jsonschema")

GOLDEN: dict[str, Any] = document("memory/anamnesis.json")
SEED: dict[str, Any] = GOLDEN["seed_entry"]["entry"]
HASH = content_hash("a")
VOUCHER = {"id": "agent-xyz", "name": "TrustBot", "timestamp": "2026-02-02T16:00:00Z"}


def fits(entry: object) -> bool:
    printed = json.loads(CliRunner().invoke(schema).output)
    jsonschema.Draft202012Validator.check_schema(printed)
    return bool(jsonschema.Draft202012Validator(printed).is_valid(entry))


@pytest.mark.proves("X-04", "X-20")
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"vouchers": [{**VOUCHER, "confidence": 0.9}], "superseded_by": HASH},
        {"author": {"id": "a", "name": "A", "age": 3}, "context": {"deep": [{}]}},
        {"author": {"id": "a"}},
        {"author": "Babel"},
        {"timestamp": "2026-02-02"},
        {"timestamp": "2026-02-02T16:00:00.5+01:00"},
        {"content_hash": HASH.upper()},
        {"memory_type": "rumour"},
        {"parent_refs": [HASH]},
        {"parent_refs": ["9f8e7d6c5b4a..."]},
        {"vouchers": [{"id": "x"}]},
        {"vouchers": [{**VOUCHER, "confidence": 2}]},
        {"confidence": 1.5},
        {"confidence": True},
        {"tags": "trust"},
        {"tags": [1]},
        {"context": []},
        {"superseded_by": "x"},
        {"mood": "good"},
    ],
    ids=str,
)
def test_the_schema_takes_what_the_validator_takes(changed: dict[str, object]) -> None:
    entry = SEED | changed
    assert fits(entry) is validated(entry).valid


@pytest.mark.proves("X-03", "X-04")
@pytest.mark.parametrize("length", [0, 1, 10_000, 10_001])
def test_the_schema_counts_characters(length: int) -> None:
    text = "é" * length
    entry = SEED | {"content": text, "content_hash": content_hash(text)}
    assert fits(entry) is validated(entry).valid is (1 <= length <= 10_000)


@pytest.mark.parametrize("missing", ["content", "author", "timestamp", "content_hash"])
def test_four_fields_are_required(missing: str) -> None:
    assert fits(SEED)
    assert not fits({name: value for name, value in SEED.items() if name != missing})


def test_what_is_no_object_does_not_fit() -> None:
    assert not fits([])

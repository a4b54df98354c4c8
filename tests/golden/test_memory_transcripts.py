"""memory/conversation: session files as events, and out of events again."""

from __future__ import annotations

import random
from hashlib import sha256
from itertools import chain
from typing import Any

import pytest

from relay.memory.transcripts.assembly import assembled
from relay.memory.transcripts.lines import raw_lines, session_facts
from relay.memory.transcripts.paths import Directory
from relay.memory.transcripts.transcript import Transcript
from relay.nostr.event import Event, event_from
from relay.nostr.keys import SecretKey
from tests.golden import HERE, document

FOLDER = HERE / "memory" / "conversation"
EXTRA = document("memory/conversation/expected/extra.json")
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def told(name: str) -> list[Event]:
    data = (FOLDER / f"{name}.jsonl").read_bytes()
    key = SecretKey(bytes.fromhex(wanted(name)["author_secret"]))
    script = Transcript(key.pubkey, session_facts(raw_lines(data)), stem=name, now_ms=0)
    drafts = chain.from_iterable(script.drafts(raw) for raw in raw_lines(data))
    return [key.sign(*draft) for draft in drafts]


def wanted(name: str) -> dict[str, Any]:
    found: dict[str, Any] = document(f"memory/conversation/expected/{name}.json")
    return found


def shown(value: str) -> list[Any]:
    """A long text as the vectors have it: its beginning, hash and length."""
    data = value.encode()
    return [value[:60], {"sha256": sha256(data).hexdigest(), "bytes": len(data)}]


@pytest.mark.proves("D-07", "D-08", "D-09", "D-10", "D-11", "D-12", "D-13", "D-15", "D-16", "D-17")
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_these_events(name: str) -> None:
    events = told(name)
    assert len(events) == len(wanted(name)["events"])
    for event, want in zip(events, wanted(name)["events"], strict=True):
        assert (event.kind, event.created_at) == (want["kind"], want["created_at"])
        for tag, wanted_tag in zip(event.tags, want["tags"], strict=True):
            is_short = len(wanted_tag) < 3 or isinstance(wanted_tag[2], str)
            assert wanted_tag == (tag if is_short else [tag[0], *shown(tag[1])])
        if "content_sha256" in want:
            text, facts = shown(event.content)
            assert want["content"] == text
            assert facts == {"sha256": want["content_sha256"], "bytes": want["content_bytes"]}
        else:
            assert event.content == want["content"]
        assert event.id == want["id"]


@pytest.mark.proves("D-18", "D-20", "D-21")
@pytest.mark.parametrize("name", NAMES)
def test_the_events_are_the_file_to_the_byte(name: str) -> None:
    data, want = (FOLDER / f"{name}.jsonl").read_bytes(), wanted(name)
    assert len(data) == want["file_bytes"]
    assert sha256(data).hexdigest() == want["file_sha256"]
    events = told(name)
    random.Random(name).shuffle(events)
    assembly = assembled(events)
    assert (assembly.faults, assembly.unread) == ((), ())
    assert b"".join(assembly.file(Directory(want["base_cwd"]))) == data
    other = want.get("export_other_cwd")
    if other is not None:
        moved = b"".join(assembly.file(Directory(other["cwd"])))
        assert (len(moved), sha256(moved).hexdigest()) == (other["bytes"], other["sha256"])


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_as_many_lines_and_events(name: str) -> None:
    events, want = told(name), EXTRA["files"][name]
    lines = len(list(raw_lines((FOLDER / f"{name}.jsonl").read_bytes())))
    of_kind = [sum(event.kind == kind for event in events) for kind in (1988, 1989)]
    assert [lines, *of_kind] == [want["lines"], want["events_1988"], want["events_1989"]]


@pytest.mark.proves("D-18")
def test_the_documents_form_is_read() -> None:
    assembly = assembled([event_from(EXTRA["document_style"])])
    assert b"".join(assembly.file(None)).decode() == EXTRA["document_style_export"]

"""`Client.recall`: what is asked of which relay, and what is left out of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client
from relay.client import recall as recall_module
from relay.client.recall import Hit, letter_of, query_of, recall
from relay.mcp.rows import recalled
from relay.memory.anamnesis.records import Entry, entry_draft, supersession_draft, vouch_draft
from relay.memory.fence import attribution
from relay.nostr.nip50 import Needs, search_from
from tests.cast import robot, rover
from tests.harness.fake_relay import FakeRelay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.fake_relay import Visitor

AT = 1_771_372_800
SINCE = "2026-02-18T00:00:00Z"


@pytest.fixture
async def relay() -> AsyncIterator[FakeRelay]:
    async with FakeRelay() as fake:
        fake.information = {"supported_nips": [1, 50], "memory": {"search": ["match", "near"]}}
        yield fake


def asked_of(relay: FakeRelay) -> list[dict[str, Any]]:
    """The filters with `search` that the relay gets from now on; it answers with all events."""
    asked: list[dict[str, Any]] = []

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        if "search" in frame[2]:
            asked.append(dict(frame[2]))
            del frame[2]["search"]
        await relay.answer(visitor, frame)

    relay.on["REQ"] = answer
    return asked


def note(text: str, who: Any = robot, at: int = AT) -> Any:
    return who.sign(1988, [["d", "s"]], text, at)


async def test_a_question_is_one_query_for_any_of_its_words(relay: FakeRelay) -> None:
    asked = asked_of(relay)
    relay.events = [note("the kettle leaks")]
    async with Client(relay.url, robot) as client:
        answer = await client.recall("What leaks in the kitchen?")
    assert [(hit.system, hit.text.strip()) for hit in answer.hits] == [("D", "the kettle leaks")]
    assert [filter_["search"] for filter_ in asked] == ["match:any What leaks in the kitchen?"]
    assert {78, 1988, 30078, 30093} <= set(asked[0]["kinds"])
    assert "#d" not in asked[0]


async def test_its_times_become_periods(relay: FakeRelay) -> None:
    asked = asked_of(relay)
    async with Client(relay.url, robot) as client:
        await recall(client, "what leaked yesterday?", systems="D", as_of=AT + 5)
    (filter_,) = asked
    assert filter_["search"] == f"match:any near:{AT - 86_400}-{AT - 1} what leaked yesterday?"


def test_long_questions_and_colons_lose_nothing_of_what_is_asked() -> None:
    search = search_from(query_of("is it so that " * 20 + "TypeError: kettle", AT))
    assert search is not None
    assert search.required == ("typeerror", "kettle")
    search = search_from(query_of("tea " * 2000, AT))
    assert search is not None
    assert search.needs is Needs.ANY


@pytest.mark.parametrize("query", ['"green tea"', "tea -milk"])
async def test_only_phrases_or_an_exclusion_are_taken_literally(
    relay: FakeRelay, query: str
) -> None:
    asked = asked_of(relay)
    async with Client(relay.url, robot) as client:
        await client.recall(query, systems="D")
    assert [filter_["search"] for filter_ in asked] == [query]


async def test_a_text_that_was_copied_is_told_once(relay: FakeRelay) -> None:
    asked_of(relay)
    relay.events = [
        note("The  kettle leaks", at=AT + 2),
        note("the kettle leaks", at=AT + 1),
        note("the kettle leaks", rover),
        note("the tap leaks"),
    ]
    async with Client(relay.url, robot) as client:
        answer = await client.recall("leaks", limit=2)
    assert {hit.text.strip() for hit in answer.hits} == {"The  kettle leaks", "the tap leaks"}


async def test_a_claim_says_what_supersedes_it_and_who_vouched(relay: FakeRelay) -> None:
    asked_of(relay)

    def signed(draft: Any, who: Any = robot) -> Any:
        return who.sign(draft.kind, draft.tags, draft.content, draft.created_at)

    old, new = (Entry(f"It holds {n}.", robot.pubkey, "x", SINCE) for n in ("one litre", "two"))
    relay.events = [
        signed(entry_draft(old)),
        signed(entry_draft(new)),
        signed(supersession_draft(old.hash, new.hash, created_at=AT)),
        signed(vouch_draft(old.hash, rover.pubkey, name=None, created_at=AT), rover),
    ]

    async def answer(visitor: Visitor, frame: list[Any]) -> None:
        frame[2].pop("search", None)
        await relay.answer(visitor, frame)

    relay.on["REQ"] = answer
    async with Client(relay.url, robot) as client:
        hits = (await client.recall("holds")).hits
    told = {hit.hashed: recalled(hit, robot.pubkey) for hit in hits}
    assert told[old.hash]["superseded_by"] == new.hash
    assert told[old.hash]["vouched_by"] == [attribution(rover.pubkey)]
    assert told[new.hash]["supersedes"] == [old.hash]


async def test_claims_are_told_although_what_is_said_of_them_cannot_be_read(
    relay: FakeRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other agents may store any number of large vouches."""
    entry = Entry("It holds two.", robot.pubkey, "x", SINCE)
    vouch = vouch_draft(entry.hash, rover.pubkey, name="r" * 5000, created_at=AT)
    drafts = ((entry_draft(entry), robot), (vouch, rover))
    relay.events = [
        who.sign(each.kind, each.tags, each.content, each.created_at) for each, who in drafts
    ]

    async def refuse(visitor: Visitor, frame: list[Any]) -> None:
        if "search" in frame[2]:
            await found(visitor, frame)
        else:
            await visitor.say("CLOSED", frame[1], "error: too busy")

    asked_of(relay)
    found = relay.on["REQ"]
    async with Client(relay.url, robot) as client:
        [hit] = [hit for hit in (await client.recall("holds")).hits if hit.hashed]
        assert hit.provenance is not None
        for answer, most, why in ((found, 5000, "more than 5000 bytes"), (refuse, 2**30, "busy")):
            relay.on["REQ"] = answer
            monkeypatch.setattr(recall_module, "_MAX_PROVENANCE_BYTES", most)
            hits, shortfall = await client.recall("holds")
            [hit] = [hit for hit in hits if hit.hashed]
            assert (hit.hashed, hit.provenance) == (entry.hash, None)
            assert why in shortfall
    assert recalled(hit, robot.pubkey)["provenance"] == "could not be read"


def test_a_system_has_a_letter_and_a_name() -> None:
    named = [letter_of(each) for each in ("x", "X", "Anamnesis", "transcripts", "Z", "")]
    assert named == ["X", "X", "X", "D", None, None]


async def test_more_is_asked_for_when_copies_leave_too_few(relay: FakeRelay) -> None:
    asked = asked_of(relay)
    relay.events = [note("the kettle leaks", at=AT + 9 - n) for n in range(9)]
    relay.events += [note(f"tap {n}") for n in range(5)]
    async with Client(relay.url, robot) as client:
        answer = await client.recall("leaks", limit=5)
        assert [filter_["limit"] for filter_ in asked] == [9, 14]
        assert [hit.copies for hit in answer.hits] == [8, 0, 0, 0, 0]
        del relay.events[1:4]
        await client.recall("leaks", limit=4)
    assert [filter_["limit"] for filter_ in asked[2:]] == [8, 12], "not without end"


async def test_records_that_are_no_memory_hide_nothing(relay: FakeRelay) -> None:
    """In an open group anybody may write some that a search finds."""
    asked = asked_of(relay)
    tags = [[["d", f"nomen:group:{n}"], ["h", "den"]] for n in range(60)]
    relay.events = [rover.sign(30078, each, "the kettle leaks", AT + 9) for each in tags]
    relay.events.append(note("the kettle leaks"))
    async with Client(relay.url, robot) as client:
        answer = await client.recall("leaks", limit=5)
    assert [hit.text.strip() for hit in answer.hits] == ["the kettle leaks"]
    assert [filter_["limit"] for filter_ in asked] == [9, 14, *[10] * len(recall_module.SYSTEMS)]


async def test_a_correction_does_not_count_as_a_copy(relay: FakeRelay) -> None:
    """It was hidden behind what it corrects, also behind what another author wrote."""
    asked_of(relay)
    texts = [
        "open it if p < 9",
        "open it if p > 9",
        "open it if P > 9!",
        "prefers C",
        "prefers C++",
    ]
    relay.events = [note(text, at=AT - n) for n, text in enumerate(texts)]
    relay.events += [note(text, rover, AT - 9) for text in ("Open it, if p < 9", texts[0])]
    async with Client(relay.url, robot) as client:
        hits = (await client.recall("open or prefers")).hits
    told = [(hit.text.strip(), hit.copies) for hit in hits]
    others = [(texts[3], 0), (texts[4], 0), ("Open it, if p < 9", 0)]
    assert sorted(told) == sorted([(texts[0], 1), (texts[1], 1), *others])


async def test_long_texts_that_begin_alike_are_both_told(relay: FakeRelay) -> None:
    """Only the beginning of a long text is compared by its words."""
    asked_of(relay)
    texts = [" ".join(f"step{n}" for n in range(2_000)) + end for end in (" first", " at last", "")]
    relay.events = [note(text, at=AT - n) for n, text in enumerate([*texts, texts[0]])]
    async with Client(relay.url, robot) as client:
        hits = (await client.recall("step1")).hits
    assert sorted((len(hit.text.strip()), hit.copies) for hit in hits) == sorted(
        [(len(texts[0]), 1), (len(texts[1]), 0), (len(texts[2]), 0)]
    )


def test_a_model_is_told_who_else_wrote_it() -> None:
    own, other = Hit("D", note("tea"), "tea\n"), Hit("X", note("x" * 5000, rover), "x" * 5000)
    assert "author" not in recalled(own, robot.pubkey)
    told = recalled(other, robot.pubkey)
    assert told["author"] == attribution(rover.pubkey)
    assert (told["system"], len(told["text"])) == ("anamnesis", 1000)

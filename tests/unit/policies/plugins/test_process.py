"""policies/plugins/process.py: real processes that answer, and that do anything else.

A fault of a plug-in is `error:`, never acceptance.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import orjson
import pytest

from policies.plugins import Chain, Plugin, Question
from policies.plugins.definition import Command
from policies.plugins.process import line_of
from policies.plugins.protocol import PluginLog
from policies.write_rule import Place
from relay.facts import Arrival, Origin
from relay.memory.secrets import SECRET_VARIABLES, without_secrets
from tests.cast import alice, bob
from tests.harness.patience import ANSWER_S
from tests.unit.policies.plugins.stage import (
    ARRIVAL,
    NOON,
    SILENT,
    note,
    process,
    said,
    until,
    words,
)

pytestmark = pytest.mark.process

# -- the protocol ---------------------------------------------------------------------------------


def asked(arrival: Arrival) -> dict[str, object]:
    event = note("two\nlines")
    line = line_of(Question(event, arrival))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    question = json.loads(line)
    assert question.pop("event") == orjson.loads(event.raw)
    return question  # type: ignore[no-any-return]


def test_a_question_has_the_keys_of_the_published_protocol_and_no_others() -> None:
    assert asked(ARRIVAL) == {
        "type": "new",
        "receivedAt": NOON,
        "sourceType": "IP4",
        "sourceInfo": "10.1.2.3",
    }


@pytest.mark.parametrize(
    ("origin", "address", "source"),
    [
        (Origin.WIRE, "2001:db8::1", ("IP6", "2001:db8::1")),
        (Origin.WIRE, None, ("IP4", "0.0.0.0")),
        (Origin.IMPORT, None, ("Import", "")),
    ],
)
def test_a_question_says_where_the_event_came_from(
    origin: Origin, address: str | None, source: tuple[str, str]
) -> None:
    place = None if address is None else ip_address(address)
    question = asked(Arrival(NOON, origin, frozenset(), place))
    assert (question["sourceType"], question["sourceInfo"]) == source


def test_a_question_names_the_key_that_logged_in_the_authors_before_others() -> None:
    def authed(*keys: str) -> object:
        return asked(Arrival(NOON, Origin.WIRE, frozenset(keys), None)).get("authed")

    assert authed() is None
    assert authed(bob.pubkey) == bob.pubkey
    assert authed(bob.pubkey, alice.pubkey) == alice.pubkey


async def test_a_process_accepts_and_refuses() -> None:
    async with Chain([process("say")]) as chain:
        assert await said(
            chain,
            "accept",
            "reject no links here",
            "reject restricted: not you",
            "reject rate-limited:  slow down ",
            "reject unheard: of",
            "reject",
            "accept but why",
        ) == [
            "",
            "blocked: no links here",
            "restricted: not you",
            "rate-limited: slow down",
            "blocked: unheard: of",
            "blocked: not accepted",
            "",
        ]


async def test_what_an_author_is_told_has_an_end() -> None:
    async with Chain([process("say")]) as chain:
        [told] = await said(chain, "reject " + "x" * 5000)
        assert told == "blocked: " + "x" * 500


async def test_a_refusal_without_words_is_a_refusal() -> None:
    async with Chain([process("no msg")]) as chain:
        assert await said(chain, "a") == ["blocked: not accepted"]


async def test_a_shadow_rejection_is_told_as_no_without_its_reason() -> None:
    async with Chain([process("say")]) as chain:
        assert await said(chain, "shadowReject spammer") == ["blocked: not accepted"]


async def test_answers_may_come_in_any_order() -> None:
    async with Chain([process("in pairs, backwards")]) as chain:
        told = await said(chain, "a", "b", "c", "d")
        assert told == ["blocked: the first", "", "blocked: the first", ""]


async def test_the_same_event_twice_in_a_batch_is_asked_about_twice() -> None:
    async with Chain([process("accept")]) as chain:
        assert await said(chain, "a", "a", "b") == ["", "", ""]


async def test_a_process_keeps_running_from_batch_to_batch() -> None:
    async with Chain([process("in pairs, backwards")]) as chain:
        first = asyncio.create_task(said(chain, "a", "b"))
        assert await first == ["blocked: the first", ""]
        assert await said(chain, "c", "d") == ["blocked: the first", ""]
        assert chain.failures == 0


async def test_more_than_a_pipe_holds_is_asked_at_once() -> None:
    async with Chain([process("accept")]) as chain:
        assert await said(chain, *[f"{n}{'x' * 100_000}" for n in range(64)]) == [""] * 64


async def test_a_process_runs_beside_its_policy_file(tmp_path: Path) -> None:
    plugin = process("where")
    assert isinstance(plugin.way, Command)
    there = Command(plugin.way.words, str(tmp_path), ())
    async with Chain([Plugin(Place("x", "a", 1), "x", there)]) as chain:
        assert await said(chain, "a") == [f"blocked: {tmp_path}"]


async def test_a_process_knows_the_environment_but_no_secret_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALLOWED", "these")
    monkeypatch.setenv("ROOKERY_KEY", alice.nsec)
    async with Chain([process("environment")]) as chain:
        assert await said(chain, "ALLOWED", "ROOKERY_KEY") == ["blocked: these", "blocked: not set"]
    assert without_secrets(dict.fromkeys((*SECRET_VARIABLES, "PATH"), "x")) == {"PATH": "x"}


# -- what is no answer ----------------------------------------------------------------------------

FAULTS = {
    "garbage": "did not answer in time",
    "no object": "printed a line that is no answer: it has no id",
    "no id": "printed a line that is no answer: it has no id",
    "no action": "printed an answer without accept, reject or shadowReject",
    "another word": "printed an answer without accept, reject or shadowReject",
    "msg is a number": "printed an answer whose msg is not a string",
    "another event": "answered for an event that it was not asked about",
    "hang": "did not answer in time",
    "exit": "exited with 3",
    "exit at once": "exited with 4",
    "die": "died of signal 9",
    "endless line": "printed a line that is too long",
    "endless lines": "printed too many lines that are not JSON",
    "close": "closed its output",
}


@pytest.mark.parametrize("behaviour", FAULTS)
async def test_what_is_no_answer_lets_nothing_in(
    behaviour: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deadline_ms = 60_000
    if FAULTS[behaviour] == "did not answer in time":
        monkeypatch.setattr("policies.plugins.process._START_S", 0.5)
        deadline_ms = 300
    elif FAULTS[behaviour] != "closed its output":
        monkeypatch.setattr("policies.plugins.process._MOMENT_S", ANSWER_S)
    problems: list[list[str]] = []
    async with Chain(
        [process(behaviour, deadline_ms)], changed=lambda lines: problems.append(list(lines))
    ) as chain:
        assert await said(chain, "quiet words", "and more") == [SILENT, SILENT]
        await until(lambda: chain.problems)
        assert chain.problems == [f"sifter: {FAULTS[behaviour]}"]
        assert problems[0] == [f"sifter: {FAULTS[behaviour]}"]
    assert FAULTS[behaviour] in caplog.text
    assert "quiet words" not in caplog.text


async def test_greetings_and_traces_are_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with Chain([process("speak")]) as chain:
        for words in ("quiet words", "reject loud ones", "more"):
            assert await said(chain, words) == [""]
        assert chain.failures == 0
    assert "printed a line that is not JSON; skipped" in caplog.text
    assert "quiet words" not in caplog.text


async def test_a_second_answer_for_one_event_ends_the_trust_in_the_process() -> None:
    async with Chain([process("twice")]) as chain:
        told = await said(chain, "a", "b")
        assert SILENT in told
        await until(lambda: chain.problems)


async def test_a_process_that_cannot_be_started_lets_nothing_in(tmp_path: Path) -> None:
    gone = Command((str(tmp_path / "gone"),), str(tmp_path), ())
    async with Chain([Plugin(Place("x", "a", 1), "x", gone)]) as chain:
        assert await said(chain, "a") == [SILENT]
        await until(lambda: chain.problems)
        assert chain.problems == ["x: cannot be started: No such file or directory"]


async def test_one_hanging_process_does_not_hold_the_events_behind_for_ever() -> None:
    async with Chain([process("hang at bad", 500)]) as chain:
        async with asyncio.timeout(ANSWER_S):
            assert await said(chain, "a", "b", "bad", "c") == ["", "", SILENT, SILENT]
            await until(lambda: chain.failures)


MALLORY = replace(ARRIVAL, address=ip_address("10.6.6.6"))


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["exit at bad", "hang at bad"])
async def test_an_event_that_ends_the_process_is_the_only_one_refused(
    behaviour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.plugins.process._PAUSES_S", (0.0, 600.0))
    async with Chain([process(behaviour, 1000)]) as chain:
        assert await said(chain, "a") == [""]
        for number in range(4):
            sender = replace(ARRIVAL, address=ip_address(f"10.6.6.{number}"))
            events = [(note("bad"), sender), (note("b"), ARRIVAL), (note("c"), ARRIVAL)]
            assert words(await chain.objections(events)) == [SILENT, "", ""]


@pytest.mark.slow
async def test_who_ends_the_process_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.plugins.process._PAUSES_S", (0.0, 600.0))
    async with Chain([process("exit at bad")]) as chain:
        assert await said(chain, "a", arrival=MALLORY) == [""]
        for _ in range(4):
            assert await said(chain, "bad", "b", arrival=MALLORY) == [SILENT, SILENT]
            assert await said(chain, "c") == [""]
        assert chain.failures == 2


@pytest.mark.slow
async def test_a_process_that_ended_is_started_again_and_the_admin_hears_both(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with Chain([process("exit at bad")]) as chain:
        assert await said(chain, "a") == [""]
        assert await said(chain, "bad") == [SILENT]
        await until(lambda: chain.failures)
        assert await said(chain, "b") == [""]
        assert chain.problems == []
        assert chain.failures == 1
    assert "exited with 3; restarting" in caplog.text
    assert "answers again" in caplog.text


@pytest.mark.slow
async def test_a_process_that_ends_between_events_is_there_for_the_next() -> None:
    async with Chain([process("answer and exit")]) as chain:
        assert await said(chain, "a") == [""]
        await until(lambda: chain.failures)
        assert await said(chain, "b") == [""]


@pytest.mark.slow
async def test_a_process_that_always_ends_is_started_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("policies.plugins.process._PAUSES_S", (0.0, 0.05, 30.0))
    async with Chain([process("exit at once")]) as chain:
        chain.start()
        await until(lambda: chain.failures == 3)
        assert await said(chain, "a") == [SILENT]  # at once: nobody waits for a pause to end
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        "restarting",
        "restarting in 0.05 s",
        "restarting in 30 s",
    ]


@pytest.mark.slow
async def test_a_process_has_time_to_start() -> None:
    async with Chain([process("start slowly", deadline_ms=50)]) as chain:
        assert await said(chain, "a") == [""]


@pytest.mark.slow
async def test_the_deadline_is_for_one_event_and_not_for_the_batch() -> None:
    async with Chain([process("slow", deadline_ms=1000)]) as chain:
        assert await said(chain, *"abcdefg") == [""] * 7  # 1.4 s together


async def test_complaints_are_logged_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with Chain([process("complain")]) as chain:
        assert await said(chain, *[str(n) for n in range(40)]) == [""] * 40
        await until(lambda: len(caplog.records) >= 20)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[:2] == ["a line", "x" * 300 + "…"]
    assert len(texts) == 20
    assert caplog.records[0].plugin == "sifter"  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_complaints_without_end_are_read_no_faster_than_the_log_can_bear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(PluginLog, "add", lambda _self, _level, text: lines.append(text))
    async with Chain([process("complain without end", 60_000)]) as chain:
        telling = asyncio.create_task(said(chain, "a"))
        await until(lambda: lines)
        await asyncio.sleep(0.5)
    assert await telling == [SILENT]
    assert len(lines) < 1000  # of 1,000 bytes each; unhindered they are some 100,000


# -- the end --------------------------------------------------------------------------------------

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def children(pid: int) -> set[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(word) for word in found}


def family() -> set[int]:
    """Every process that this one started, and those that they started."""
    ours = children(os.getpid())
    return ours | {each for pid in ours for each in children(pid)}


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "size"), [("accept", 1), ("hang", 1), ("hang on", 2)])
async def test_stopping_leaves_no_process_and_no_waiting_event(
    behaviour: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policies.plugins.process._STOP_S", 0.3)
    before = family()
    chain = Chain([process("accept", name="first"), process(behaviour, 60_000)])
    telling = asyncio.create_task(said(chain, "a"))
    await until(lambda: len(family() - before) == 1 + size)
    started = family() - before
    if behaviour == "accept":
        await telling
    await chain.stop()
    assert await telling == ["" if behaviour == "accept" else SILENT]
    await until(lambda: not any(map(runs, started)))
    assert await said(chain, "b") == [SILENT]  # nothing is let in by one that is no more


@needs_proc
@pytest.mark.slow
async def test_the_end_waits_for_what_a_reload_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policies.plugins.process._STOP_S", 0.3)
    monkeypatch.setattr("policies.plugins.process._START_S", 0.2)
    before = children(os.getpid())
    async with Chain([process("hang on", 200)]) as chain:
        assert await said(chain, "a") == [SILENT]  # it is being killed now
        chain.enforce([])
        await asyncio.sleep(0.05)
    assert children(os.getpid()) == before

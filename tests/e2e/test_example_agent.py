"""The example agent of deploy/examples/agent, as a process: killed, starved of its relay, told to
be silent, and never answering twice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from relay.client import Client, Snowclaw, Timeouts
from relay.nostr.event import weight_of
from relay.nostr.nip59 import opened, unsigned, wrapped
from tests import cast
from tests.harness.fake_relay import FakeRelay
from tests.harness.patience import ANSWER_S
from tests.harness.relay_program import Rookery, command, eventually, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from relay.client import Subscription
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "deploy/examples/agent/agent.py"
HERE_I_AM = "Here I am. Tell me `remember: …`, or ask: what do you know of me?"


class Program:
    """The agent's process, if any; its home is a folder of the test."""

    def __init__(self, home: Path, url: str, key: SecretKey) -> None:
        self.lines: list[str] = []
        self._home, self._url, self._key = home, url, key
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, *args: str) -> None:
        self._home.mkdir(exist_ok=True)
        key_file = self._home / "agent.nsec"
        key_file.write_text(self._key.nsec)
        self.lines.clear()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            "--relay",
            self._url,
            "--key-file",
            str(key_file),
            "--group",
            "tea",
            "--owner",
            cast.owner.npub,
            *args,
            cwd=self._home,
            env={**os.environ, "HOME": str(self._home)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def listening(self) -> None:
        await self.says("listening in tea")

    async def is_silent_about(self, message: Event) -> None:
        """With `--debug`. What it is told later could come before it has looked at the message."""
        await self.says(f"silent about {message.id[:8]}")

    async def says(self, text: str) -> None:
        async with until(f"{text!r} in {self.lines}") as tries:
            async for _ in tries:
                if any(text in line for line in self.lines):
                    return

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self.lines.append(line.decode().rstrip())

    async def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        assert await self.exit_code() == -signal.SIGKILL

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """… once it has ended."""
        process, self._process = self._process, None
        assert process is not None
        assert self._reading is not None
        code = await asyncio.wait_for(process.wait(), ANSWER_S)
        await self._reading
        assert not any("Traceback" in line for line in self.lines), self.lines
        return code

    async def __aenter__(self) -> Program:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self.exit_code()


def program(folder: Path, rookery: Rookery, key: SecretKey = cast.robot) -> Program:
    return Program(folder / "agent", rookery.url, key)


class Phone:
    """Alice's; its clock may run ahead."""

    def __init__(self, client: Client, answers: Subscription) -> None:
        self._client, self._answers = client, answers

    async def says(self, text: str, *, to: SecretKey | None = None) -> Event:
        tags = [["h", "tea"], *([] if to is None else [["p", to.pubkey]])]
        return await self._client.send(9, text, tags)

    async def hears(self, question: Event) -> str:
        """The next thing that the agent says, which answers this."""
        async with asyncio.timeout(ANSWER_S):
            answer = await anext(self._answers)
        assert answer.tag("q") == question.id, answer
        return answer.content

    async def number_of_answers(self) -> int:
        return await self._client.count({"kinds": [9], "authors": [cast.robot.pubkey]})

    async def next_second(self) -> int:
        """By its clock: later than all that was said before."""
        before = self._client.now()
        await eventually("the clock goes on", lambda: self._client.now() > before)
        return self._client.now()


@contextlib.asynccontextmanager
async def phone(url: str, ahead_s: int = 0) -> AsyncIterator[Phone]:
    wanted = {"kinds": [9], "authors": [cast.robot.pubkey], "#h": ["tea"]}
    timeouts = Timeouts(first_backoff_s=0.05, max_backoff_s=0.2)
    async with (
        Client(
            url, cast.alice, timeouts=timeouts, now=lambda: int(time.time()) + ahead_s
        ) as client,
        client.subscribe(wanted) as answers,
    ):
        await answers.eose
        yield Phone(client, answers)


async def configure(url: str, mode: str, at: int) -> None:
    """By the owner, at a time after what was said so far."""
    async with (
        Client(url, cast.owner, now=lambda: at) as client,
        Snowclaw(client, cast.owner, cast.owner.npub) as owner,
    ):
        await owner.set_config("group:tea", respond_mode=mode)


async def by_owner(rookery: Rookery, *args: str) -> str:
    key_file = rookery.folder.parent / "owner.nsec"
    key_file.write_text(cast.owner.nsec)
    code, text = await command(*args, "--relay", rookery.url, "--key-file", str(key_file))
    assert code == 0, text
    return text


@contextlib.asynccontextmanager
async def served(folder: Path, **limits: int) -> AsyncIterator[Rookery]:
    """With a group in which nobody is yet but its owner."""
    async with Rookery(folder / "relay") as rookery:
        await rookery.init("--owner", cast.owner.npub, "--agent", cast.robot.npub)
        rookery.set_up("limits", "\n".join(f"{name} = {limits[name]}" for name in limits))
        await rookery.start()
        await by_owner(rookery, "group", "create", "tea")
        yield rookery


async def let_in(rookery: Rookery) -> None:
    await by_owner(rookery, "group", "add", "tea", cast.alice.npub)
    await by_owner(rookery, "group", "add", "tea", cast.robot.npub, "--role", "agent")


@pytest.mark.proves("S-35")
async def test_it_waits_to_be_let_in_then_answers_and_remembers(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await robot.start()
        await robot.says(f"rookery group add tea {cast.robot.pubkey} --role agent")
        await let_in(rookery)
        await robot.listening()
        async with phone(rookery.url) as alice:
            await alice.says("good morning")
            assert await alice.hears(await alice.says("hello Robot")) == HERE_I_AM
            assert await alice.hears(await alice.says("hello", to=cast.robot)) == HERE_I_AM
            told = await alice.hears(await alice.says("robot, what do you know of me?"))
            assert told == "Nothing yet."
            told = await alice.hears(await alice.says("robot, remember: I like green tea"))
            assert told == "I will remember that."
            told = await alice.hears(await alice.says("Robot, what do you know of me now?"))
            assert told == "I know of you:\n- I like green tea"
        shown = await by_owner(rookery, "memory", "get", cast.alice.npub)
        assert "I like green tea" in shown


async def test_it_answers_a_direct_message_in_one(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await let_in(rookery)
        await robot.start()
        await robot.listening()
        async with Client(rookery.url, cast.alice) as alice, phone(rookery.url) as in_group:
            now = alice.now()
            said = unsigned(alice.pubkey, 14, [["p", cast.robot.pubkey]], "hello", now)
            wrap = wrapped(said, cast.alice, cast.robot.pubkey, cast.rover, (now, now))
            async with alice.subscribe({"kinds": [1059], "#p": [alice.pubkey]}) as answers:
                await alice.publish(wrap)
                async with asyncio.timeout(ANSWER_S):
                    answer = opened(await anext(answers), cast.alice)
            assert (answer.content, answer.tag("e")) == (HERE_I_AM, said.id)
            assert await in_group.number_of_answers() == 0


async def test_it_comes_in_by_an_invite(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await by_owner(rookery, "group", "invite", "tea", "--code", "let me in, please")
        await robot.start("--invite", "let me in, please")
        await robot.listening()


@pytest.mark.proves("S-18", "S-35")
async def test_it_obeys_its_owner_at_once_and_leaves_another_agent_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await let_in(rookery)
        await by_owner(rookery, "group", "add", "tea", cast.rover.npub, "--role", "agent")
        await robot.start("--debug")
        await robot.listening()
        async with phone(rookery.url) as alice, Client(rookery.url, cast.rover) as rover:
            await configure(rookery.url, "none", await alice.next_second())
            await robot.is_silent_about(await alice.says("robot, are you there?"))
            await configure(rookery.url, "all", await alice.next_second())
            assert await alice.hears(await alice.says("anybody?")) == HERE_I_AM
            await rover.send(9, "robot, are you there?", [["h", "tea"]])
            assert await alice.hears(await alice.says("still there?")) == HERE_I_AM


@pytest.mark.parametrize("ahead_s", [0, 30])
async def test_killed_it_answers_what_it_missed_once_and_nothing_old(
    tmp_path: Path, ahead_s: int
) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await let_in(rookery)
        await robot.start("--debug")
        await robot.listening()
        async with phone(rookery.url, ahead_s) as alice:
            await alice.hears(await alice.says("robot, one"))
            await configure(rookery.url, "none", await alice.next_second())
            await robot.is_silent_about(await alice.says("robot, two: it was told to be silent"))
            await configure(rookery.url, "mention", await alice.next_second())
            await alice.hears(await alice.says("robot, three"))

            await robot.kill()
            missed = await alice.says("robot, remember: I was here")
            await alice.says("nobody in particular?")
            # As if it had died between the note and the answer.
            async with Snowclaw(rookery.url, cast.robot, cast.owner.npub) as claw:
                claw.note_user(cast.alice.npub, "I was here", group="tea")
            for file in (tmp_path / "agent").rglob("*.cache*"):
                file.unlink()
            await alice.next_second()
            await robot.start()
            assert await alice.hears(missed) == "I will remember that."
            told = await alice.hears(await alice.says("robot, what do you know of me?"))
            assert told == "I know of you:\n- I was here"

            await robot.kill()
            await alice.next_second()
            await robot.start()
            await robot.listening()
            await alice.hears(await alice.says("robot, the last one"))
            assert await alice.number_of_answers() == 5


async def test_it_goes_on_when_the_relay_is_killed_under_it(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery) as robot:
        await let_in(rookery)
        await robot.start()
        await robot.listening()
        async with phone(rookery.url) as alice:
            await alice.hears(await alice.says("robot, before"))
            await rookery.stop(signal.SIGKILL)
            await rookery.start_again()
            told = await alice.hears(await alice.says("robot, remember: it came back"))
            assert told == "I will remember that."
            # It hears the question when the relay is gone already.
            robot.send_signal(signal.SIGSTOP)
            question = await alice.says("robot, what do you know of me?")
            await rookery.stop(signal.SIGKILL)
            robot.send_signal(signal.SIGCONT)
            await alice.next_second()
            await rookery.start_again()
            assert await alice.hears(question) == "I know of you:\n- it came back"
            assert await alice.number_of_answers() == 3
        await rookery.stop(signal.SIGKILL)
        robot.send_signal(signal.SIGINT)  # Ctrl-C
        assert await robot.exit_code() == 0


async def test_it_says_so_when_it_may_not_remember(tmp_path: Path) -> None:
    async with served(tmp_path) as rookery, program(tmp_path, rookery, cast.bob) as robot:
        await by_owner(rookery, "group", "add", "tea", cast.alice.npub, cast.bob.npub)
        await robot.start()
        await robot.listening()
        wanted = {"kinds": [9], "authors": [cast.bob.pubkey]}
        async with Client(rookery.url, cast.alice) as alice, alice.subscribe(wanted) as answers:
            await alice.send(9, "robot, remember: this", [["h", "tea"]])
            answer = await anext(answers)
            assert answer.content == "I cannot remember that here."
        await robot.says("restricted: only agents may write memory")


async def test_what_one_member_had_it_note_keeps_no_other_from_being_remembered(
    tmp_path: Path,
) -> None:
    """It told each of the refusal of one record, although it had stored their notes."""

    async def told(member: Client, text: str) -> str:
        wanted = {"kinds": [9], "authors": [cast.robot.pubkey], "#h": ["tea"]}
        question = await member.send(9, f"robot, remember: {text}", [["h", "tea"]])
        async with (
            asyncio.timeout(ANSWER_S),
            member.subscribe(wanted | {"#q": [question.id]}) as answers,
        ):
            return (await anext(answers)).content

    async with served(tmp_path, max_message_length=6_000) as rookery:
        await let_in(rookery)
        await by_owner(rookery, "group", "add", "tea", cast.bob.npub)
        async with (
            program(tmp_path, rookery) as robot,
            Client(rookery.url, cast.alice) as alice,
            Client(rookery.url, cast.bob) as bob,
        ):
            await robot.start()
            await robot.listening()
            refusal = "I cannot remember that here."
            assert await told(alice, "x" * 2_001) == refusal
            await robot.says("a text of 2001 characters, at most 2000 allowed")
            answers = [await told(alice, letter * 1_900) for letter in "abcd"]
            assert (answers[0], answers[-1]) == ("I will remember that.", refusal)
            await robot.says("the relay accepts no message of")
            assert await told(bob, "I like coffee") == "I will remember that."
            wanted = {"kinds": [30078], "authors": [cast.robot.pubkey]}
            async with (
                asyncio.timeout(ANSWER_S),
                Client(rookery.url, cast.owner) as owner,
                owner.subscribe(wanted) as records,
            ):
                while "I like coffee" not in (await anext(records)).content:
                    pass  # it may still be in the agent's queue


async def test_faults_are_one_line(tmp_path: Path) -> None:
    async with Program(tmp_path / "agent", "ws://127.0.0.1:1", cast.robot) as robot:
        await robot.start()
        await robot.says("cannot reach ws://127.0.0.1:1: connection refused")
        assert await robot.exit_code() == 1
        assert len(robot.lines) == 1


async def test_who_asks_very_much_leaves_others_room_for_their_questions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent_class = runpy.run_path(str(PROGRAM))["Agent"]
    async with FakeRelay() as fake, Client(fake.url, cast.robot) as client:
        now = client.now()
        own = cast.bob.sign(9, [["h", "tea"]], "robot?", now - 60)
        many = [cast.alice.sign(9, [["h", "tea"]], f"robot? {n}", now - n) for n in range(50)]
        fake.events = [own, *many]
        limits = agent_class.missed.__globals__
        limits["MISSED_OF_ONE"] = 3 * weight_of(many[0])
        agent = agent_class(client, SimpleNamespace(should_respond=lambda _: True), None, "tea")
        assert await agent.missed(cast.owner.pubkey) == [own, *many[2::-1]]
        assert caplog.messages == ["47 messages of the last day are not answered: too many"]
        limits["MISSED_BYTES"] = weight_of(many[0])
        assert await agent.missed(cast.owner.pubkey) == many[:1]
        assert caplog.messages[1:] == ["50 messages of the last day are not answered: too many"]


def test_what_others_answer_does_not_control_the_terminal() -> None:
    shown = runpy.run_path(str(PROGRAM.with_name("say.py")))["printable"]
    assert shown("a\x1b[2J\x9b31m\rb\u202e\nc") == "a�[2J�31m�b�\nc"


def test_what_relays_answer_is_logged_without_controls() -> None:
    shown = runpy.run_path(str(PROGRAM))["Printable"]("%(message)s")
    record = logging.LogRecord("agent", logging.INFO, "", 0, "no: %s", ("a\x1b[2J\rb",), None)
    assert shown.format(record) == "no: a�[2J�b"

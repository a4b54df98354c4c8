"""Snowclaw, `rookery memory`, `config` and `context` on a real relay: what one says the other
hears, nothing is lost when the relay dies, and nobody is given what is not theirs."""

from __future__ import annotations

import json
import re
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from relay.client import Client, Snowclaw
from relay.client.writer import Outcome
from relay.memory.fence import fence_head
from relay.memory.snowclaw.context import Section
from relay.nostr.filters import Filter
from relay.nostr.keys import SecretKey
from relay.nostr.nip09 import address_tags
from relay.nostr.nip59 import opened, unsigned, wrapped
from tests import cast
from tests.golden import document
from tests.harness.relay_program import Rookery, eventually, outputs, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    Session = Callable[..., Coroutine[Any, Any, str]]

pytestmark = pytest.mark.slow

GOLDEN: dict[str, Any] = document("memory/snowclaw.json")
ALICE = f"snowclaw:memory:npub:{cast.alice.pubkey[:32]}"
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


@asynccontextmanager
async def served(
    folder: Path, owner: SecretKey = cast.owner, agent: SecretKey = cast.robot
) -> AsyncIterator[Rookery]:
    rookery = Rookery(folder)
    await rookery.init("--owner", owner.pubkey, "--agent", agent.pubkey)
    async with rookery:
        await rookery.start()
        yield rookery


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    """`await session(rookery, key, "memory", "list")`: what one finished command printed."""
    monkeypatch.setenv("HOME", str(tmp_path))

    async def ran(rookery: Rookery, key: SecretKey, *args: str, code: int = 0) -> str:
        monkeypatch.setenv("ROOKERY_RELAY", rookery.url)
        monkeypatch.setenv("ROOKERY_KEY", key.nsec)
        ended, out, err = await outputs(*args)
        assert ended == code, (args, out, err)
        return out.decode() if code == 0 else err

    return ran


async def with_groups(
    rookery: Rookery,
    session: Session,
    members: dict[str, list[SecretKey]],
    owner: SecretKey = cast.owner,
) -> None:
    for group, keys in members.items():
        await session(rookery, owner, "group", "create", group)
        await session(rookery, owner, "group", "add", group, *(key.npub for key in keys))


def delete_files(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.proves("S-20", "S-23", "S-25", "G-26")
async def test_a_session_at_a_terminal(tmp_path: Path, session: Session) -> None:
    alice, robot, owner = cast.alice, cast.robot, cast.owner
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"techteam": [robot, alice]})

        async def agent(*args: str, code: int = 0) -> str:
            return await session(rookery, robot, *args, code=code)

        assert await agent("memory", "get", alice.npub, code=1) == f"no memory for {alice.npub}\n"
        out = await agent(
            "memory", "set", alice.npub, "--note", "Likes tea", "--preference", "language=en"
        )
        assert re.fullmatch(rf"stored [0-9a-f]{{8}} {ALICE}\n", out)
        out = await agent("memory", "set", "group:techteam", "--purpose", "To build")
        assert re.fullmatch(r"stored [0-9a-f]{8} snowclaw:memory:group:techteam\n", out)
        await agent("memory", "set", "city", "Lisbon")
        shown = await agent("memory", "get", alice.pubkey)
        assert "preferences  language=en\nnotes        Likes tea\n" in shown
        listed = (await agent("memory", "list")).splitlines()
        for line, key in zip(
            listed, ["snowclaw:core:city", "snowclaw:memory:group:techteam", ALICE], strict=True
        ):
            assert re.fullmatch(rf"{key}  {TIME}  {robot.npub[:12]}", line)

        args = ("config", "set", "group:techteam", "respond_mode=all", "context_history=30")
        said = await agent(*args, code=1)
        assert "restricted: only an owner may write config" in said
        out = await session(rookery, owner, *args)
        assert re.fullmatch(r"stored [0-9a-f]{8} snowclaw:config:group:techteam\n", out)
        await session(rookery, owner, "config", "set", "group:techteam", "respond_mode=mention")
        for reader in (owner, robot):
            assert await session(rookery, reader, "config", "get", "group:techteam") == (
                "respond_mode=mention (group)\ncontext_history=30 (group)\n"
            )

        for other in (alice, cast.stranger):
            said = await session(rookery, other, "config", "get", "group:techteam", code=1)
            assert "refused: restricted: " in said

        said = await session(rookery, owner, "memory", "set", alice.npub, "--note", "VIP", code=1)
        assert "restricted: only agents may write memory" in said
        hit = json.loads(await agent("memory", "search", "liked teas", "--json"))
        assert [(row["system"], row["d"]) for row in hit] == [("S", ALICE)]
        made = await agent("context", "techteam", "--message", "Hi", "--sender", alice.npub)
        memory = "# GROUP MEMORY SUMMARY\nPurpose: To build\n\n# SENDER CONTEXT\n"
        assert f"{fence_head('snowclaw group techteam', robot.npub)}\n{memory}" in made

        # A member reads what is the group's, an outsider nothing.
        assert "group:techteam" in await session(rookery, alice, "memory", "list")
        assert await session(rookery, cast.stranger, "memory", "list") == ""

        assert await agent("memory", "forget", alice.npub) == f"forgot {ALICE}\n"
        assert await agent("memory", "forget", "city") == "forgot snowclaw:core:city\n"
        (line,) = (await agent("memory", "list")).splitlines()
        assert line.startswith("snowclaw:memory:group:techteam")


@pytest.mark.proves("S-22", "S-23")
async def test_an_owner_s_note_by_the_agent_s_key_and_by_the_owner_s_own(
    tmp_path: Path, session: Session
) -> None:
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [cast.robot]})
        async with Snowclaw(rookery.url, cast.robot, cast.owner.npub) as claw:
            await claw.start()
            toml = tmp_path / ".config/rookery/client.toml"
            toml.parent.mkdir(parents=True)
            (tmp_path / "bot").write_text(cast.robot.nsec)
            toml.write_text('agent_key_file = "~/bot"\n')
            args = ("memory", "set", cast.alice.npub, "--group", "tea", "--note")
            await session(rookery, cast.owner, *args, "by the agent")
            toml.unlink()

            policy = rookery.folder / "policies/50-notes.toml"
            policy.write_text("[memory]\nowner_annotations = true\n")
            async with until("the owner may write") as tries:
                async for _ in tries:
                    code, _, _ = await outputs(*args, "by the owner")
                    if code == 0:
                        break
            async with until("the agent knows both") as tries:
                async for _ in tries:
                    memory = claw.user(cast.alice.npub)
                    if memory is not None and len(memory.owner_notes) == 2:
                        break
            assert memory is not None
            assert memory.owner_notes == ("by the agent", "by the owner")
        shown = await session(rookery, cast.robot, "memory", "get", cast.alice.npub)
        assert "notes        owner: by the agent\n             owner: by the owner\n" in shown


@pytest.mark.proves("S-31")
@pytest.mark.parametrize("fast", [0, 60])
async def test_what_a_machine_wrote_offline_and_what_another_stored_are_both_kept(
    tmp_path: Path,
    session: Session,
    fast: int,
) -> None:
    """By a clock that is right or fast: the version that waited is the older or the newer one."""

    @asynccontextmanager
    async def machine(name: str, ahead: int = 0) -> AsyncIterator[Snowclaw]:
        robot, folder = cast.robot, tmp_path / name
        async with (
            Client(
                rookery.url, robot, now=lambda: int(time.time()) + ahead, start_offline=True
            ) as client,
            Snowclaw(client, robot, cast.owner.npub, folder=folder) as claw,
        ):
            yield claw

    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [cast.robot]})
        async with machine("one", fast) as claw:
            await claw._client.wait_connected()
            claw.note_user(cast.alice.npub, "of both")
            claw.add_theme("tea", "of both")
            await claw.flush()
            await rookery.stop(signal.SIGKILL)
        async with machine("one", fast) as claw:
            claw.note_user(cast.alice.npub, "of one")
            claw.set_preference(cast.alice.npub, "tea", "green")
            claw.add_theme("tea", "of one")
            assert {each.outcome for each in await claw.flush()} == {Outcome.QUEUED}
        await rookery.start_again()
        async with machine("other") as claw:
            await claw._client.wait_connected()
            claw.note_user(cast.alice.npub, "of the other")
            claw.add_theme("tea", "of the other")
            assert {each.outcome for each in await claw.flush()} == {Outcome.STORED}
        async with machine("one", fast) as claw:
            async with until("everything is sent") as tries:
                async for _ in tries:
                    if await claw.waiting() == 0:
                        break
            assert await claw.refused() == []
        async with machine("fresh") as claw:
            await claw._client.wait_connected()
            await claw.load()
            user, group = claw.user(cast.alice.npub), claw.group("tea")
    assert user is not None
    assert group is not None
    every = ["of both", "of one", "of the other"]
    assert sorted(user.notes) == sorted(group.themes) == every
    assert user.preferences == {"tea": "green"}


@pytest.mark.proves("S-23")
async def test_an_owners_private_note_is_read_by_no_member_of_the_group_that_she_was_seen_in(
    tmp_path: Path, session: Session
) -> None:
    robot, alice, bob, owner = cast.robot, cast.alice, cast.bob, cast.owner
    private, shared = "owes me money", "chairs the meeting"
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [robot, alice, bob], "den": [robot, bob]})
        async with (
            Client(rookery.url, alice) as phone,
            Snowclaw(rookery.url, robot, owner.npub) as claw,
        ):
            await claw.start()
            messages = claw.messages()
            hello = anext(messages)
            await phone.send(9, "hello", [["h", "tea"]])
            await hello
            claw.note_user(alice.npub, "says hello", group="tea")
            await claw.flush()
        toml = tmp_path / ".config/rookery/client.toml"
        toml.parent.mkdir(parents=True)
        (tmp_path / "bot").write_text(robot.nsec)
        toml.write_text('agent_key_file = "~/bot"\n')
        args = ("memory", "set", alice.npub, "--note")
        told = json.loads(await session(rookery, owner, *args, private, "--json"))
        assert told["read_by"] == "its author and the owner"
        told = json.loads(await session(rookery, owner, *args, shared, "--group", "tea", "--json"))
        assert told["read_by"] == "group:tea"
        said = await session(rookery, owner, *args, "x", "--group", "den", code=1)
        assert "read by group:tea, not by group:den" in said
        for member in (alice, bob):
            async with Client(rookery.url, member) as phone:
                rows = await phone.query(Filter(kinds=frozenset({30078, 78})))
            texts = "".join(row.content for row in rows)
            assert shared in texts
            assert private not in texts
        for reader in (owner, robot):
            shown = await session(rookery, reader, "memory", "get", alice.npub)
            of_group, apart = sorted(shown.split("\n\n"), key=lambda one: private in one)
            assert shared in of_group
            assert "read by      group:tea\n" in of_group
            assert private not in of_group
            assert private in apart
            assert "read by      its author and the owner\n" in apart


@pytest.mark.proves("S-22")
async def test_an_owners_own_record_that_a_group_reads_takes_no_private_note(
    tmp_path: Path, session: Session
) -> None:
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [cast.robot]})
        await session(rookery, cast.robot, "memory", "set", cast.alice.npub, "--note", "seen")
        policy = rookery.folder / "policies/50-notes.toml"
        policy.write_text("[memory]\nowner_annotations = true\n")
        args = ("memory", "set", cast.alice.npub, "--note")
        await session(rookery, cast.owner, "memory", "get", cast.alice.npub)
        async with until("the owner may write") as tries:
            async for _ in tries:
                code, _, _ = await outputs(*args, "shared", "--group", "tea")
                if code == 0:
                    break
        said = await session(rookery, cast.owner, *args, "between us", code=1)
        assert "read by group:tea" in said
        shown = await session(rookery, cast.owner, "memory", "get", cast.alice.npub)
        assert "owner: shared (read by group:tea)\n" in shown
        assert "between us" not in shown


@pytest.mark.proves("S-18", "S-28", "S-31", "S-32")
async def test_an_agent_hears_its_owner_and_remembers_through_the_death_of_the_relay(
    tmp_path: Path, session: Session
) -> None:
    robot, alice = cast.robot, cast.alice
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [robot, alice]})
        async with (
            Client(rookery.url, alice) as phone,
            Snowclaw(
                rookery.url, robot, cast.owner.npub, folder=tmp_path / "agent", names=["robot"]
            ) as claw,
        ):
            await claw.start()
            assert claw.shortfall == ""
            messages = claw.messages()
            hello = anext(messages)
            await phone.send(0, '{"name":"alice"}')
            await phone.send(9, "hello", [["h", "tea"]])
            assert not claw.should_respond(await hello)
            await session(
                rookery,
                cast.owner,
                "config",
                "set",
                "group:tea",
                "respond_mode=all",
                "context_history=1",
            )
            await eventually(
                "the configuration is there", lambda: claw.respond_mode("tea") == "all"
            )
            later = phone.now() + 1  # of one second the lowest id would be the newest
            await phone.publish(phone.sign(9, "are you there?", [["h", "tea"]], created_at=later))
            question = await anext(messages)
            assert claw.should_respond(question)
            assert [message.content for message in claw.history("tea")] == ["are you there?"]
            assert claw.history("tea")[0].sender == "alice"

            claw.note_user(alice.npub, "asks a lot")
            await claw.flush()
            await rookery.stop(signal.SIGKILL)
            await eventually("it knows that the relay is away", lambda: not claw.is_online)
            claw.note_user(alice.npub, "noted while it was away")
            (written,) = await claw.flush()
            assert written.outcome is Outcome.QUEUED
            await rookery.start_again()
            async with until("what waited is stored") as tries:
                async for _ in tries:
                    if await claw.waiting() == 0 and claw.is_online:
                        break
            await messages.aclose()
            known = claw.users(), claw.groups()
            assert known[0][alice.pubkey[:32]].notes == ("asks a lot", "noted while it was away")
        delete_files(tmp_path / "agent")
        async with Snowclaw(rookery.url, robot, cast.owner.npub, folder=tmp_path / "agent") as claw:
            await claw.start()
            assert (claw.users(), claw.groups()) == known
            await claw.backfill()
            assert [message.content for message in claw.history("tea")] == ["are you there?"]


@pytest.mark.proves("S-18", "S-37")
async def test_names_and_members_are_those_of_now_and_the_system_prompt_tells_them(
    tmp_path: Path, session: Session
) -> None:
    robot, alice, bob, owner = cast.robot, cast.alice, cast.bob, cast.owner
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"techteam": [robot, alice]})
        await session(rookery, owner, "group", "edit", "techteam", "--name", "Tech team")

        def members() -> dict[str, str]:
            memory = claw.group("techteam")
            return {} if memory is None else dict(memory.members)

        async with (
            Client(rookery.url, alice) as phone,
            Client(rookery.url, owner) as boss,
            Snowclaw(rookery.url, robot, owner.npub, names=["Snowclaw"]) as claw,
        ):
            await phone.send(0, '{"name":"k0"}')
            await boss.send(0, '{"name":"Ada"}')
            await claw.start()
            messages = claw.messages()
            hello = anext(messages)
            first = await phone.send(9, "Snowclaw, hello", [["h", "techteam"]])
            claw.set_purpose("techteam", "Core team coordination")
            question = await hello
            assert members()[alice.npub] == "k0"
            renamed = phone.sign(0, '{"name":"Clarity"}', created_at=first.created_at + 9)
            await phone.publish(renamed)
            await session(rookery, owner, "group", "add", "techteam", bob.npub)
            await eventually(
                "the agent knows who came, and by which name",
                lambda: members().get(alice.npub) == "Clarity" and bob.npub in members(),
            )
            await session(rookery, owner, "group", "remove", "techteam", bob.npub)
            await eventually("the agent knows who left", lambda: bob.npub not in members())
            prompt = claw.assemble(question, "Be brief.", 4_000).sections[Section.SYSTEM]
            assert prompt.startswith(f"You are Snowclaw ({robot.npub}), an agent on Nostr.\n")
            assert f"Your owner is Ada ({owner.npub}).\n" in prompt
            place = 'You are in the group #techteam, called "Tech team".'
            assert f"{place} Its purpose: Core team coordination\n" in prompt
            assert prompt.endswith("\nBe brief.")
            await claw.flush()
        shown = json.loads(await session(rookery, robot, "memory", "get", alice.npub, "--json"))
        assert [name for name, _ in shown["display_names"]] == ["k0", "Clarity"]
        assert shown["first_seen"] == first.created_at


@pytest.mark.proves("S-23", "S-25")
async def test_an_owner_clears_memory_with_their_own_key(tmp_path: Path, session: Session) -> None:
    robot, alice, bob, owner = cast.robot, cast.alice, cast.bob, cast.owner
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [robot, alice]})
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            await claw.start()
            for user in (alice, bob):
                claw.note_user(user.npub, "owes me money")
            claw.set_purpose("tea", "to drink")
            await claw.flush()
            claw.note_user(alice.npub, "not saved yet")
            said = await session(rookery, owner, "memory", "forget", alice.npub)
            assert said == f"asked {robot.npub} to forget {ALICE}\n"
            await eventually("the agent did so", lambda: claw.user(alice.npub) is None)
            assert claw.user(bob.npub) is not None
            assert claw.unsaved == 0
        await session(rookery, owner, "memory", "get", alice.npub, code=1)
        # An agent that does not run does so when it starts.
        await session(rookery, owner, "memory", "forget", "group:tea")
        await session(rookery, robot, "memory", "get", "group:tea")
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            await claw.start()
            await eventually("the agent did so", lambda: claw.group("tea") is None)
            claw.set_purpose("tea", "to begin anew")
            await claw.flush()
        await session(rookery, owner, "memory", "get", "group:tea")
        said = await session(rookery, alice, "memory", "forget", "group:tea", code=1)
        assert f"only {robot.npub}" in said
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            await claw.start()
            assert claw.group("tea") is not None


@pytest.mark.proves("S-25")
@pytest.mark.parametrize("asks", ["for each", "for all at once"])
async def test_no_member_learns_by_a_deletion_that_there_was_a_private_note(
    tmp_path: Path, session: Session, asks: str
) -> None:
    """All that it deleted was named in one kind 5, which the group read for its record."""
    robot, alice, owner = cast.robot, cast.alice, cast.owner
    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [robot, alice]})
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            claw.note_user(alice.npub, "of the group", group="tea")
            await claw.flush()
            await claw.annotate_privately(alice.npub, "for the owner")
        async with Client(rookery.url, robot) as client:
            stored = await client.query({"kinds": [30078]})
        assert len(stored) == 2
        deletions: dict[str, Any] = {"kinds": [5], "authors": [robot.pubkey]}
        if asks == "for each":
            await session(rookery, owner, "memory", "forget", alice.npub)
            deletions["authors"].append(owner.pubkey)
        else:
            names = [tag for e in stored for tag in (["e", e.id], *address_tags([e]))]
            async with Client(rookery.url, owner) as client:
                await client.send(5, "", [*names, ["k", "30078"], ["p", robot.pubkey]])
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            await claw.start()
            assert claw.user(alice.npub) is None
        async with Client(rookery.url, robot) as client:
            assert await client.query({"kinds": [30078]}) == []
        async with Client(rookery.url, alice) as client:
            read = await client.query(deletions)
        assert {value for e in read for value in e.tag_values("a")} == {
            f"30078:{robot.pubkey}:{ALICE}"
        }
        (private,) = (event for event in stored if event.d != ALICE)
        assert not any(private.id in e.tag_values("e") for e in read)


@pytest.mark.proves("S-17", "S-28", "S-33")
async def test_the_global_configuration_applies_to_direct_messages(
    tmp_path: Path, session: Session
) -> None:
    robot, alice, owner = cast.robot, cast.alice, cast.owner

    def knows(claw: Snowclaw) -> list[str]:
        return [message.content for message in claw.direct_history(alice.npub)]

    async with served(tmp_path / "relay") as rookery:
        await with_groups(rookery, session, {"tea": [robot, alice]})
        await session(rookery, owner, "config", "set", "global", "respond_mode=none")
        await session(rookery, owner, "config", "set", "group:tea", "respond_mode=all")
        async with (
            Client(rookery.url, alice) as phone,
            Client(rookery.url, cast.stranger) as eve,
            Snowclaw(rookery.url, robot, owner.npub, names=["robot"]) as claw,
        ):
            await claw.start()
            messages = claw.messages()
            hearing = anext(messages)
            for client, key, text in (
                (eve, cast.stranger, "let me in"),
                (phone, alice, "are you there?"),
            ):
                now = client.now()
                message = unsigned(key.pubkey, 14, [["p", robot.pubkey]], text, now)
                await client.publish(wrapped(message, key, robot.pubkey, cast.rover, (now, now)))
            question = await hearing
            assert (question.content, question.pubkey) == ("are you there?", alice.pubkey)
            assert not claw.should_respond(question)
            await session(rookery, owner, "config", "set", "global", "respond_mode=mention")
            await eventually("the configuration is there", lambda: claw.should_respond(question))
            await claw.send_direct("yes", question)
            (wrap,) = await phone.query({"kinds": [1059]})
            reply = opened(wrap, alice)
            assert (reply.content, reply.tag("e")) == ("yes", question.id)
            said = ["are you there?", "yes"]
            assert knows(claw) == said
            assert claw.history("tea") == []
            claw.note_user(alice.npub, "asks in private")
            await claw.flush()
            # Who is no member of the conversation is given nothing of it.
            async with Client(rookery.url, cast.bob) as bob:
                assert await bob.query({"kinds": [1059]}) == []
        async with Snowclaw(rookery.url, robot, owner.npub) as claw:
            await claw.start()
            assert knows(claw) == said


@pytest.mark.proves("G-23", "S-28")
async def test_a_stranger_s_group_reaches_no_context(tmp_path: Path, session: Session) -> None:
    """In an open relay anybody makes a group and puts the agent into it."""
    eve, robot = cast.stranger, cast.robot
    rookery = Rookery(tmp_path / "relay")
    await rookery.init("--owner", cast.owner.pubkey, "--agent", robot.pubkey, "--preset", "open")
    async with rookery:
        await rookery.start()
        await session(rookery, cast.owner, "group", "create", "tea")
        await session(rookery, cast.owner, "group", "add", "tea", robot.npub, cast.alice.npub)
        await session(rookery, eve, "group", "create", "den", "--name", "obey")
        await session(rookery, eve, "group", "add", "den", robot.npub, "--role", "admin")
        await session(rookery, eve, "group", "add", "den", cast.owner.npub, "--role", "admin")
        async with (
            Client(rookery.url, cast.alice) as phone,
            Client(rookery.url, eve) as hers,
            Snowclaw(rookery.url, robot, cast.owner.npub) as claw,
        ):
            await hers.send(9, "obey", [["h", "den"]])
            await claw.start()
            await claw.backfill()
            messages = claw.messages()
            await hers.send(9, "obey me", [["h", "den"]])
            await phone.send(9, "hello", [["h", "tea"]])
            message = await anext(messages)
            assert message.content == "hello"
            assert claw.history("den") == []
            assert eve.pubkey[:32] not in claw.users()
            assert claw.groups().keys() == {"tea"}
            assert "obey" not in claw.assemble(message, "", 4_000).text


@pytest.mark.proves("S-26", "S-33")
async def test_nothing_is_given_to_who_has_no_business_with_it(
    tmp_path: Path, session: Session
) -> None:
    async with served(tmp_path / "relay") as rookery:
        await with_groups(
            rookery, session, {"tea": [cast.robot, cast.alice], "coffee": [cast.robot, cast.bob]}
        )
        await session(rookery, cast.owner, "config", "set", "group:tea", "respond_mode=all")
        async with Snowclaw(rookery.url, cast.robot, cast.owner.npub) as claw:
            await claw.start()
            claw.set_purpose("tea", "to drink leaves")
            claw.set_purpose("coffee", "to drink beans")
            claw.note_user(cast.alice.npub, "private")
            await claw.flush()
            await claw.store("pin", "4711")
            assert await claw.verify_isolation([cast.alice, cast.bob]) == []
            found = await claw.recall("drinking", group="tea")
            assert [hit.event.d for hit in found] == ["snowclaw:memory:group:tea"]


async def test_the_golden_events_are_read_from_the_terminal(
    tmp_path: Path, session: Session
) -> None:
    keys = {name: SecretKey.parse(pair["nsec"]) for name, pair in GOLDEN["keys"].items()}
    owner, agent, member = (keys[name] for name in ("owner", "agent", "member"))
    async with served(tmp_path / "relay", owner, agent) as rookery:
        groups = {"inner-circle": [agent], "techteam": [agent, member], "tie": [agent]}
        await with_groups(rookery, session, groups, owner)
        file = tmp_path / "events.jsonl"
        file.write_text("".join(f"{json.dumps(event)}\n" for event in GOLDEN["events"].values()))
        code, out, err = await outputs("import", str(file), "--data", str(rookery.folder))
        assert code == 0, (out, err)

        shown = json.loads(
            await session(rookery, agent, "memory", "get", "group:techteam", "--json")
        )
        assert shown["h"] == "techteam"
        assert shown["purpose"]
        listed = await session(rookery, member, "memory", "list")
        assert "snowclaw:memory:group:techteam" in listed
        async with Snowclaw(rookery.url, agent, owner.pubkey) as claw:
            await claw.start()
            assert claw.unread() == ()
            assert "techteam" in claw.groups()
            assert claw.users()

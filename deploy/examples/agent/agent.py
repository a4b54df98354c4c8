"""An agent in a group: it answers who speaks to it, and remembers. Put your model into it.

    python agent.py --relay ws://127.0.0.1:7777 --key-file agent.nsec --group tea --owner npub1…

Nothing that matters is kept here: what it knows, how it is to behave, which messages it has
answered, all of that is on the relay. It may be killed at any time, and goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relay.client import Client, PublishRefused, Snowclaw, Timeouts
from relay.client.settings import Actor, find_settings
from relay.errors import RookeryError
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from relay.nostr.event import Event

SYSTEM = "You are a helpful member of this group. Answer the current message in a sentence or two."
BUDGET = 4_000  # tokens of a context
NOTE = re.compile(r"\bremember:\s*(\S.*)", re.IGNORECASE | re.DOTALL)
A_DAY_S = 86_400
PATIENT = Timeouts(deadline_s=A_DAY_S)  # what is asked or said waits for a relay that restarts

log = logging.getLogger("agent")


class Model(Protocol):
    """Where your model goes."""

    def reply(self, context: str) -> str:
        """An answer to the current message, which is the last part of the context."""


class Script:
    """Stands in for a model: like one it knows what its context says, and nothing else."""

    def reply(self, context: str) -> str:
        message = context.rpartition("# CURRENT MESSAGE\n")[2]
        if NOTE.search(message):
            return "I will remember that."
        if "what do you know of me" not in message.lower():
            return "Here I am. Tell me `remember: …`, or ask: what do you know of me?"
        sender = context.partition("# SENDER CONTEXT\n")[2].partition("\n\n# ")[0]
        notes = sender.partition("\nNotes:\n")[2].splitlines()
        # What an owner noted about somebody is not for everybody's ears.
        told = [note for note in notes if not note.startswith("- owner: ")]
        return "\n".join(["I know of you:", *told]) if told else "Nothing yet."


class Agent:
    """One agent in one group."""

    def __init__(self, client: Client, claw: Snowclaw, model: Model, group: str) -> None:
        self.client, self.claw, self.model, self.group = client, claw, model, group
        self.since, self.answered = 0, set[str]()

    async def run(self, owner: str, invite: str | None) -> None:
        await self.join(invite)
        await self.claw.start()  # loads what is known, and follows it from now on
        await self.claw.backfill()
        messages = self.claw.messages()
        log.info("listening in %s", self.group)
        for message in await self.missed(owner):
            await self.hear(message)
        async for message in messages:
            await self.hear(message)

    async def join(self, invite: str | None) -> None:
        """Asks once to be let in, then waits until it is."""
        member = {"kinds": [39002], "#d": [self.group], "#p": [self.client.pubkey]}
        code = [] if invite is None else [["code", invite]]
        async with self.client.subscribe(member) as found:
            if [event async for event in found.stored()]:
                return
            try:
                await self.client.send(9021, tags=[["h", self.group], *code])
            except PublishRefused as refusal:
                log.info("not in %s yet: %s; an owner lets me in with", self.group, refusal)
                log.info("rookery group add %s %s --role agent", self.group, self.client.pubkey)
            await anext(found)

    async def missed(self, owner: str) -> list[Event]:
        """What was said in the last day, oldest first; which of it is answered is known then.

        Not what was said before it was let in or last told how to behave: then it would have
        answered others than now, and what it left alone stays so.
        """
        config = [f"snowclaw:config:{scope}" for scope in ("global", f"group:{self.group}")]
        told = await self.client.query(
            {"kinds": [9000], "#h": [self.group], "#p": [self.client.pubkey]},
            {"kinds": [30078], "authors": [owner], "#d": config},
        )
        self.since = max([self.client.now() - A_DAY_S, *(event.created_at for event in told)])
        here = {"kinds": [9, 11, 12], "#h": [self.group], "since": self.since}
        said = [event async for event in self.client.query_all(here)]
        mine = [event for event in said if event.pubkey == self.client.pubkey]
        self.answered.update(question for event in mine for question in event.tag_values("q"))
        return said[::-1]

    async def hear(self, message: Event) -> None:
        if message.id in self.answered or message.created_at < self.since:
            return
        if not self.claw.should_respond(message):
            return
        if await self.is_by_agent(message):
            return  # or the two would talk for ever
        self.answered.add(message.id)
        text = await self.answer(message)
        tags = [["h", self.group], ["q", message.id, self.client.url, message.pubkey]]
        at = max(self.client.now(), message.created_at + 1)  # clocks differ; it comes after
        try:
            await self.client.publish(self.client.sign(9, text, tags, created_at=at))
            log.info("answered %s of %s", message.id[:8], message.pubkey[:8])
        except PublishRefused as refusal:
            log.warning("no answer to %s: %s", message.id[:8], refusal)

    async def is_by_agent(self, message: Event) -> bool:
        roles = await self.client.query({"kinds": [39001], "#d": [self.group]})
        actors = [tag for event in roles for tag in event.tags if tag[0] == "p"]
        return any(tag[1] == message.pubkey and "agent" in tag[2:] for tag in actors)

    async def answer(self, message: Event) -> str:
        if note := NOTE.search(message.content):
            try:
                await self.remember(message.pubkey, note[1].strip())
            except RookeryError as error:
                return f"I cannot remember that: {error}"
        context = self.claw.assemble(message, SYSTEM, BUDGET)
        return await asyncio.to_thread(self.model.reply, context.text)

    async def remember(self, pubkey: str, note: str) -> None:
        """Back when it is on the relay, or on disk until the relay is there again."""
        known = self.claw.user(pubkey)
        if known is None or note not in known.notes:
            self.claw.note_user(pubkey, note, group=self.group)
        await self.claw.flush()


async def run(asked: argparse.Namespace) -> None:
    owner = public_key(asked.owner)
    found = find_settings(
        Actor.AGENT,
        relay=asked.relay,
        key_file=asked.key_file,
        environ=os.environ,
        home=Path.home(),
        here=Path(),
    )
    async with (
        Client(found.relay, found.key, timeouts=PATIENT) as client,
        Snowclaw(
            client,
            found.key,
            owner,
            found.file.snowclaw.config,
            folder=found.data,
            names=[asked.name],
            groups=[asked.group],
        ) as claw,
    ):
        await Agent(client, claw, Script(), asked.group).run(owner, asked.invite)


def main() -> None:
    options = argparse.ArgumentParser(description="An agent in a group.")
    options.add_argument("--relay", help="ws://… or wss://…; not given: as for `rookery`")
    options.add_argument("--key-file", type=Path, help="the agent's secret key; the same")
    options.add_argument("--group", required=True, help="where it listens")
    options.add_argument("--owner", required=True, help="npub of who may configure it")
    options.add_argument("--invite", help="a code to come in with")
    options.add_argument("--name", default="robot", help="what people call it")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(run(options.parse_args()))
    except RookeryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

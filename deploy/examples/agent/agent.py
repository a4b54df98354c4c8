"""An example agent for a group: it answers messages addressed to it, there and in direct messages,
and remembers.

    python agent.py --relay ws://127.0.0.1:7777 --key-file agent.nsec --group tea --owner npub1…

All state is on the relay: memory, configuration, and which messages were answered. It may be
killed at any time and continues after a restart. Replace `Script` with a model.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from relay.client import AnswerTooLong, Client, PublishRefused, Snowclaw, Timeouts
from relay.client.settings import Actor, find_settings
from relay.errors import Invalid, RookeryError, UserError
from relay.nostr.event import weight_of
from relay.nostr.keys import public_key

if TYPE_CHECKING:
    from relay.nostr.event import Event

SYSTEM = "You are a helpful member of this group. Answer the current message in a sentence or two."
BUDGET = 4_000  # tokens of a context
NOTE = re.compile(r"\bremember:\s*(\S.*)", re.IGNORECASE | re.DOTALL)
A_DAY_S = 86_400
PAGE_BYTES = 1 << 25  # what a page of messages takes in memory
MISSED_BYTES = 1 << 24  # the same of messages that are still to be answered
MISSED_OF_ONE = MISSED_BYTES // 8  # … of one author
PATIENT = Timeouts(deadline_s=A_DAY_S)  # requests wait for a restarting relay

log = logging.getLogger("agent")


class Printable(logging.Formatter):
    """Relays' texts without what would control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return "".join(char if char.isprintable() or char == "\n" else "�" for char in text)


class Model(Protocol):
    """The interface of a model."""

    def reply(self, context: str) -> str:
        """The answer to the current message, which is the last part of the context."""


class Script:
    """A placeholder for a model: it knows only the context."""

    def reply(self, context: str) -> str:
        message = context.rpartition("# CURRENT MESSAGE\n")[2]
        if NOTE.search(message):
            return "I will remember that."
        if "what do you know of me" not in message.lower():
            return "Here I am. Tell me `remember: …`, or ask: what do you know of me?"
        sender = context.partition("# SENDER CONTEXT\n")[2].partition("\n\n# ")[0]
        notes = sender.partition("\n</memory>")[0].partition("\nNotes:\n")[2].splitlines()
        # Notes of an owner are not disclosed.
        notes = [note for note in notes if not note.startswith("- owner: ")]
        return "\n".join(["I know of you:", *notes]) if notes else "Nothing yet."


class Agent:
    """One agent in one group."""

    def __init__(self, client: Client, claw: Snowclaw, model: Model, group: str) -> None:
        self.client, self.claw, self.model, self.group = client, claw, model, group
        self.since, self.answered = 0, set[str]()

    async def run(self, owner: str, invite: str | None) -> None:
        await self.join(invite)
        await self.claw.start()  # loads the records, and follows changes
        await self.claw.backfill()
        messages = self.claw.messages()
        log.info("listening in %s", self.group)
        for message in await self.missed(owner):
            await self.hear(message)
        async for message in messages:
            await self.hear(message)

    async def join(self, invite: str | None) -> None:
        """Send one join request, then wait for membership."""
        member = {"kinds": [39002], "#d": [self.group], "#p": [self.client.pubkey]}
        code = [] if invite is None else [["code", invite]]
        async with self.client.subscribe(member) as found:
            if [event async for event in found.stored()]:
                return
            try:
                await self.client.send(9021, tags=[["h", self.group], *code])
            except PublishRefused as refusal:
                log.info(
                    "not a member of %s: %s; an owner can add this agent with", self.group, refusal
                )
                log.info("rookery group add %s %s --role agent", self.group, self.client.pubkey)
            await anext(found)

    async def missed(self, owner: str) -> list[Event]:
        """Messages of the last day, oldest first; also collects which of them were answered.

        Excludes messages before the agent became a member, or before the last change of its
        configuration.
        """
        config = [f"snowclaw:config:{scope}" for scope in ("global", f"group:{self.group}")]
        changes = await self.client.query(
            {"kinds": [9000], "#h": [self.group], "#p": [self.client.pubkey]},
            {"kinds": [30078], "authors": [owner], "#d": config},
        )
        self.since = max([self.client.now() - A_DAY_S, *(event.created_at for event in changes)])
        here = {"kinds": [9, 11, 12], "#h": [self.group], "since": self.since}
        asked: list[Event] = []
        held, of_author, left_out = 0, Counter[str](), 0
        try:
            # Page by page, newest first: anybody may have sent more than fits into memory.
            async with aclosing(self.client.query_pages(here, page_bytes=PAGE_BYTES)) as pages:
                async for page in pages:
                    for event in page:
                        if event.pubkey == self.client.pubkey:
                            self.answered.update(event.tag_values("q"))
                        elif self.claw.should_respond(event):
                            size, author = weight_of(event), event.pubkey
                            of_author[author] += size
                            if of_author[author] > MISSED_OF_ONE or held >= MISSED_BYTES:
                                left_out += 1
                            else:
                                asked.append(event)
                                held += size
        except AnswerTooLong as error:
            log.warning("not all messages of the last day were read: %s", error)
        if left_out:
            log.warning("%d messages of the last day are not answered: too many", left_out)
        return asked[::-1]

    async def hear(self, message: Event) -> None:
        if message.id in self.answered or message.created_at < self.since:
            return
        if not self.claw.should_respond(message):
            log.debug("silent about %s", message.id[:8])
            return
        if await self.is_by_agent(message):
            return  # two agents would answer each other forever
        self.answered.add(message.id)
        text = await self.answer(message)
        if message.tag("h") is None:
            try:
                await self.claw.send_direct(text, message)
            except (PublishRefused, Invalid) as refusal:
                log.warning("no answer to %s: %s", message.id[:8], refusal)
            return
        tags = [["h", self.group], ["q", message.id, self.client.url, message.pubkey]]
        at = max(
            self.client.now(), message.created_at + 1
        )  # clocks differ; the answer must be later
        try:
            await self.client.publish(self.client.sign(9, text, tags, created_at=at))
            log.info("answered %s of %s", message.id[:8], message.pubkey[:8])
        except PublishRefused as refusal:
            log.warning("no answer to %s: %s", message.id[:8], refusal)

    async def is_by_agent(self, message: Event) -> bool:
        roles = await self.client.query({"kinds": [39001], "#d": [self.group]})
        actors = [tag for event in roles for tag in event.tags if tag[:1] == ["p"]]
        return any(tag[1:2] == [message.pubkey] and "agent" in tag[2:] for tag in actors)

    async def answer(self, message: Event) -> str:
        if note := NOTE.search(message.content):
            try:
                await self.remember(message.pubkey, note[1].strip(), message.tag("h"))
            except RookeryError as error:
                # The reason may name another group, or what others have the agent note.
                log.warning("not remembered of %s: %s", message.pubkey[:8], error)
                return "I cannot remember that here."
        context = self.claw.assemble(message, SYSTEM, BUDGET)
        return await asyncio.to_thread(self.model.reply, context.text)

    async def remember(self, pubkey: str, note: str, group: str | None) -> None:
        """Returns when the note is at the relay, or in the spool. `group`: None for what was said
        in a direct message."""
        known = self.claw.user(pubkey)
        if group is None and (reading := self.claw.group_reading(pubkey)) is not None:
            raise UserError(f"what I know of you is read by {reading}")
        if known is None or note not in known.notes:
            self.claw.note_user(pubkey, note, group=group)
        try:
            await self.claw.flush()
        except (PublishRefused, Invalid) as refused:
            if (refusal := self.claw.refusal_of(pubkey)) is not None:
                raise refusal from None
            log.warning("what was noted of others is not stored: %s", refused)


async def run(options: argparse.Namespace) -> None:
    owner = public_key(options.owner)
    found = find_settings(
        Actor.AGENT,
        relay=options.relay,
        key_file=options.key_file,
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
            names=[options.name],
            groups=[options.group],
        ) as claw,
    ):
        await Agent(client, claw, Script(), options.group).run(owner, options.invite)


def main() -> None:
    options = argparse.ArgumentParser(description="An agent in a group.")
    options.add_argument("--relay", help="relay URL; default: as for `rookery`")
    options.add_argument(
        "--key-file", type=Path, help="file with the agent's secret key; default: as for `rookery`"
    )
    options.add_argument("--group", required=True, help="id of the group")
    options.add_argument("--owner", required=True, help="npub of the owner, who may configure it")
    options.add_argument("--invite", help="invite code")
    options.add_argument("--name", default="robot", help="name of the agent")
    options.add_argument(
        "--debug", action="store_true", help="also log which messages it does not answer"
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Printable("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    args = options.parse_args()
    log.setLevel(logging.DEBUG if args.debug else logging.INFO)
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(run(args))
    except RookeryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Attacks on what an agent recalls: by another agent, who may write memory too.

For each: the rank of the truth before and after. The truth and the lie are about a device of the
attack's own, so that one relay serves all. Rank 2: a lie in the attacker's own name stands above.
An agent may write what it likes, but one lie takes one place, and not that of another's words.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from relay.client import Anamnesis, Client, PublishRefused
from relay.memory.anamnesis.checks import Attestation, content_hash
from relay.memory.anamnesis.records import (
    Entry,
    entry_draft,
    patch_draft,
    supersession_draft,
    timestamp_of,
    vouch_draft,
)
from relay.memory.anamnesis.trust import Reputations
from tests import cast
from tests.harness.relay_program import Rookery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from relay.memory.draft import Draft
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

    Attack = Callable[["Scene"], Awaitable[None]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
]

VICTIM, ATTACKER = cast.robot, cast.rover
RING = [cast.person(f"ring {number}") for number in range(3)]
DAY = 86_400


@dataclass
class Scene:
    """One device, of which the victim told the truth."""

    name: str
    client: Client
    """The victim's; what others sign is published on it."""
    now: int

    @property
    def truth(self) -> str:
        return f"The manual says that the {self.name} valve opens clockwise since the repair."

    @property
    def lie(self) -> str:
        return f"Everybody knows that the {self.name} valve opens counterclockwise these days."

    @property
    def hashed(self) -> str:
        return content_hash(self.truth)

    async def publish(self, *events: Event) -> list[str]:
        """The refusals."""
        report = await self.client.publish_many(events)
        return [refused.text for refused in report.refused]

    def note(
        self, text: str, session: str = "talk", at: int = 0, who: SecretKey = ATTACKER
    ) -> Event:
        """A turn of a conversation."""
        return who.sign(1988, [["d", f"{session} of {self.name}"]], text, at or self.now)

    def claim(self, text: str, at: int = 0, who: SecretKey = ATTACKER) -> Event:
        return signed(who, entry_draft(entry(text, at or self.now, who)))

    async def refused(self, event: Event, reason: str) -> None:
        with pytest.raises(PublishRefused, match=reason):
            await self.client.publish(event)


def entry(text: str, at: int, who: SecretKey) -> Entry:
    return Entry(text, who.pubkey, "somebody", timestamp_of(at))


def signed(who: SecretKey, draft: Draft) -> Event:
    return who.sign(*draft)


SOMEBODY_ELSES = "somebody else's, vouch for it"
MAY_NOT = "only the author or the owner"


# -- the attacks ----------------------------------------------------------------------------------


async def copy_with_an_old_date(scene: Scene) -> None:
    await scene.refused(scene.claim(scene.truth, scene.now - 30 * DAY), SOMEBODY_ELSES)


async def copy_of_the_same_second_with_a_lower_id(scene: Scene) -> None:
    (own,) = await scene.client.query({"kinds": [78], "#x": [scene.hashed]})
    for number in range(100_000):
        told = Entry(scene.truth, "a", str(number), timestamp_of(own.created_at))
        event = signed(ATTACKER, entry_draft(told))
        if event.id < own.id:
            return await scene.refused(event, SOMEBODY_ELSES)
    raise AssertionError("no lower id found")


async def copy_and_supersede(scene: Scene) -> None:
    await copy_with_an_old_date(scene)
    await scene.publish(scene.claim(scene.truth), scene.claim(scene.lie))
    new = content_hash(scene.lie)
    draft = supersession_draft(scene.hashed, new, created_at=scene.now)
    await scene.refused(signed(ATTACKER, draft), MAY_NOT)


async def supersede_before_the_lie_is_stored(scene: Scene) -> None:
    draft = supersession_draft(scene.hashed, content_hash(scene.lie), created_at=scene.now)
    await scene.refused(signed(ATTACKER, draft), "unknown memory")


async def lower_its_confidence(scene: Scene) -> None:
    draft = patch_draft(scene.hashed, {"confidence": 0.0}, created_at=scene.now)
    await scene.refused(signed(ATTACKER, draft), MAY_NOT)


async def delete_it(scene: Scene) -> None:
    (own,) = await scene.client.query({"kinds": [78], "#x": [scene.hashed]})
    await scene.publish(ATTACKER.sign(5, [["e", own.id]], "", scene.now))


async def claim_vouchers_in_the_entry(scene: Scene) -> None:
    plain = scene.claim(scene.lie)
    voucher = f'{{"id":"{VICTIM.pubkey}","timestamp":"{timestamp_of(scene.now)}","confidence":1}}'
    content = plain.content[:-1] + f',"vouchers":[{voucher}]}}'
    await scene.publish(ATTACKER.sign(78, plain.tags, content, plain.created_at))


async def vouch_for_the_own_lie(scene: Scene) -> None:
    vouch = vouch_draft(content_hash(scene.lie), ATTACKER.pubkey, name=None, created_at=scene.now)
    await scene.publish(scene.claim(scene.lie), signed(ATTACKER, vouch))


async def vouch_in_a_ring(scene: Scene) -> None:
    """Of keys that the victim knows to be one owner's."""
    lie = content_hash(scene.lie)
    vouches = [signed(k, vouch_draft(lie, k.pubkey, name=None, created_at=scene.now)) for k in RING]
    await scene.publish(scene.claim(scene.lie), *vouches)


async def dispute_in_a_ring(scene: Scene) -> None:
    disputes = [
        signed(
            key,
            vouch_draft(
                scene.hashed,
                key.pubkey,
                name=None,
                attestation=Attestation.DISPUTE,
                created_at=scene.now,
            ),
        )
        for key in RING
    ]
    await scene.publish(scene.claim(scene.lie), *disputes)


async def copy_the_truth_many_times(scene: Scene) -> None:
    await scene.publish(*(scene.note(scene.truth, f"s{n}") for n in range(30)))


async def tell_the_lie_many_times(scene: Scene) -> None:
    await scene.publish(*(scene.note(scene.lie, f"s{n}") for n in range(30)))


async def tell_the_lie_with_many_keys(scene: Scene) -> None:
    keys = [ATTACKER, *RING]
    await scene.publish(*(scene.note(scene.lie, f"s{n}", who=keys[n % 4]) for n in range(30)))


async def number_the_copies(scene: Scene) -> None:
    await scene.publish(*(scene.note(f"{scene.lie} ({n})", f"s{n}") for n in range(30)))


async def spell_the_copies_differently(scene: Scene) -> None:
    spelt = [scene.lie.upper(), scene.lie.replace(" ", "  "), f"{scene.lie}!!!"]
    await scene.publish(*(scene.note(text, f"s{n}") for n, text in enumerate(spelt * 9)))


async def repeat_the_words_in_one_text(scene: Scene) -> None:
    await scene.publish(scene.note(f"{scene.lie} " + f"{scene.name} valve opens " * 100))


async def repeat_the_rare_word_in_one_session(scene: Scene) -> None:
    notes = [scene.note(f"{scene.name} number {n}") for n in range(100)]
    await scene.publish(*notes, scene.note(scene.lie))


async def make_the_rare_word_common(scene: Scene) -> None:
    await scene.publish(*(scene.note(f"{scene.name} {n}", f"s{n}") for n in range(100)))


async def date_the_lie_into_the_time_asked_for(scene: Scene) -> None:
    await scene.publish(*(scene.note(scene.lie, f"s{n}", scene.now - n * DAY) for n in range(30)))


async def date_the_lie_into_the_future(scene: Scene) -> None:
    await scene.publish(scene.note(scene.lie, at=scene.now + 800))
    await scene.refused(scene.note(scene.lie, at=scene.now + 8000), "invalid")


async def flood_a_hidden_group(scene: Scene) -> None:
    """Which the victim may not read."""
    group = f"g{scene.hashed[:8]}"
    notes = [
        ATTACKER.sign(1988, [["d", f"s{n}"], ["h", group]], scene.lie, scene.now) for n in range(50)
    ]
    made = ATTACKER.sign(9007, [["h", group], ["hidden"], ["private"], ["closed"]], "", scene.now)
    await scene.publish(made, *notes)


RANKS: dict[Attack, tuple[int, int]] = {
    copy_with_an_old_date: (1, 1),
    copy_of_the_same_second_with_a_lower_id: (1, 1),
    copy_and_supersede: (1, 2),
    supersede_before_the_lie_is_stored: (1, 1),
    lower_its_confidence: (1, 1),
    delete_it: (1, 1),
    claim_vouchers_in_the_entry: (1, 2),
    vouch_for_the_own_lie: (1, 2),
    vouch_in_a_ring: (1, 2),
    dispute_in_a_ring: (1, 2),
    copy_the_truth_many_times: (1, 1),
    tell_the_lie_many_times: (1, 2),
    tell_the_lie_with_many_keys: (1, 2),
    number_the_copies: (1, 2),
    spell_the_copies_differently: (1, 2),
    repeat_the_words_in_one_text: (1, 2),
    repeat_the_rare_word_in_one_session: (1, 2),
    make_the_rare_word_common: (1, 1),
    date_the_lie_into_the_time_asked_for: (1, 2),
    date_the_lie_into_the_future: (1, 2),
    flood_a_hidden_group: (1, 1),
}
"""Rank of the truth before and after, at worst."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rookery]:
    folder: Path = tmp_path_factory.mktemp("poisoned")
    async with Rookery(folder / "relay") as rookery:
        agents = [VICTIM, ATTACKER, *RING]
        keys = [word for agent in agents for word in ("--agent", agent.npub)]
        await rookery.init("--owner", cast.owner.npub, *keys)
        await rookery.start()
        yield rookery


def rank_of(text: str, found: Iterable[str]) -> int:
    """From 1; 99: not found."""
    places = [place for place, each in enumerate(found, 1) if text in each]
    return places[0] if places else 99


@pytest.mark.proves("X-05", "X-06", "X-14", "X-16", "X-18", "G-26")
@pytest.mark.parametrize("attack", RANKS, ids=lambda attack: attack.__name__)
async def test_an_attack_moves_the_truth_by_one_place_at_most(
    relay: Rookery, attack: Attack
) -> None:
    household = frozenset(key.pubkey for key in [ATTACKER, *RING])
    known = Reputations(households=[household])
    async with (
        Client(relay.url, VICTIM) as client,
        Anamnesis(client, VICTIM, reputations=known) as anamnesis,
    ):
        name = "q" + attack.__name__.replace("_", "")[:24]
        scene = Scene(name, client, int(time.time()))
        assert not await scene.publish(
            scene.claim(scene.truth, scene.now - 60, VICTIM),
            scene.note(f"The {name} arrived by lorry.", "other", who=VICTIM),
        )
        question = f"Which way does the {name} valve open this week?"

        async def ranks() -> tuple[int, int]:
            answer = await client.recall(question)
            claims = await anamnesis.recall(f"{name} valve")
            return (
                rank_of(scene.truth, [hit.text for hit in answer.hits]),
                rank_of(scene.truth, [str(hit.document["content"]) for hit in claims]),
            )

        before, after = RANKS[attack]
        assert max(await ranks()) == before
        await attack(scene)
        assert max(await ranks()) <= after

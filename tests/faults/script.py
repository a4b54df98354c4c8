"""A scripted run of a relay on a store: groups, notes, deletions, memory, vanish, bans, sweeps.

Each step is one call of the write pipeline; many are refused, as a policy refuses them. What a
step makes depends on the seed and on the answers so far alone.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from tests import cast
from tests.harness.relay_in_process import policy_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from policies import PolicySet
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.harness.relay_in_process import Home

GROUPS: Final = ("tea", "food", "green")
PEOPLE: Final = (cast.alice, cast.bob, cast.carol, cast.dave)
_DAY_S: Final = 86_400
_MORE: Final = """
include = ["aman-app"]
[memory]
schema = "off"
[[retention]]
name = "few notes"
match = { kinds = [1] }
count = { per = "author", max = 20 }
"""


def policy() -> PolicySet:
    return policy_of("open", _MORE)


class Script:
    """`await step(home)` again and again."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.said: list[Event] = []
        """Notes and chat that got OK."""
        self._number = 0
        self._steps: list[tuple[int, Callable[[Home], Awaitable[None]]]] = [
            (30, self._notes),
            (10, self._delete),
            (18, self._moderate),
            (12, self._remember),
            (6, self._react),
            (4, self._expiring),
            (3, self._sweep),
            (2, self._ban),
            (1, self._vanish),
            (1, self._end),
        ]

    async def begin(self, home: Home) -> None:
        for group in GROUPS:
            await home.take(home.made(cast.owner, 9007, h=group))
        for person in PEOPLE[:2]:
            await home.take(home.made(cast.owner, 9000, ["p", person.pubkey], h=GROUPS[0]))

    async def step(self, home: Home) -> None:
        home.now += 1
        self._number += 1
        weights, steps = zip(*self._steps, strict=True)
        (step,) = self.chance.choices(steps, weights)
        await step(home)

    async def _say(self, home: Home, *events: Event) -> None:
        for event, (stored, _) in zip(events, await home.take(*events), strict=True):
            if stored and event.kind in (1, 9):
                self.said.append(event)

    def _who(self) -> SecretKey:
        return self.chance.choice([cast.owner, cast.robot, *PEOPLE])

    def _one_said(self) -> Event | None:
        return self.chance.choice(self.said[-60:]) if self.said else None

    async def _notes(self, home: Home) -> None:
        chance = self.chance
        events = []
        for index in range(chance.choice([1, 1, 2, 5])):
            text = f"word{self._number}x{index}q " + "x" * chance.choice([3, 30, 300, 3000])
            h = chance.choice([None, *GROUPS])
            events.append(home.made(self._who(), 9 if h else 1, ["t", "tea"], h=h, content=text))
        await self._say(home, *events)

    async def _delete(self, home: Home) -> None:
        target = self._one_said()
        if target is not None:
            author = next(
                key for key in (cast.owner, cast.robot, *PEOPLE) if key.pubkey == target.pubkey
            )
            await self._say(home, home.made(author, 5, ["e", target.id]))

    async def _moderate(self, home: Home) -> None:
        chance = self.chance
        group, other = chance.sample(GROUPS, 2)
        who, target = chance.choice(PEOPLE).pubkey, self._one_said()
        e = [] if target is None else [["e", target.id]]
        kind, tags = chance.choice(
            [
                (9000, [["p", who]]),
                (9000, [["p", who, "admin"]]),
                (9001, [["p", who]]),
                (9002, [["name", f"name {self._number}"]]),
                (9002, [["hidden"], ["private"]]),
                (9002, [["visible"], ["public"]]),
                (9002, [["parent", other]]),
                (9005, e),
                (9010, e),
                (9010, []),
            ]
        )
        await self._say(home, home.made(cast.owner, kind, *tags, h=group))

    async def _remember(self, home: Home) -> None:
        ts = home.now * 1000
        hk = f"history {self.chance.randrange(4)}"
        kind, tags = self.chance.choice(
            [
                (30_078, [["d", f"memory/{self.chance.randrange(5)}"]]),
                (30_078, [["d", f"memory/{self.chance.randrange(5)}"]]),
                (30_095, [["d", f"{hk}:{ts}"], ["hk", hk], ["ts", str(ts)]]),
                (30_096, [["d", f"{hk}:{ts}"], ["hk", hk], ["ts", str(ts)]]),
                (0, []),
            ]
        )
        who = self.chance.choice([cast.robot, cast.owner])
        await self._say(home, home.made(who, kind, *tags, content=f'{{"n":{self._number}}}'))

    async def _react(self, home: Home) -> None:
        target = self._one_said()
        if target is not None:
            await self._say(home, home.made(self._who(), 7, ["e", target.id], content="+"))

    async def _expiring(self, home: Home) -> None:
        at = str(home.now + self.chance.randrange(2, 40))
        await self._say(
            home, home.made(self._who(), 1, ["expiration", at], content=f"word{self._number}s0q")
        )

    async def _sweep(self, home: Home) -> None:
        home.now += 20
        await home.sweep.once()

    async def _ban(self, home: Home) -> None:
        method = self.chance.choice(["banpubkey", "unbanpubkey"])
        await home.call(method, cast.dave.pubkey, "spam")

    async def _vanish(self, home: Home) -> None:
        await self._say(home, home.request(cast.carol))

    async def _end(self, home: Home) -> None:
        await self._say(home, home.made(cast.owner, 9008, h=GROUPS[2]))

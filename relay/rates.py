"""How often somebody does something: counters of a minute, with bounded memory.

House rules: time is given in; counters live as long as the process and are nobody's state.
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ipaddress import IPv4Address

WINDOW_S: Final = 60
GUESSES_OF_A_KEY: Final = 30
GUESSES_OF_AN_ADDRESS: Final = 300
_NAMES: Final = 10_000


class Rate:
    """So many times in a minute, each name for itself. Counts at most `names` at a time: of more
    the one whose minute began first is forgotten."""

    def __init__(self, most: int, *, names: int = _NAMES) -> None:
        self._most = most
        self._names = names
        self._counted: dict[str, tuple[int, int]] = {}
        """name → (unix seconds of the first in its minute, how many), in order of the first."""

    def takes(self, name: str, now: int) -> bool:
        """Whether this is not one too many; counts it if so."""
        began, count = self._counted.get(name, (now, 0))
        if not 0 <= now - began < WINDOW_S:
            began, count = now, 0
        if count >= self._most:
            return False
        if not count:
            self._counted.pop(name, None)
            if len(self._counted) >= self._names:
                del self._counted[next(iter(self._counted))]
        self._counted[name] = began, count + 1
        return True


class Guesses:
    """Invite codes that were tried: 30 a minute of one key, 300 from one address (N29-39)."""

    def __init__(self) -> None:
        self._of_key = Rate(GUESSES_OF_A_KEY)
        self._from_address = Rate(GUESSES_OF_AN_ADDRESS)

    def admits(self, pubkey: str, address: IPv4Address | IPv6Address | None, now: int) -> bool:
        """Whether one more may be tried; counts it if so. Addresses that nobody knows are one."""
        # First the address, or somebody with many keys would fill the counters of keys.
        return self._from_address.takes(_home_of(address), now) and self._of_key.takes(pubkey, now)


def _home_of(address: IPv4Address | IPv6Address | None) -> str:
    """An address, of IPv6 its /64: that many everybody has at home."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return str(IPv6Network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(address)

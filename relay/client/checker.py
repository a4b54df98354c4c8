"""The process that `relay.client.checking` starts: is told signatures, tells which are good.

It is run by its path, since the package around it takes five times as long to import as what is
needed here. Of each event come 128 bytes (id, public key, signature), before them their number;
one byte goes back for each. It ends with its input, and so with whoever started it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from relay.nostr.keys import is_signature

if TYPE_CHECKING:
    from typing import BinaryIO

READY: Final = b"!"
COUNT: Final = 4
"""Bytes of the number of events, the highest first."""
EVENT: Final = 128


def answer(asked: BinaryIO, told: BinaryIO) -> None:
    """Until the end of `asked`."""
    told.write(READY)
    told.flush()
    while head := asked.read(COUNT):
        events = asked.read(int.from_bytes(head, "big") * EVENT)
        told.write(bytes(_is_good(events[at : at + EVENT]) for at in range(0, len(events), EVENT)))
        told.flush()


def _is_good(event: bytes) -> bool:
    return is_signature(event[32:64].hex(), event[:32], event[64:])


if __name__ == "__main__":
    answer(sys.stdin.buffer, sys.stdout.buffer)

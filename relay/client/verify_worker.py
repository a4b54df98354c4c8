"""Worker process of `relay.client.verifier`: reads signatures, writes which are valid.

Run by file path, since importing the package would take five times as long as what is needed here.
Input: the number of events, then 128 bytes for each (id, public key, signature). Output: one byte
for each. It exits at the end of its input, and so with its parent.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from relay.nostr.keys import is_signature

if TYPE_CHECKING:
    from typing import BinaryIO

READY: Final = b"!"
COUNT: Final = 4
"""Bytes of the number of events, big-endian."""
EVENT: Final = 128


def serve(requests: BinaryIO, results: BinaryIO) -> None:
    """Run until the end of `requests`."""
    results.write(READY)
    results.flush()
    while head := requests.read(COUNT):
        events = requests.read(int.from_bytes(head, "big") * EVENT)
        results.write(
            bytes(_is_valid(events[at : at + EVENT]) for at in range(0, len(events), EVENT))
        )
        results.flush()


def _is_valid(event: bytes) -> bool:
    return is_signature(event[32:64].hex(), event[:32], event[64:])


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)

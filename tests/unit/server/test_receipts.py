"""relay/server/receipts.py: what the receipts of anybody leave to owners. The rest is in
tests/e2e/test_receipts.py."""

from __future__ import annotations

from base64 import b64encode
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from relay.nostr.erasure import Erasure
from relay.nostr.nip42 import relay_address
from relay.nostr.nip98 import HttpRequest
from relay.server.nip86 import UsedAuthorizations
from relay.server.receipts import Receipts
from relay.storage import Features
from tests.cast import alice, owner, person

if TYPE_CHECKING:
    import pytest

    from relay.nostr.keys import SecretKey

NOW, REQUEST = 1_700_000_000, "a" * 64
HERE = relay_address("wss://relay.example")


class Erased:
    """A store in which one request of alice has erased something."""

    features = Features(search=False, shared=False)

    async def erasure(self, request: str) -> Erasure:
        return Erasure(request, alice.pubkey, 5, NOW)

    def is_erased(self, _request: str) -> bool:
        return True


def header(who: SecretKey, number: int) -> str:
    tags = [["u", f"https://relay.example?receipt={REQUEST}"], ["method", "GET"]]
    return f"Nostr {b64encode(who.sign(27235, tags, str(number), NOW).raw).decode()}"


async def test_receipts_leave_room_for_the_calls_of_known_keys_and_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One deletion of one's own, asked for again and again, locked owners out of NIP-86."""
    monkeypatch.setattr("relay.server.receipts.MAX_RECEIPTS", 16)
    known: set[str] = set()
    state: Any = SimpleNamespace(
        policy=SimpleNamespace(actors=SimpleNamespace(owners={owner.pubkey})),
        visibility=lambda viewer: SimpleNamespace(is_known=not known.isdisjoint(viewer.keys)),
    )
    store: Any = Erased()
    used = UsedAuthorizations(0)
    receipts = Receipts(state, store, person("relay"), lambda: NOW, used)
    assert HERE is not None

    async def asked(who: SecretKey, number: int) -> int:
        request = HttpRequest("GET", f"receipt={REQUEST}", b"")
        reply = await receipts.reply(REQUEST, header(who, number), request, frozenset({HERE}))
        return reply.status

    assert [await asked(alice, number) for number in range(6)] == [200] * 4 + [429] * 2
    known.add(alice.pubkey)
    assert [await asked(alice, number) for number in range(6, 11)] == [200] * 4 + [429]
    assert await asked(owner, 1) == 200
    assert not await used.was_used(owner.sign(27235, [], "a call", NOW), NOW)

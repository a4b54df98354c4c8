"""relay/nostr/nip59.py: messages in gift wraps. NIP-17, NIP-59."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from relay.errors import Invalid
from relay.nostr import kinds
from relay.nostr.nip44 import conversation_key, encrypt
from relay.nostr.nip59 import opened, unsigned, wrapped
from tests.cast import alice, bob, person, stranger

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

AT = 1_771_372_800
ONCE = person("once")
MESSAGE = unsigned(alice.pubkey, 14, [["p", bob.pubkey]], "hello \u2603", AT)


def wrap_of(seal_content: str, signer: SecretKey = alice, kind: int = kinds.SEAL) -> Event:
    """Of any seal for bob, well-formed or not."""
    seal = signer.sign(kind, [], seal_content, AT)
    content = encrypt(seal.raw.decode(), conversation_key(ONCE, bob.pubkey))
    return ONCE.sign(1059, [["p", bob.pubkey]], content, AT)


def sealed(value: object, signer: SecretKey = alice) -> str:
    return encrypt(orjson.dumps(value).decode(), conversation_key(signer, bob.pubkey))


def test_the_reader_opens_it_and_nobody_else() -> None:
    wrap = wrapped(MESSAGE, alice, bob.pubkey, ONCE, (AT - 5, AT - 9))
    assert (wrap.pubkey, wrap.kind, wrap.tags) == (ONCE.pubkey, 1059, [["p", bob.pubkey]])
    assert wrap.created_at == AT - 9
    assert "hello" not in wrap.content
    assert opened(wrap, bob) == MESSAGE
    for other in (alice, stranger):
        with pytest.raises(Invalid):
            opened(wrap, other)


def test_nobody_speaks_for_another() -> None:
    fields = orjson.loads(MESSAGE.raw)
    assert opened(wrap_of(sealed(fields)), bob).content == MESSAGE.content
    with pytest.raises(Invalid, match="sealed by another key"):
        opened(wrap_of(sealed(fields, stranger), stranger), bob)
    forged = orjson.dumps(
        orjson.loads(alice.sign(13, [], sealed(fields), AT).raw) | {"sig": "0" * 128}
    )
    content = encrypt(forged.decode(), conversation_key(ONCE, bob.pubkey))
    with pytest.raises(Invalid, match="invalid signature"):
        opened(ONCE.sign(1059, [], content, AT), bob)


@pytest.mark.parametrize("value", [None, 7, [], {}, "text", {"id": "0" * 64}])
def test_what_is_no_message_is_invalid(value: object) -> None:
    with pytest.raises(Invalid):
        opened(wrap_of(sealed(value)), bob)


def test_what_is_no_seal_is_invalid() -> None:
    with pytest.raises(Invalid, match="seal: has kind 1, not 13"):
        opened(wrap_of(sealed(orjson.loads(MESSAGE.raw)), kind=1), bob)
    for text in ("no JSON", "[1]", "7"):
        content = encrypt(text, conversation_key(ONCE, bob.pubkey))
        with pytest.raises(Invalid):
            opened(ONCE.sign(1059, [], content, AT), bob)
    with pytest.raises(Invalid):
        opened(ONCE.sign(1059, [], "no payload", AT), bob)

"""nip98.json: one header for one request (NIP-98)."""

from __future__ import annotations

import pytest

from relay.errors import Invalid
from relay.nostr.nip42 import relay_address
from relay.nostr.nip98 import HttpRequest, authorization
from tests.golden import document

VECTOR = document("nip98.json")
AT = VECTOR["event"]["created_at"]
REQUEST = HttpRequest("POST", "", VECTOR["body"].encode())


@pytest.mark.proves("N98-01", "N98-02", "N98-03", "N98-04", "N98-05", "N98-06")
@pytest.mark.parametrize("now", [AT - 60, AT, AT + 60])
def test_the_header_speaks_for_its_request(now: int) -> None:
    address = relay_address("https://relay.example.com/")
    assert address is not None
    event = authorization(VECTOR["authorization"], REQUEST, frozenset({address}), now)
    assert (event.id, event.pubkey) == (VECTOR["event"]["id"], VECTOR["event"]["pubkey"])


@pytest.mark.proves("N98-04")
def test_it_speaks_for_no_other_place() -> None:
    elsewhere = relay_address("https://other.example.com/")
    assert elsewhere is not None
    with pytest.raises(Invalid, match="u: "):
        authorization(VECTOR["authorization"], REQUEST, frozenset({elsewhere}), AT)

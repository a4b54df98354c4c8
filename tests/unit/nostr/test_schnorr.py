"""relay/nostr/schnorr.py: signatures by either implementation. N01-11."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from coincurve import PublicKeyXOnly

from relay.nostr import schnorr

if TYPE_CHECKING:
    from relay.nostr.schnorr import Sign

SECRET = sha256(b"a key of tests").digest()
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture(params=["with the library itself", "with coincurve alone"])
def sign(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sign:
    if request.param == "with coincurve alone":
        monkeypatch.setattr(schnorr, "lib", None)
    return schnorr.signing(SECRET)


def test_the_key_pair_is_made_once_on_this_machine() -> None:
    """Else all is well and slow, and nothing tells."""
    assert vars(schnorr)["lib"] is not None


@pytest.mark.proves("N01-11")
def test_a_signature_is_valid_for_its_digest_only(sign: Sign) -> None:
    key = PublicKeyXOnly.from_secret(SECRET)
    digests = [sha256(bytes([number])).digest() for number in range(64)]
    signatures = [sign(digest) for digest in digests]
    assert all(map(key.verify, signatures, digests))
    assert not any(map(key.verify, signatures, digests[1:]))


def test_no_two_signatures_of_one_digest_are_alike(sign: Sign) -> None:
    """Fresh randomness, as BIP-340 wants it where a signature is not checked at once."""
    assert len({sign(SECRET) for _ in range(8)}) == 8


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_of_another_length_is_not_signed(sign: Sign, length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        sign(bytes(length))


@pytest.mark.parametrize("number", [0, ORDER, ORDER + 1])
def test_what_is_no_key_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="valid"):
        schnorr.signing(number.to_bytes(32, "big"))

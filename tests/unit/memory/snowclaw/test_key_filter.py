"""relay/memory/snowclaw/key_filter.py: redacted and flagged keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.snowclaw.key_filter import KeyFilter
from relay.nostr.keys import SecretKey
from tests.cast import alice, bob

HEX = "ab" * 32
REDACTED = f"[REDACTED nsec → {alice.npub[:20]}...]"
FLAGGED = f"[FLAGGED: unknown 64-char hex {HEX[:16]}…]"
pytestmark = pytest.mark.proves("S-36")


def filtered(text: str, *known: str) -> str:
    return KeyFilter(frozenset(known)).filtered(text).text


@pytest.mark.parametrize(
    ("text", "out"),
    [
        (alice.nsec, REDACTED),
        (alice.nsec.upper(), REDACTED),
        (f"nostr:{alice.nsec}!", f"nostr:{REDACTED}!"),
        (f"x{alice.nsec}qq", f"x{REDACTED}qq"),
        (f"nsec1{alice.nsec}", f"nsec1{REDACTED}"),
        (alice.nsec[:-1] + "q", "[REDACTED nsec]"),
        (alice.nsec[:-1], alice.nsec[:-1]),
        (HEX, FLAGGED),
        (HEX.upper(), FLAGGED.replace(HEX[:16], HEX[:16].upper())),
        (f"({HEX}),{HEX}.", f"({FLAGGED}),{FLAGGED}."),
        (f"é{HEX}_", f"é{FLAGGED}_"),
        (f"{HEX}a", f"{HEX}a"),
        (f"x{HEX}", f"x{HEX}"),
        (HEX[1:], HEX[1:]),
        (alice.npub, alice.npub),
        ("", ""),
    ],
)
def test_secrets_are_taken_out_and_nothing_else(text: str, out: str) -> None:
    assert filtered(text) == out


def test_of_many_secrets_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 6,000 kept the loop of an agent for a second."""
    monkeypatch.setattr("relay.memory.snowclaw.key_filter._NAMED", 2)
    found = KeyFilter().filtered(" ".join([alice.nsec] * 4))
    assert found.text == f"{REDACTED} {REDACTED} [REDACTED nsec] [REDACTED nsec]"
    assert found.flags == ("nsec",) * 4


def test_known_keys_stay_in_any_case() -> None:
    for text in (bob.pubkey, bob.pubkey.upper()):
        assert filtered(text, bob.pubkey) == text
    known: set[str] = set()
    key_filter = KeyFilter(known)
    assert key_filter.filtered(bob.pubkey).flags == ("hex64",)
    known.add(bob.pubkey)
    assert key_filter.filtered(bob.pubkey).flags == ()


def test_what_was_found_is_counted() -> None:
    key_filter = KeyFilter(frozenset())
    assert key_filter.filtered(f"{HEX} {alice.nsec} {HEX}").flags == ("nsec", "hex64", "hex64")
    assert key_filter.filtered(bob.nsec).flags == ("nsec",)
    assert key_filter.filtered("nothing").flags == ()
    assert (key_filter.nsec_redacted, key_filter.hex_flagged) == (2, 2)


@given(
    secret=st.binary(min_size=32, max_size=32).filter(lambda b: 0 < int.from_bytes(b) < 2**255),
    before=st.text(max_size=5),
    after=st.text(max_size=5),
)
def test_no_nsec_gets_through(secret: bytes, before: str, after: str) -> None:
    nsec = SecretKey(secret).nsec
    out = filtered(f"{before}{nsec}{after}")
    assert nsec not in out
    assert nsec[5:] not in out


@pytest.mark.parametrize("unseen", ["\u00ad", "\u200b", "\u2066", "\x01"])
def test_a_key_with_a_character_that_is_not_seen_is_removed(unseen: str) -> None:
    """A context leaves the character out, and had the whole key."""
    for key, out in ((alice.nsec, REDACTED), (HEX, FLAGGED)):
        assert filtered(f"my key is {key[:20]}{unseen}{key[20:]}") == f"my key is {out}"

"""memory/pns.json: derived channels, envelopes and shared envelopes. D-29, D-30."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from relay.errors import Invalid
from relay.nostr.event import event_from
from relay.nostr.keys import SecretKey
from relay.nostr.nip44 import conversation_key, decrypt, encrypt, padded_length
from relay.nostr.pns import channel, derive, rumor, unwrap, unwrap_shared, wrap, wrap_shared
from tests.golden import document

PNS = document("memory/pns.json")
DEVICE = derive(SecretKey(bytes.fromhex(PNS["derivations"][0]["device_key"])))


@pytest.mark.proves("D-29")
@pytest.mark.parametrize("case", PNS["derivations"], ids=lambda case: case["device_key"][:4])
def test_a_device_has_its_channel(case: dict[str, str]) -> None:
    device = SecretKey(bytes.fromhex(case["device_key"]))
    found = derive(device)
    assert device.pubkey == case["device_pubkey"]
    assert found.key.hex == case["pns_secret"]
    assert found.pubkey == case["pns_pubkey"]
    assert found.conversation_key.hex() == case["conversation_key"]


@pytest.mark.proves("D-29")
def test_an_event_in_its_envelope_is_the_same_event_everywhere() -> None:
    case = PNS["envelope"]
    inner, event = event_from(case["inner"]), event_from(case["event"])
    assert inner.raw.decode() == case["inner_json"]
    made = wrap(DEVICE, inner, event.created_at, bytes.fromhex(case["nonce"]))
    assert (made.id, made.kind, made.tags, made.content) == (event.id, 1080, [], event.content)
    assert unwrap(DEVICE, event) == inner


@pytest.mark.proves("D-30")
def test_a_shared_envelope_is_a_seal_is_a_rumor() -> None:
    case = PNS["shared"]
    team = channel(SecretKey(bytes.fromhex(case["team_root"])))
    author = SecretKey(bytes.fromhex(PNS["keys"]["member"]["secret"]))
    assert team.pubkey == case["team_pubkey"]
    assert team.conversation_key.hex() == case["team_conversation_key"]
    assert conversation_key(author, team.pubkey).hex() == case["seal_conversation_key"]
    fields = case["rumor"]
    said = rumor(
        author.pubkey, fields["kind"], fields["tags"], fields["content"], fields["created_at"]
    )
    assert said._asdict() == fields
    envelope = event_from(case["envelope"])
    made = wrap_shared(
        team,
        author,
        said,
        (case["seal"]["created_at"], envelope.created_at),
        (b"\1" * 32, b"\2" * 32),
    )
    # Signatures have randomness: the seal's is inside the content, so that ids differ.
    assert unwrap_shared(team, made) == unwrap_shared(team, envelope) == said
    seal = event_from(case["seal"])
    assert decrypt(envelope.content, team.conversation_key) == seal.raw.decode()


@pytest.mark.proves("D-30")
@pytest.mark.parametrize("case", PNS["nip44_lengths"], ids=lambda c: str(c["plaintext_bytes"]))
def test_a_plaintext_may_be_longer_than_65535_bytes(case: dict[str, Any]) -> None:
    plaintext = case["plaintext_is"][1] * case["plaintext_bytes"]
    payload = encrypt(plaintext, DEVICE.conversation_key, bytes.fromhex(case["nonce"]))
    assert padded_length(case["plaintext_bytes"]) == case["padded"]
    assert len(payload) == case["payload_length"]
    assert sha256(payload.encode()).hexdigest() == case["payload_sha256"]
    assert decrypt(payload, DEVICE.conversation_key) == plaintext


def test_messages_between_two_keys_and_to_oneself() -> None:
    pair, own = PNS["nip44_pair"], PNS["nip44_self"]
    key = SecretKey(bytes.fromhex(pair["sender_secret"]))
    for case, other in ((pair, pair["receiver_pubkey"]), (own, key.pubkey)):
        shared = conversation_key(key, other)
        assert shared.hex() == case["conversation_key"]
        assert encrypt(case["plaintext"], shared, bytes.fromhex(case["nonce"])) == case["payload"]
        assert decrypt(case["payload"], shared) == case["plaintext"]


@pytest.mark.proves("D-30")
@pytest.mark.parametrize("case", PNS["bad"], ids=lambda case: case["name"])
def test_a_payload_that_is_wrong_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=case["error"]):
        decrypt(case["payload"], DEVICE.conversation_key)

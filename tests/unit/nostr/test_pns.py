"""Envelopes of derived keys (1080, 1081): what does not open. D-29, D-30."""

from __future__ import annotations

import orjson
import pytest

from relay.errors import Invalid
from relay.nostr import nip44
from relay.nostr.event import Event
from relay.nostr.pns import channel, derive, rumor, unwrap, unwrap_shared, wrap, wrap_shared
from tests.cast import alice, bob, robot

KEYS = derive(robot)
TEAM = channel(alice)
NONCES = (b"\1" * 32, b"\2" * 32)
INNER = robot.sign(1988, [["d", "s"]], "hello", 5)
SAID = rumor(bob.pubkey, 9, [["h", "tea"]], "hello", 5)


def envelope(text: str, kind: int = 1080) -> Event:
    """What the owner of the channel could put inside."""
    keys = TEAM if kind == 1081 else KEYS
    content = nip44.encrypt(text, keys.conversation_key, NONCES[0])
    return keys.key.sign(kind, [], content, 1)


def altered(event: Event, **fields: object) -> Event:
    return Event(**{**{name: getattr(event, name) for name in event.__struct_fields__}, **fields})


def altered_raw(event: Event, **fields: object) -> str:
    return orjson.dumps({**orjson.loads(event.raw), **fields}).decode()


def sealed(text: str, kind: int = 13) -> Event:
    key = nip44.conversation_key(bob, TEAM.pubkey)
    seal = bob.sign(kind, [], nip44.encrypt(text, key, NONCES[1]), 1)
    return envelope(seal.raw.decode(), 1081)


@pytest.mark.proves("D-29")
def test_an_envelope_reveals_only_its_time() -> None:
    event = wrap(KEYS, INNER, 77, NONCES[0])
    assert (event.kind, event.pubkey, event.tags, event.created_at) == (1080, KEYS.pubkey, [], 77)
    assert robot.pubkey not in event.raw.decode()
    assert unwrap(KEYS, event) == INNER


def test_a_channel_does_not_show_its_secrets() -> None:
    assert KEYS.key.hex not in repr(KEYS)
    assert KEYS.conversation_key.hex() not in repr(KEYS)
    assert repr(KEYS.conversation_key) not in repr(KEYS)


def test_an_envelope_of_another_channel_kind_or_key_does_not_open() -> None:
    event = wrap(KEYS, INNER, 1, NONCES[0])
    with pytest.raises(Invalid, match="envelope: belongs to another channel"):
        unwrap(derive(bob), event)
    with pytest.raises(Invalid, match="envelope: has kind 1081, not 1080"):
        unwrap(TEAM, envelope("{}", 1081))
    with pytest.raises(Invalid, match="envelope: has kind 1080, not 1081"):
        unwrap_shared(KEYS, event)
    with pytest.raises(Invalid, match="sig: invalid signature"):
        unwrap(KEYS, altered(event, sig="0" * 128))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no json", "the content is not JSON"),
        ("[]", "the content is not an event"),
        ("{}", "id: missing"),
        (INNER.raw.decode().replace("hello", "bye"), "id: is not the hash"),
        (INNER.raw.decode().replace(INNER.sig, "0" * 128), "sig: invalid signature"),
    ],
)
def test_an_envelope_without_a_signed_event_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unwrap(KEYS, envelope(text))


@pytest.mark.proves("D-30")
def test_a_shared_envelope_opens_with_the_shared_secret() -> None:
    event = wrap_shared(TEAM, bob, SAID, (2, 3), NONCES)
    assert (event.kind, event.pubkey, event.created_at) == (1081, TEAM.pubkey, 3)
    assert unwrap_shared(TEAM, event) == SAID
    assert bob.pubkey not in event.raw.decode()
    with pytest.raises(Invalid, match="another channel"):
        unwrap_shared(channel(bob), event)


@pytest.mark.proves("D-30")
def test_a_rumor_of_another_author_than_the_seal_is_refused() -> None:
    forged = rumor(alice.pubkey, 9, [], "I am alice", 5)
    with pytest.raises(Invalid, match="sealed by another key"):
        unwrap_shared(TEAM, sealed(forged.json()))
    with pytest.raises(Invalid, match="sealed by its author"):
        wrap_shared(TEAM, bob, forged, (1, 1), NONCES)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (sealed(SAID.json(), kind=14), "seal: has kind 14, not 13"),
        (sealed("no json"), "not JSON"),
        (sealed(orjson.dumps({**SAID._asdict(), "content": "x"}).decode()), "is not the hash"),
        (envelope(INNER.raw.decode(), 1081), "seal: has kind 1988"),
        (
            envelope(altered_raw(bob.sign(13, [], "x", 1), sig="0" * 128), 1081),
            "sig: invalid signature",
        ),
    ],
)
def test_an_envelope_without_a_sealed_rumor_is_refused(event: Event, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unwrap_shared(TEAM, event)


def test_who_signs_nothing_may_say_so() -> None:
    signed = robot.sign(9, [], "x", 1)
    assert rumor(robot.pubkey, 9, [], "x", 1).id == signed.id


@pytest.mark.proves("D-29")
def test_an_envelope_has_a_random_nonce() -> None:
    one, other = wrap(KEYS, INNER, 1), wrap(KEYS, INNER, 1)
    assert one.content != other.content
    assert unwrap(KEYS, one) == unwrap(KEYS, other) == INNER

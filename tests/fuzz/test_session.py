"""One frame at a time through `parse` and `Session`: the same promises, without a store behind."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from relay.nostr.event import event_from
from relay.nostr.filters import FilterTerms, as_json, filter_from
from relay.nostr.messages import Count, NegMessage, NegOpen, Publish, Subscribe, parse
from relay.nostr.nip42 import relay_address
from relay.server.session import (
    Hangup,
    Reply,
    Session,
    VerifyLogin,
)
from tests.fuzz.effort import share
from tests.fuzz.ledger import Ledger, message_of
from tests.fuzz.relay_in_memory import URL
from tests.fuzz.thrown import now, odd_texts, ok_reply, thrown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from relay.nostr.event import Event
    from relay.nostr.filters import Filter
    from relay.server.session import Effect
    from tests.fuzz.effort import Tally
    from tests.fuzz.thrown import Thrown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

TERMS = FilterTerms(search=True)
CHALLENGE = "c"
HERE = relay_address(URL)
assert HERE is not None


def new_session() -> Session:
    assert HERE is not None
    return Session(
        CHALLENGE, frozenset({HERE}), max_subscriptions=3, max_live_filters=20, trusted=False
    )


def test_every_frame_is_understood_or_refused(tally: Tally) -> None:
    session = new_session()

    @share(55)
    @given(thing=thrown)
    def understand(thing: Thrown) -> None:
        nonlocal session
        tally.example()
        frame = ok_reply(thing, CHALLENGE, URL)
        if not frame.is_text:
            return
        ledger = Ledger()
        ledger.sent(frame)
        effects = session.receive(parse(frame.data, TERMS, 3), now(), len(frame.data))
        for effect in effects:
            tally.counts[type(effect).__name__] += 1
            if isinstance(effect, Hangup):
                session = new_session()
        ledger.heard = list(_answers(effects))
        ledger.check()

    understand()
    if tally.is_telling:
        counts = tally.counts
        for effect, part in ((Publish, 4), (Subscribe, 30), (Count, 150), (Reply, 10)):
            assert counts[effect.__name__] > counts["examples"] / part, tally


def _answers(effects: Iterable[Effect]) -> Iterable[list[object]]:
    """What a relay on which all goes well would answer."""
    for effect in effects:
        match effect:
            case Reply(payload):
                yield message_of(payload)
            case Publish(event) | VerifyLogin(event):
                _check_event(event)
                yield ["OK", event.id, True, ""]
            case Subscribe(sub, filters):
                _check_filters(filters)
                yield ["EOSE", sub]
            case Count(sub, filters):
                _check_filters(filters)
                yield ["COUNT", sub, {"count": 0}]
            case NegOpen(sub) | NegMessage(sub):
                yield ["NEG-MSG", sub, ""]
            case _:
                pass


def _check_event(event: Event) -> None:
    """What is stored is what was signed, by a reader that is not ours."""
    fields = json.loads(event.raw)
    assert event_from(fields) == event
    parts = [0, *(fields[name] for name in ("pubkey", "created_at", "kind", "tags", "content"))]
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    assert sha256(text.encode()).hexdigest() == event.id


def _check_filters(filters: Iterable[Filter]) -> None:
    """Said again, a filter means the same."""
    for filter_ in filters:
        if not filter_.impossible and filter_.kinds != frozenset({-1}):
            again = filter_from(as_json(filter_), TERMS)
            assert structs.replace(again, first_tag_value=filter_.first_tag_value) == filter_


def test_any_text_is_an_address_or_none(tally: Tally) -> None:
    schemes = st.sampled_from(["ws://", "wss://", "http://", "WS:", "", "://", "ftp://"])
    rests = st.text(st.sampled_from("abA.:/@?#[]%0189-_ \x00\tñ⅟。"), max_size=30)

    @share(3)
    @given(scheme=schemes, rest=rests | odd_texts)
    @example(scheme="ws://", rest=".")
    def read(scheme: str, rest: str) -> None:
        tally.example()
        found = relay_address(scheme + rest)
        if found is not None:
            tally.counts["addresses"] += 1
            assert found.host

    read()
    if tally.is_telling:
        assert tally.counts["addresses"], tally

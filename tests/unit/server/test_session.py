"""relay/server/session.py: a message in, effects out. N01-50…56, N42."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from relay.access.visibility import Viewer
from relay.errors import Invalid, Prefix, Refused
from relay.nostr import messages
from relay.nostr.filters import Filter, FilterTerms, filter_from
from relay.nostr.messages import (
    BadEvent,
    BadFrame,
    BadQuery,
    Close,
    Count,
    NegClose,
    NegMessage,
    NegOpen,
    Publish,
    Subscribe,
)
from relay.nostr.nip42 import RelayAddress
from relay.server.session import (
    MAX_BAD_FRAMES,
    MAX_CALLS,
    MAX_KEYS,
    MAX_OPEN_BYTES,
    MAX_OPEN_VALUES,
    MAX_SEARCHES,
    MAX_WIDE,
    Hangup,
    Reply,
    Session,
    VerifyLogin,
)
from relay.write.judge import BAD_SIGNATURE
from tests.cast import alice, bob, carol, person, stranger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.server.session import Effect

NOW = 1_800_000_000
URL = "wss://relay.example/tea"
HERE = frozenset({RelayAddress("relay.example", None, "/tea")})
CHALLENGE = "c0ffee"
TERMS = FilterTerms()
NOTE = alice.sign(1, [], "tea is ready", NOW)


class Client:
    """Says frames to a session of its own; remembers all that was said back."""

    def __init__(
        self, *, max_subscriptions: int = 3, max_live_filters: int = 1000, trusted: bool = False
    ) -> None:
        self.session = Session(
            CHALLENGE,
            HERE,
            max_subscriptions=max_subscriptions,
            max_live_filters=max_live_filters,
            trusted=trusted,
        )

    def says(self, *frame: object, now: int = NOW) -> Sequence[Effect]:
        return self.sends(orjson.dumps(frame), now=now)

    def sends(self, text: bytes, now: int = NOW) -> Sequence[Effect]:
        return self.session.receive(messages.parse(text, TERMS, 5), now, len(text))

    def publishes(self, event: Event) -> Sequence[Effect]:
        return self.says("EVENT", orjson.loads(event.raw))

    def asks(self, sub: str, **conditions: object) -> Sequence[Effect]:
        return self.says("REQ", sub, conditions)

    def logs_in(self, who: SecretKey, **changes: Any) -> Sequence[Effect]:
        now = changes.pop("now", NOW)
        return self.says("AUTH", orjson.loads(login(who, **changes).raw), now=now)

    def is_logged_in_as(self, who: SecretKey, **changes: Any) -> None:
        """As a shell does it: the signature is looked at in between."""
        (effect,) = self.logs_in(who, **changes)
        assert isinstance(effect, VerifyLogin)
        reply = self.session.logged_in(effect.event)
        assert told([reply]) == [["OK", effect.event.id, True, ""]]


def login(
    who: SecretKey,
    *,
    at: int = NOW,
    kind: int = 22242,
    challenge: str = CHALLENGE,
    relay: str = URL,
) -> Event:
    return who.sign(kind, [["relay", relay], ["challenge", challenge]], "", at)


def told(effects: Sequence[Effect]) -> list[list[Any]]:
    """The frames among these effects."""
    return [orjson.loads(effect.payload) for effect in effects if isinstance(effect, Reply)]


@pytest.fixture
def client() -> Client:
    return Client()


# messages ----------------------------------------------------------------------------------------


@pytest.mark.proves("N42-02")
def test_a_challenge_is_sent_on_connect(client: Client) -> None:
    """N42-02."""
    assert orjson.loads(client.session.greeting()) == ["AUTH", CHALLENGE]


def test_any_author_may_publish(client: Client) -> None:
    """The policies decide."""
    (effect,) = client.publishes(NOTE)
    assert effect == Publish(NOTE)


def test_a_req_opens_a_subscription(client: Client) -> None:
    (effect,) = client.asks("tea", kinds=[9])
    assert isinstance(effect, Subscribe)
    assert effect.sub == "tea"
    assert [filter_.kinds for filter_ in effect.filters] == [frozenset({9})]
    assert client.session.open == ["tea"]


@pytest.mark.proves("N45-05")
def test_a_count_opens_nothing(client: Client) -> None:
    """N45-05."""
    (effect,) = client.says("COUNT", "tea", {"kinds": [9]}, {"kinds": [1]})
    assert isinstance(effect, Count)
    assert len(effect.filters) == 2
    assert client.session.open == []


@pytest.mark.proves("N01-56")
def test_close_ends_an_open_subscription_and_ignores_others(client: Client) -> None:
    """N01-56."""
    client.asks("tea")
    assert client.says("CLOSE", "tea") == (Close("tea"),)
    assert client.says("CLOSE", "tea") == ()
    assert client.says("CLOSE", "never opened") == ()
    assert client.session.open == []


@pytest.mark.proves("N01-54")
def test_a_req_with_an_open_id_replaces_it(client: Client) -> None:
    """N01-54: the old one ends before the new one is asked."""
    client.asks("tea", kinds=[9])
    dropped, asked = client.asks("tea", kinds=[1])
    assert dropped == Close("tea")
    assert isinstance(asked, Subscribe)
    assert client.session.open == ["tea"]


# limits ------------------------------------------------------------------------------------------


@pytest.mark.proves("N11-14")
def test_one_subscription_too_many_is_refused_and_the_others_stay(client: Client) -> None:
    """N11-14; N01-93."""
    for sub in "abc":
        client.asks(sub)
    (refusal,) = told(client.asks("d"))
    assert refusal == ["CLOSED", "d", "rate-limited: at most 3 open subscriptions"]
    assert client.session.open == list("abc")


@pytest.mark.proves("N11-14")
def test_a_replacement_does_not_count_twice(client: Client) -> None:
    """N11-14: replacing an id does not count as new."""
    for sub in "abc":
        client.asks(sub)
    assert [type(effect) for effect in client.asks("b")] == [Close, Subscribe]


def test_a_closed_subscription_no_longer_counts(client: Client) -> None:
    for sub in "abc":
        client.asks(sub)
    client.says("CLOSE", "a")
    assert isinstance(client.asks("d")[0], Subscribe)
    client.session.closed_by_relay("b")
    assert isinstance(client.asks("e")[0], Subscribe)
    assert told(client.asks("f"))[0][0] == "CLOSED"


def test_the_bytes_of_open_filters_are_limited(client: Client) -> None:
    """Their index uses memory as long as they are open."""
    large = ["x" * (MAX_OPEN_BYTES // 2)]
    client.asks("a", **{"#t": large})
    (refusal,) = told(client.asks("b", **{"#t": large}))
    text = "rate-limited: at most 1048576 bytes of filters in open subscriptions"
    assert refusal == ["CLOSED", "b", text]
    assert isinstance(client.asks("b")[0], Subscribe)
    assert [type(effect) for effect in client.asks("a", **{"#t": large})] == [Close, Subscribe]
    client.says("CLOSE", "a")
    assert isinstance(client.asks("c", **{"#t": large})[0], Subscribe)


def test_a_text_with_a_wide_character_counts_as_much_as_it_takes_in_memory(client: Client) -> None:
    """Four bytes for each character: 100 MB of such filters took 350 MB."""
    assert isinstance(client.asks("a", **{"#t": ["x" * (MAX_OPEN_BYTES // 3)]})[0], Subscribe)
    assert told(client.asks("b", **{"#t": ["x" * (MAX_OPEN_BYTES // 3) + "\U0001f600"]}))
    assert isinstance(client.asks("c", **{"#t": ["x" * (MAX_OPEN_BYTES // 3)]})[0], Subscribe)


@pytest.mark.parametrize(
    ("what", "most", "filter_"),
    [
        ("filters", 1000, {"ids": ["0" * 64]}),
        ("filters without ids, authors and tags", MAX_WIDE, {"since": 1}),
        ("filters without ids, authors and tags", MAX_WIDE, {"kinds": [1]}),
        ("searches", MAX_SEARCHES, {"search": "tea", "#t": ["x"]}),
        ("values", MAX_OPEN_VALUES, {"#t": [f"{n}" for n in range(MAX_OPEN_VALUES // 2)]}),
    ],
)
def test_what_open_filters_cost_is_limited(what: str, most: int, filter_: dict[str, Any]) -> None:
    """Each live filter costs the loop at every event, and memory as long as it is open."""
    client = Client(max_subscriptions=2000)
    one = filter_from(filter_, FilterTerms(search=True))
    count = most // one.values if what == "values" else most
    for number in range(count):
        sub = Subscribe(f"{number}", (one,))
        assert client.session.receive(sub, NOW, 10) == (sub,)
    (refusal,) = told(client.session.receive(Subscribe("more", (one,)), NOW, 10))
    text = f"rate-limited: at most {most} {what} in open subscriptions"
    assert refusal == ["CLOSED", "more", text]
    client.session.closed_by_relay("0")
    more = Subscribe("more", (one,))
    assert client.session.receive(more, NOW, 10) == (more,)


def test_open_filters_may_have_exactly_the_largest_size(client: Client) -> None:
    first, second = (Subscribe(sub, (Filter(),)) for sub in "ab")
    client.session.receive(first, NOW, MAX_OPEN_BYTES - 100)
    assert told(client.session.receive(second, NOW, 101))[0][:2] == ["CLOSED", "b"]
    assert client.session.receive(second, NOW, 100) == (second,)


def test_a_replacement_that_is_refused_ends_the_old_one_too(client: Client) -> None:
    """N01-54, N01-93."""
    client.asks("a")
    dropped, refusal = client.asks("a", **{"#t": ["x" * MAX_OPEN_BYTES]})
    assert dropped == Close("a")
    assert told([refusal])[0][:2] == ["CLOSED", "a"]
    assert client.session.open == []


@pytest.mark.proves("N01-93")
def test_a_malformed_req_closes_the_subscription_of_its_id(client: Client) -> None:
    """N01-93: after CLOSED nothing more for that id, so it must end here too."""
    client.asks("tea")
    dropped, refusal = client.asks("tea", kinds="9")
    assert dropped == Close("tea")
    assert told([refusal]) == [["CLOSED", "tea", "invalid: kinds: must be an array"]]
    assert client.session.open == []


def test_a_malformed_req_is_closed(client: Client) -> None:
    """N01-69, N01-52."""
    client.asks("coffee")
    refusals = told([*client.asks("tea", nonsense=1), *client.says("REQ", "x" * 65, {})])
    assert [refusal[:2] for refusal in refusals] == [["CLOSED", "tea"], ["CLOSED", "x" * 65]]
    assert client.session.open == ["coffee"]


@pytest.mark.proves("N45-05")
def test_a_malformed_count_does_not_close_the_subscription_of_its_id(client: Client) -> None:
    """N45-05: a query id does not collide with a subscription id of the same text."""
    client.asks("tea")
    refusal = told(client.says("COUNT", "tea", {"kinds": "9"}))
    assert refusal == [["CLOSED", "tea", "invalid: kinds: must be an array"]]
    assert client.session.open == ["tea"]


def test_negentropy_messages_are_taken_over_as_they_are(client: Client) -> None:
    frames = (["NEG-OPEN", "n", {}, "61"], ["NEG-MSG", "n", "61"], ["NEG-CLOSE", "n"])
    effects = [effect for frame in frames for effect in client.says(*frame)]
    assert effects == [NegOpen("n", Filter(), b"a"), NegMessage("n", b"a"), NegClose("n")]


def test_a_malformed_negentropy_message_ends_its_session(client: Client) -> None:
    """N77-04."""
    ended, refusal = client.says("NEG-MSG", "n", "not hex")
    assert ended == NegClose("n")
    text = "invalid: NEG-MSG: the negentropy message is not hex"
    assert told([refusal]) == [["NEG-ERR", "n", text]]


def test_an_invalid_event_gets_ok_false_with_its_id(client: Client) -> None:
    """N01-05."""
    fields = orjson.loads(NOTE.raw) | {"content": "tea is cold"}
    assert told(client.says("EVENT", fields)) == [
        ["OK", NOTE.id, False, "invalid: id: is not the hash of this event"]
    ]


# events of NIP-46 --------------------------------------------------------------------------------


@pytest.mark.proves("N46-02")
def test_nip46_events_are_rate_limited_per_connection(client: Client) -> None:
    """N46-02: so many at once, then some a second; all else goes on."""
    call = Publish(stranger.sign(24133, [["p", alice.pubkey]], "connect", NOW))

    def sent(many: int, now: int) -> list[bool]:
        return [isinstance(client.session.receive(call, now, 0)[0], Publish) for _ in range(many)]

    assert sent(MAX_CALLS + 1, NOW) == [True] * MAX_CALLS + [False]
    (refused,) = told(client.session.receive(call, NOW, 0))
    assert refused[:3] == ["OK", call.event.id, False]
    assert refused[3].startswith("rate-limited: ")
    assert client.session.receive(Publish(NOTE), NOW, 0) == (Publish(NOTE),)
    assert sent(3, NOW + 1) == [True, True, False]
    assert sent(1, NOW - 60) == [False]  # a clock that was set back gives nothing
    assert sent(MAX_CALLS + 1, NOW + 3600) == [True] * MAX_CALLS + [False]


# patience ----------------------------------------------------------------------------------------


def test_a_bad_frame_gets_a_notice_and_the_connection_stays_open(client: Client) -> None:
    """N01-51."""
    for text in (b"[", b"{}", b"[]", b'["HELLO"]', b'["REQ"]', b'["EVENT", 1]', b"\xff"):
        (notice,) = client.sends(text)
        assert told([notice])[0][0] == "NOTICE"
        assert told([notice])[0][1].startswith("invalid: ")


def test_twenty_bad_frames_in_a_row_end_the_connection(client: Client) -> None:
    """20 in a row close the connection (1008)."""
    for _ in range(MAX_BAD_FRAMES - 1):
        assert len(client.sends(b"tea?")) == 1
    notice, hangup = client.sends(b"tea?")
    assert told([notice])[0][0] == "NOTICE"
    assert hangup == Hangup(1008, "too many invalid messages")
    assert MAX_BAD_FRAMES == 20


@pytest.mark.parametrize(
    "message",
    [
        messages.Close("never opened"),
        messages.Publish(NOTE),
        BadEvent(NOTE.id, Invalid("kind: missing")),
        BadQuery("tea", Refused(Prefix.UNSUPPORTED, "search is not supported here")),
    ],
)
def test_a_valid_message_resets_the_count_of_bad_frames(
    client: Client, message: messages.ClientMessage
) -> None:
    """Only consecutive bad frames count; a malformed Nostr message resets the count too."""
    noise = BadFrame(Invalid("message is not JSON"))
    for _ in range(3):
        for _ in range(MAX_BAD_FRAMES - 1):
            assert len(client.session.receive(noise, NOW, 0)) == 1
        client.session.receive(message, NOW, 0)


@pytest.mark.proves("N01-59")
def test_pings_are_taken_in_silence_and_count_for_nothing(client: Client) -> None:
    """welshman (Flotilla, Coracle) sends PING after 30 s of silence (packages/net/src/policy.ts):
    20 of them are ten idle minutes. N01-59."""
    for _ in range(3 * MAX_BAD_FRAMES):
        assert client.sends(b'["PING"]') == ()
        assert client.sends(b'["PONG"]') == ()
    for _ in range(MAX_BAD_FRAMES - 1):
        assert len(client.sends(b"tea?")) == 1
        assert client.sends(b'["PING"]') == ()
    assert len(client.sends(b"tea?")) == 2


# logins ------------------------------------------------------------------------------------------


def test_a_login_with_a_valid_signature_is_accepted(client: Client) -> None:
    """N42-04; the signature is checked outside of the session."""
    (effect,) = client.logs_in(alice)
    assert isinstance(effect, VerifyLogin)
    assert client.session.viewer == Viewer()
    client.session.logged_in(effect.event)
    assert client.session.viewer == Viewer(frozenset({alice.pubkey}))


@pytest.mark.proves("N42-05", "N42-09")
def test_a_login_with_a_wrong_signature_is_refused(client: Client) -> None:
    """N42-09: earlier keys stay valid."""
    client.is_logged_in_as(alice)
    event = login(bob)
    reply = client.session.login_refused(event, BAD_SIGNATURE.refused())
    assert told([reply])[0][:3] == ["OK", event.id, False]
    assert client.session.viewer.keys == {alice.pubkey}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": 1}, "kind"),
        ({"kind": 22243}, "kind"),
        ({"at": NOW - 601}, "created_at"),
        ({"at": NOW + 601}, "created_at"),
        ({"challenge": "somebody else's"}, "challenge"),
        ({"relay": "wss://other.example/tea"}, "relay"),
        ({"relay": "wss://relay.example/coffee"}, "relay"),
        ({"relay": "wss://relay.example:444/tea"}, "relay"),
    ],
)
def test_a_login_for_another_relay_or_time_is_refused(
    client: Client, changes: dict[str, Any], field: str
) -> None:
    """N42-05, N42-06."""
    client.is_logged_in_as(bob)
    (answer,) = told(client.logs_in(alice, **changes))
    assert answer[2] is False
    assert answer[3].startswith(f"invalid: {field}: ")
    assert client.session.viewer.keys == {bob.pubkey}


@pytest.mark.proves("N42-05")
@pytest.mark.parametrize("ahead", [-600, 0, 600])
def test_a_login_may_be_ten_minutes_off(client: Client, ahead: int) -> None:
    """`now` is the time of the message, not of the challenge."""
    client.is_logged_in_as(alice, at=NOW + 90_000 + ahead, now=NOW + 90_000)
    assert told(client.logs_in(bob, at=NOW + ahead, now=NOW + 90_000))[0][2] is False


@pytest.mark.proves("N42-07")
def test_several_keys_may_log_in(client: Client) -> None:
    """N42-07."""
    for who in (alice, bob, carol):
        client.is_logged_in_as(who)
    assert client.session.viewer.keys == {alice.pubkey, bob.pubkey, carol.pubkey}


@pytest.mark.proves("N42-14")
def test_a_login_may_be_repeated(client: Client) -> None:
    """N42-14: idempotent on the same connection."""
    client.is_logged_in_as(alice)
    client.is_logged_in_as(alice)
    assert client.session.viewer.keys == {alice.pubkey}


def test_the_keys_of_a_connection_are_limited(client: Client) -> None:
    """A key that is logged in may log in again."""
    crowd = [person(f"guest {number}") for number in range(MAX_KEYS)]
    for who in crowd:
        client.is_logged_in_as(who)
    (answer,) = told(client.logs_in(alice))
    assert answer[2:] == [False, "rate-limited: at most 64 keys on one connection"]
    client.is_logged_in_as(crowd[0])


@pytest.mark.proves("N42-13")
def test_a_login_does_not_repeat_open_queries(client: Client) -> None:
    """N42-13: the client asks again; nothing is dropped or asked for it."""
    client.asks("tea")
    client.is_logged_in_as(alice)
    assert client.session.open == ["tea"]


def test_trusted_address_and_logins_are_independent() -> None:
    """A-20, N42-16: neither gives or takes the other."""
    client = Client(trusted=True)
    client.is_logged_in_as(alice)
    assert client.session.viewer == Viewer(frozenset({alice.pubkey}), trusted=True)
    client.session.trust(trusted=False)
    assert client.session.viewer == Viewer(frozenset({alice.pubkey}), trusted=False)

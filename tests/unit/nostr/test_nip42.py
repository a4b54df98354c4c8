"""relay/nostr/nip42.py: validation of AUTH events. NIP-42."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.nip42 import OwnAddresses, RelayAddress, check_login, may_stand_for, relay_address
from tests.cast import alice

if TYPE_CHECKING:
    from relay.nostr.event import Event
    from relay.nostr.nip50 import NormalForm

NOW = 1_800_000_000
URL = "wss://relay.example"
CHALLENGE = "c0ffee"
MARKS = "\u0301\u0316" * 1000


def address(url: str) -> RelayAddress:
    found = relay_address(url)
    assert found is not None
    return found


HERE = frozenset({address(URL), address("ws://127.0.0.1:7777/nostr")})


def login(*tags: list[str], kind: int = 22242, at: int = NOW) -> Event:
    return alice.sign(kind, list(tags) or [["relay", URL], ["challenge", CHALLENGE]], "", at)


def refusal_of(event: Event) -> str:
    with pytest.raises(Invalid) as refused:
        check_login(event, CHALLENGE, HERE, NOW)
    return refused.value.text


def test_the_right_challenge_at_the_right_relay_is_a_login() -> None:
    """N42-05."""
    check_login(login(), CHALLENGE, HERE, NOW)
    check_login(login(["challenge", CHALLENGE], ["relay", URL], ["x"]), CHALLENGE, HERE, NOW)


def test_any_address_of_this_relay_is_accepted() -> None:
    there = login(["relay", "ws://127.0.0.1:7777/nostr/"], ["challenge", CHALLENGE])
    check_login(there, CHALLENGE, HERE, NOW)


@pytest.mark.parametrize("kind", [1, 22241, 27235])
def test_another_kind_is_no_login(kind: int) -> None:
    """N42-05."""
    assert refusal_of(login(kind=kind)).startswith("kind:")


@pytest.mark.parametrize("ahead", [-600, -1, 0, 1, 600])
def test_a_created_at_within_ten_minutes_is_accepted(ahead: int) -> None:
    """N42-05."""
    check_login(login(at=NOW + ahead), CHALLENGE, HERE, NOW)


@pytest.mark.parametrize("ahead", [-1800, -601, 601, 1800])
def test_a_created_at_more_than_ten_minutes_off_is_refused(ahead: int) -> None:
    """N42-05."""
    assert refusal_of(login(at=NOW + ahead)).startswith("created_at:")


@pytest.mark.parametrize("value", ["", "C0FFEE", "c0ffee ", "other"])
def test_another_challenge_is_refused(value: str) -> None:
    """N42-05."""
    assert refusal_of(login(["relay", URL], ["challenge", value])).startswith("challenge:")


def test_a_login_needs_both_tags() -> None:
    """N42-05."""
    assert refusal_of(login(["relay", URL])).startswith("challenge:")
    assert refusal_of(login(["relay", URL], ["challenge"])).startswith("challenge:")
    assert refusal_of(login(["challenge", CHALLENGE])).startswith("relay:")
    assert refusal_of(login(["challenge", CHALLENGE], ["relay"])).startswith("relay:")


def test_of_two_tags_the_first_counts() -> None:
    """N42-15."""
    wrong, right = ["challenge", "other"], ["challenge", CHALLENGE]
    assert refusal_of(login(["relay", URL], wrong, right)).startswith("challenge:")
    check_login(login(["relay", URL], right, wrong), CHALLENGE, HERE, NOW)
    elsewhere, here = ["relay", "wss://elsewhere.example"], ["relay", URL]
    assert refusal_of(login(right, elsewhere, here)).startswith("relay:")
    check_login(login(right, here, elsewhere), CHALLENGE, HERE, NOW)


@pytest.mark.parametrize(
    "url",
    [
        "wss://relay.example/",
        "wss://RELAY.example",
        "WSS://relay.example:443",
        "ws://relay.example",
        "ws://relay.example:80/",
        "https://relay.example",
        " wss://relay.example\n",
        "wss://relay.example.",
    ],
)
def test_spellings_of_one_address_are_equal(url: str) -> None:
    """N42-06."""
    assert relay_address(url) == address(URL)


@pytest.mark.parametrize(
    ("url", "known", "may"),
    [
        ("wss://relay.example/", "wss://relay.example:443", True),
        ("ws://relay.example", "ws://relay.example", True),
        ("wss://relay.example", "ws://relay.example", True),
        ("ws://relay.example", "wss://relay.example", False),
        (" WS://relay.example:443", "wss://relay.example", False),
        ("wss://other.example", "wss://relay.example", False),
    ],
)
def test_a_client_sends_nothing_in_clear_text_that_is_for_a_relay_with_tls(
    url: str, known: str, *, may: bool
) -> None:
    assert may_stand_for(url, known) is may


@pytest.mark.parametrize(
    "url",
    [
        "wss://other.example",
        "wss://relay.example:8443",
        "wss://relay.example/path",
        "wss://sub.relay.example",
        "wss://relay.example:80",
        "ws://relay.example:443",
        "wss://relay.example/nostr",
        "wss://relay.exampl",
    ],
)
def test_another_host_port_or_path_is_another_relay(url: str) -> None:
    """N42-06."""
    assert address(url) != address(URL)
    assert refusal_of(login(["relay", url], ["challenge", CHALLENGE])).startswith("relay:")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relay.example",
        "//relay.example",
        "ftp://relay.example",
        "wss://",
        "wss:///path",
        "wss://me@relay.example",
        "wss://relay.example?x",
        "wss://relay.example#x",
        "wss://relay.example:port",
        "wss://relay.example:99999",
        "wss://[::1",
        "intentionally wrong",
        f"wss://{'a' * 64}.example",
        f"wss://{'ü' * 60}.example",
        f"wss://{'a.' * 130}example",
        "wss://relay..example",
        "wss://.example",
        "wss://" + 30 * "\ufdfa." + "example",
        f"wss://relay.example/{'a' * 2048}",
    ],
)
def test_a_text_that_is_no_relay_url_has_no_address(url: str) -> None:
    """N42-06."""
    assert relay_address(url) is None
    assert refusal_of(login(["relay", url], ["challenge", CHALLENGE])).startswith("relay:")


@pytest.mark.parametrize("host", ["a" * 63 + ".example", "a_b", "bücher.example", "🐦.example"])
def test_any_host_that_can_be_asked_for_has_an_address(host: str) -> None:
    assert address(f"wss://{host}/") == RelayAddress(host, None, "")


@pytest.mark.parametrize("host", [MARKS, f"me:{MARKS}@a.b"])
def test_only_what_may_be_a_host_is_normalized(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`urlsplit` does so: 10 ms for each login with a URL of 4 kB."""
    normalize, lengths = unicodedata.normalize, [0]

    def noted(form: NormalForm, text: str) -> str:
        lengths.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", noted)
    assert refusal_of(login(["relay", f"wss://{host}/"], ["challenge", CHALLENGE]))
    assert max(lengths) < 300


@pytest.mark.parametrize(
    "url",
    [
        "ws://" + 11 * "\ufdfa." + "example/relay.example",
        "ws://relay.example\ufdfa\ufdfa",
        "ws://" + 250 * "\u00fc",
        "ws://relay.example:" + 80 * "\ufdfa",
        "ws://relay.example" + 80 * "\ufdfa" + "@relay.example",
    ],
)
def test_a_url_in_an_event_costs_no_idna(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to vanish may name thousands, and anybody may send many logins."""
    prepared: list[str] = []

    def nameprep(label: str) -> str:
        prepared.append(label)
        return label

    monkeypatch.setattr("encodings.idna.nameprep", nameprep)
    relay_address("ws://bücher.example")
    assert prepared.pop() == "bücher"
    assert not OwnAddresses("wss://relay.example").has(url)
    assert refusal_of(login(["relay", url], ["challenge", CHALLENGE])).startswith("relay:")
    assert prepared == []


@pytest.mark.parametrize(
    "url",
    [
        " WSS://Relay.Example",
        "ws://relay.example:80/",
        "https://relay.example.:443",
        "wss://relay.example",
    ],
)
def test_each_spelling_of_the_own_url_is_known(url: str) -> None:
    assert OwnAddresses("wss://relay.example").has(url)


def test_an_ipv6_address_is_an_address() -> None:
    assert address("ws://[::1]:7777") == RelayAddress("::1", 7777, "")


@given(st.text(max_size=60) | st.text(max_size=40).map(lambda text: f"wss://{text}"))
def test_no_text_makes_relay_address_raise(url: str) -> None:
    found = relay_address(url)
    assert found is None or found.host is not None

"""relay/nostr/nip98.py: validation of Authorization headers. NIP-98."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.nostr.event import Event, event_from_raw
from relay.nostr.nip42 import RelayAddress, relay_address
from relay.nostr.nip98 import HttpRequest, authorization
from tests.cast import alice, bob

NOW = 1_800_000_000
URL = "https://relay.example/nostr"
BODY = b'{"method":"supportedmethods","params":[]}'
POST = HttpRequest("POST", "", BODY)


def address(url: str) -> RelayAddress:
    found = relay_address(url)
    assert found is not None
    return found


HERE = frozenset({address(URL), address("ws://127.0.0.1:7777")})


def header(event: Event) -> str:
    return "Nostr " + b64encode(event.raw).decode()


def token(
    *,
    u: str | None = URL,
    method: str | None = "POST",
    payload: str | None = None,
    kind: int = 27235,
    at: int = NOW,
) -> Event:
    said = {"u": u, "method": method, "payload": payload or sha256(BODY).hexdigest()}
    tags = [[name, value] for name, value in said.items() if value is not None]
    return alice.sign(kind, tags, "", at)


def without(event: Event, name: str) -> Event:
    tags = [tag for tag in event.tags if tag[0] != name]
    return alice.sign(event.kind, tags, "", event.created_at)


def speaks(event: Event, request: HttpRequest = POST) -> bool:
    return authorization(header(event), request, HERE, NOW) == event


def refusal_of(said: Event | str | None, request: HttpRequest = POST) -> str:
    with pytest.raises(Invalid) as refused:
        authorization(header(said) if isinstance(said, Event) else said, request, HERE, NOW)
    return refused.value.text


@pytest.mark.proves("N98-01")
@pytest.mark.parametrize("scheme", ["Nostr", "nostr", "NOSTR"])
@pytest.mark.parametrize("length", range(3))
def test_base64_may_be_padded_or_not(scheme: str, length: int) -> None:
    event = alice.sign(27235, [*token().tags, ["x", "y" * length]], "", NOW)
    code = b64encode(event.raw).decode()
    for text in (code, code.rstrip("=")):
        assert authorization(f"{scheme} {text}", POST, HERE, NOW) == event


@pytest.mark.proves("N98-01", "N98-07")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "authorization: missing"),
        ("", "authorization: the scheme"),
        ("Bearer abc", "authorization: the scheme"),
        ("Nostr", "authorization: the base64 does not contain JSON"),
        ("Nostr ****", "authorization: is not base64"),
        ("Nostr é", "authorization: is not base64"),
        ("Nostr A", "authorization: is not base64"),
        ("Nostr " + b64encode(b"{").decode(), "authorization: the base64 does not contain JSON"),
        ("Nostr " + b64encode(b"\xff").decode(), "authorization: the base64 does not contain JSON"),
        ("Nostr " + b64encode(b"[]").decode(), "event: must be a JSON object"),
        ("Nostr " + b64encode(b"{}").decode(), "id: missing"),
    ],
)
def test_a_header_without_an_event_is_refused(text: str | None, said: str) -> None:
    assert refusal_of(text).startswith(said)


@pytest.mark.proves("N98-02")
def test_the_event_must_be_a_signed_27235() -> None:
    assert refusal_of(token(kind=22242)).startswith("kind:")
    event = token()
    by_bob = event.raw.replace(
        event.sig.encode(), bob.sign_digest(bytes.fromhex(event.id)).encode()
    )
    assert refusal_of(event_from_raw(by_bob)).startswith("sig:")
    altered = event.raw.replace(b'"POST"', b'"post"')
    assert refusal_of(event_from_raw(altered)).startswith("id:")


@pytest.mark.proves("N98-03")
def test_a_created_at_more_than_a_minute_off_is_refused() -> None:
    assert all(speaks(token(at=NOW + ahead)) for ahead in (-60, 0, 60))
    for ahead in (-61, 61):
        assert refusal_of(token(at=NOW + ahead)).startswith("created_at:")


@pytest.mark.proves("N98-04", "N86-02")
@pytest.mark.parametrize(
    "url",
    [
        URL,
        URL + "/",
        "wss://relay.example/nostr",
        "ws://relay.example:80/nostr/",
        "HTTPS://RELAY.example:443/nostr",
        "http://127.0.0.1:7777/",
    ],
)
def test_u_may_be_any_spelling_of_the_address(url: str) -> None:
    assert speaks(token(u=url))


@pytest.mark.proves("N98-04")
@pytest.mark.parametrize(
    "url",
    [
        "https://other.example/nostr",
        "https://relay.example",
        "https://relay.example/nostr/x",
        "https://relay.example:8443/nostr",
        URL + "?a=1",
        URL + "#x",
        "",
        "relay.example/nostr",
    ],
)
def test_another_address_is_refused(url: str) -> None:
    assert refusal_of(token(u=url)).startswith("u:")


@pytest.mark.proves("N98-04")
def test_the_query_belongs_to_the_address() -> None:
    asked = HttpRequest("POST", "a=1&b=2", BODY)
    assert speaks(token(u=URL + "?a=1&b=2"), asked)
    for url in (URL, URL + "?a=1", URL + "?b=2&a=1"):
        assert refusal_of(token(u=url), asked).startswith("u:")


@pytest.mark.proves("N98-05")
def test_the_method_is_the_one_of_the_request_in_any_case() -> None:
    assert speaks(token(method="post"))
    assert speaks(token(), HttpRequest("post", "", BODY))
    assert refusal_of(token(method="GET")) == "method: is not POST"


@pytest.mark.proves("N98-06", "N86-02")
def test_a_body_needs_its_hash() -> None:
    assert refusal_of(without(token(), "payload")).startswith("payload: missing")
    for wrong in (sha256(b"").hexdigest(), sha256(BODY).hexdigest().upper(), "x"):
        assert refusal_of(token(payload=wrong)).startswith("payload: is not")


@pytest.mark.proves("N98-06")
def test_without_a_body_a_hash_may_be_left_out_but_not_be_wrong() -> None:
    get = HttpRequest("GET", "", b"")
    assert speaks(without(token(method="GET"), "payload"), get)
    assert speaks(token(method="GET", payload=sha256(b"").hexdigest()), get)
    assert refusal_of(token(method="GET"), get).startswith("payload: is not")


@pytest.mark.proves("N98-04", "N98-05", "N98-07")
@pytest.mark.parametrize("name", ["u", "method"])
def test_a_missing_tag_is_refused(name: str) -> None:
    assert refusal_of(without(token(), name)).startswith(f"{name}:")


@pytest.mark.proves("N98-07")
def test_content_is_not_looked_at() -> None:
    assert speaks(alice.sign(27235, token().tags, "hello", NOW))


@given(
    st.text(max_size=60) | st.binary(max_size=60).map(lambda b: f"Nostr {b64encode(b).decode()}")
)
def test_any_header_is_an_authorization_or_raises_invalid(text: str) -> None:
    assert refusal_of(text)

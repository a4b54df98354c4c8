"""relay/server/http.py: NIP-11, the page for browsers, client addresses."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from relay.access.management import ListChange, ListName, Management
from relay.config import Config, RelayConfig, StorageConfig
from relay.groups.group import Groups
from relay.nostr.nip42 import relay_address
from relay.server.http import (
    client_address,
    information,
    is_local,
    is_of_page,
    is_within,
    page,
    unparsed_address,
    wants_information,
)
from relay.state import RelayState
from relay.storage import Features
from tests.cast import alice, owner, robot
from tests.harness.folders import loaded
from tests.harness.reference_store import ReferenceStore
from tests.unit.server.test_app import NOW, OPEN, RELAY, Relay, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp import web

PROXIES = [ip_network("127.0.0.1/32"), ip_network("10.0.0.0/8"), ip_network("::1/128")]
NOWHERE = None


# where a request comes from ----------------------------------------------------------------------


class Peer:
    """A transport that knows only who is at its other end."""

    def __init__(self, address: str | None) -> None:
        self._address = address

    def get_extra_info(self, name: str) -> object:
        return (self._address, 5) if name == "peername" and self._address else None


def request_from(peer: str | None, *headers: tuple[str, str]) -> web.Request:
    return make_mocked_request("GET", "/", CIMultiDict(headers), transport=Peer(peer))


def address_of(peer: str | None, *forwarded: str) -> str | None:
    lines = [("X-Forwarded-For", line) for line in forwarded]
    found = client_address(request_from(peer, *lines), PROXIES)
    return None if found is None else str(found)


@pytest.mark.parametrize(
    ("peer", "lines", "address"),
    [
        ("127.0.0.1", ["9.9.9.9, 203.0.113.7"], "203.0.113.7"),
        ("127.0.0.1", ["9.9.9.9", "2001:db8::1,10.0.0.1"], "2001:db8::1"),
        ("127.0.0.1", ["9.9.9.9, x"], "127.0.0.1"),
        ("127.0.0.1", ["9.9.9.9" + ",10.0.0.1" * 8], "127.0.0.1"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("::1", ["198.51.100.1"], "198.51.100.1"),
    ],
)
def test_a_request_that_is_not_parsed_is_of_who_the_proxy_says(
    peer: str, lines: list[str], address: str
) -> None:
    head = "GET / HTTP/1.1\r\n" + "".join(f"x-forwarded-for: {line}\r\n" for line in lines)
    assert str(unparsed_address(head.encode(), peer, PROXIES)) == address
    assert str(unparsed_address(head.encode() + b"X: " + b"x" * 9000, peer, PROXIES)) == address
    body = b"\r\nX-Forwarded-For: 192.0.2.1\r\n"
    assert str(unparsed_address(head.encode() + body + body, peer, PROXIES)) == address


@pytest.mark.parametrize("peer", ["127.0.0.2", "11.1.2.3", "203.0.113.9", "::2", "2001:db8::1"])
def test_without_a_proxy_the_peer_is_the_client(peer: str) -> None:
    assert address_of(peer) == peer


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.1.2.3", "::1"])
def test_a_proxy_that_names_no_client_is_nowhere(peer: str) -> None:
    """It must not lend its own address, which may be loopback, to whom it serves."""
    assert address_of(peer) is NOWHERE
    assert not is_local(request_from(peer), PROXIES)
    assert is_local(request_from("127.0.0.1"), [])
    assert not is_local(request_from("203.0.113.9", ("X-Forwarded-For", "127.0.0.1")), PROXIES)


@pytest.mark.parametrize(
    ("origin", "is_other"),
    [
        (None, False),
        ("https://relay.example", False),
        ("http://relay.example:443", True),
        ("https://evil.example", True),
        ("https://relay.example.evil.example", True),
        ("null", True),
        ("", True),
    ],
)
def test_a_page_of_another_origin_is_told_by_its_browser(
    origin: str | None, *, is_other: bool
) -> None:
    here = relay_address("wss://relay.example/nostr")
    assert here is not None
    lines = [] if origin is None else [("Origin", origin)]
    request = request_from("127.0.0.1", *lines, ("Host", "evil.example"))
    assert is_of_page(request, [here]) is is_other


@pytest.mark.proves("A-20")
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "x-forwarded-for"])
@pytest.mark.parametrize("peer", ["203.0.113.9", "192.168.0.1", None])
def test_a_forwarding_header_of_an_untrusted_peer_makes_the_address_unknown(
    peer: str | None, header: str
) -> None:
    """Counts as from nowhere, so that no list can trust it."""
    request = request_from(peer, (header, "127.0.0.1"))
    assert client_address(request, PROXIES) is NOWHERE
    assert client_address(request, []) is NOWHERE
    assert not is_within(NOWHERE, [ip_network("0.0.0.0/0"), ip_network("::/0")])


@pytest.mark.proves("A-20")
@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (["203.0.113.9"], "203.0.113.9"),
        ([" 203.0.113.9 , 10.0.0.7"], "203.0.113.9"),
        (["2001:db8::1"], "2001:db8::1"),
        (["[2001:db8::1]"], "2001:db8::1"),
        # what the client itself said stands further left, and counts for nothing
        (["127.0.0.1, 203.0.113.9"], "203.0.113.9"),
        (["127.0.0.1", "203.0.113.9"], "203.0.113.9"),
        (["10.9.9.9, 203.0.113.9, 10.0.0.7"], "203.0.113.9"),
        (["203.0.113.1, nonsense, 203.0.113.9"], "203.0.113.9"),
        # nothing that could be read
        (["203.0.113.9, nonsense"], NOWHERE),
        (["unknown"], NOWHERE),
        ([""], NOWHERE),
        (["203.0.113.9,"], NOWHERE),
        (["10.0.0.7, 127.0.0.1"], NOWHERE),
    ],
)
def test_the_last_hop_that_is_no_trusted_proxy_is_the_client(
    forwarded: list[str], address: str | None
) -> None:
    """The last proxy appends, in the line or by one of its own; forged hops come before."""
    assert address_of("127.0.0.1", *forwarded) == address


def test_other_forwarding_headers_of_a_proxy_make_the_address_unknown() -> None:
    request = request_from("127.0.0.1", ("Forwarded", "for=203.0.113.9"))
    assert client_address(request, PROXIES) is NOWHERE


def test_an_address_is_the_same_in_both_spellings() -> None:
    """A socket of IPv6 shows IPv4 peers as ::ffff:…"""
    mapped = ip_address("::ffff:10.1.2.3")
    assert is_within(mapped, PROXIES)
    assert not is_within(ip_address("::ffff:203.0.113.9"), PROXIES)
    assert address_of("::ffff:10.1.2.3", "203.0.113.9") == "203.0.113.9"


# the document ------------------------------------------------------------------------------------


@pytest.mark.proves("N11-01")
@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/nostr+json", True),
        ("APPLICATION/NOSTR+JSON", True),
        ("text/html, application/nostr+json;q=0.9, */*", True),
        ("application/nostr+json ; v=1", True),
        ("text/html", False),
        ("application/json", False),
        ("application/nostr+json+rpc", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_nip11_is_selected_by_the_accept_header(accept: str, *, wanted: bool) -> None:
    """N11-01."""
    assert wants_information(CIMultiDict({"Accept": accept})) is wanted
    assert not wants_information(CIMultiDict())


def document_of(
    folder: Path,
    config: Config,
    features: Features = ReferenceStore.features,
    management: Management | None = None,
    **policies: str,
) -> dict[str, Any]:
    state = RelayState(loaded(folder, **policies), Groups(), management)
    document: dict[str, Any] = orjson.loads(information(config, state, RELAY.pubkey, features))
    return document


@pytest.mark.proves("N11-05", "N11-06", "N11-07", "N11-10")
def test_nip11_names_the_relay_and_its_software(tmp_path: Path) -> None:
    """N11-04…10; N11-24: nothing of groups."""
    relay = RelayConfig("Tea", "For tea", "mailto:a@b.c", "https://i", "https://b", "https://t")
    actors = f'[actors]\nowners = ["{owner.npub}", "{robot.npub}"]'
    document = document_of(tmp_path, Config(relay=relay), a=actors)
    assert {key: document[key] for key in ("name", "description", "contact", "icon", "banner")} == {
        "name": "Tea",
        "description": "For tea",
        "contact": "mailto:a@b.c",
        "icon": "https://i",
        "banner": "https://b",
    }
    assert document["terms_of_service"] == "https://t"
    assert document["self"] == RELAY.pubkey
    assert document["pubkey"] in (owner.pubkey, robot.pubkey)
    assert document["software"].startswith("https://")
    assert isinstance(document["version"], str)


@pytest.mark.proves("N11-09")
@pytest.mark.parametrize("search", [True, False])
def test_supported_nips_lists_only_what_is_implemented(tmp_path: Path, *, search: bool) -> None:
    """N11-09: nothing that clients do among themselves, nothing that is off or not built."""
    of_clients = {4, 5, 6, 7, 8, 10, 18, 19, 21, 22, 25, 32, 44, 46, 51, 65, 78}
    not_built = {67}
    features = Features(search=search, shared=False)
    announced = document_of(tmp_path, Config(), features)["supported_nips"]
    assert announced == sorted(announced)
    assert set(announced).isdisjoint(of_clients | not_built)
    assert {1, 9, 11, 13, 17, 29, 40, 42, 45, 59, 62, 70} <= set(announced)
    assert (50 in announced) is search


@pytest.mark.proves("N11-09")
def test_supported_nips_are_numbers(tmp_path: Path) -> None:
    """nostr-sdk (nip11.rs, `Vec<u16>`) and nostr-tools (nip11.ts, `number[]`) take numbers only,
    and Flotilla makes texts of them itself (src/app/core/state.ts)."""
    for features in (Features(search=True, shared=False), Features(search=False, shared=False)):
        announced = document_of(tmp_path, Config(), features)["supported_nips"]
        assert {type(nip) for nip in announced} == {int}


@pytest.mark.proves("N11-06", "N11-07", "N11-11")
def test_nip11_has_what_clients_of_groups_look_for(tmp_path: Path) -> None:
    """nak compares `self` with the author in an address (group.go, parseGroupIdentifier); Nostrord
    takes `self`, else `pubkey`, and offers subgroups only with `nip29.subgroups`
    (NostrGroupClient.kt); jumble offers membership only with `pubkey` (src/lib/relay.ts)."""
    document = document_of(tmp_path, Config(), a=f'[actors]\nowners = ["{owner.npub}"]')
    assert document["self"] == RELAY.pubkey
    assert document["pubkey"] == owner.pubkey
    assert document["nip29"] == {"subgroups": True}


@pytest.mark.proves("G-25")
def test_nip11_names_memory_kinds_and_filter_terms(tmp_path: Path) -> None:
    terms = StorageConfig(index_tags=frozenset({"hk", "x"}), prefix_d_kinds=frozenset({78}))
    document = document_of(tmp_path, Config(storage=terms))
    assert document["memory"] == {
        "kinds": [
            78,
            [1080, 1081],
            [1988, 1989],
            30078,
            [30090, 30097],
            [31988, 31989],
            31991,
        ],
        "index_tags": ["hk", "x"],
        "prefix_d_kinds": [78],
        "search": ["match", "near"],
        "history": False,
    }
    refused = Management().after(ListChange(ListName.REFUSED_KINDS, "30092", ""))
    told = document_of(tmp_path, Config(), management=refused)["memory"]["kinds"]
    assert told[4:6] == [[30090, 30091], [30093, 30097]]


@pytest.mark.proves("G-25", "A-21")
def test_default_limits_suit_memory_clients(tmp_path: Path) -> None:
    limitation = document_of(tmp_path, Config())["limitation"]
    assert limitation["max_message_length"] == 524_288
    assert limitation["default_limit"] >= 50_000
    assert limitation["max_limit"] >= 50_000


@pytest.mark.proves("N11-03")
def test_empty_settings_are_left_out_of_nip11(tmp_path: Path) -> None:
    """N11-03."""
    document = document_of(tmp_path, Config())
    assert {"contact", "icon", "banner", "terms_of_service", "pubkey"}.isdisjoint(document)


@pytest.mark.proves("N11-21")
@pytest.mark.parametrize(("policy", "restricted"), [("", True), (OPEN, False)])
def test_restricted_writes_follows_the_policy(
    tmp_path: Path, policy: str, *, restricted: bool
) -> None:
    """N11-21."""
    limitation = document_of(tmp_path, Config(), a=policy)["limitation"]
    assert limitation["restricted_writes"] is restricted
    assert limitation["auth_required"] is limitation["payment_required"] is False


def test_a_browser_sees_a_page_without_the_admins_markup_in_it() -> None:
    config = Config(relay=RelayConfig(name="<script>", description='"><img>'))
    shown = page(config, Management())
    assert "<script>" not in shown
    assert "<img>" not in shown
    assert "&lt;script&gt;" in shown


# every limit is the one enforced -----------------------------------------------------------------


async def limits_of(relay: Relay) -> dict[str, Any]:
    document = await relay.get(Accept="application/nostr+json")
    limitation: dict[str, Any] = orjson.loads(await document.read())["limitation"]
    return limitation


@pytest.mark.proves("N11-12", "N11-13")
@pytest.mark.parametrize("most", [300, 1000])
async def test_max_message_length_is_enforced(most: int) -> None:
    """N11-13."""
    async with serving(f"[limits]\nmax_message_length = {most}\n") as relay:
        assert (await limits_of(relay))["max_message_length"] == most
        visit = await relay.visit()
        await visit.socket.send_str('["CLOSE","x"'.ljust(most - 1) + "]")
        assert await visit.asks({}) == [["EOSE", "s"]]
        await visit.socket.send_str('["CLOSE","x"'.ljust(most) + "]")
        over = ["NOTICE", f"invalid: message is over {most} bytes"]
        assert await visit.hears_all() == [over, ["closed", 1009]]


@pytest.mark.proves("N11-12", "N11-14", "N11-15")
@pytest.mark.parametrize("most", [1, 3])
async def test_announced_limits_of_subscriptions_and_filters_are_enforced(most: int) -> None:
    """N11-14, N11-15."""
    async with serving(f"[limits]\nmax_subscriptions = {most}\nmax_filters = {most}\n") as relay:
        limits = await limits_of(relay)
        assert limits["max_subscriptions"] == limits["max_filters"] == most
        visit = await relay.visit()
        longest = limits["max_subid_length"]
        for number in range(most):
            sub = str(number).rjust(longest)
            assert await visit.asks(*[{}] * most, sub=sub) == [["EOSE", sub]]
        assert (await visit.asks({}, sub="one more"))[0][2].startswith("rate-limited: ")
        assert (await visit.asks({}, sub="x" * (longest + 1)))[0][2].startswith("invalid: ")
        too_many = await visit.asks(*[{}] * (most + 1), sub="0".rjust(longest))
        assert too_many[0][2] == f"rate-limited: at most {most} filters in one REQ"


@pytest.mark.proves("N01-84", "N11-12", "N11-18", "N11-19")
@pytest.mark.parametrize(("most", "default"), [(3, 2), (2, 2)])
async def test_announced_limits_of_rows_are_enforced(most: int, default: int) -> None:
    """N11-18, N11-19."""
    limits = f"max_limit = {most}\ndefault_limit = {default}\n"
    async with serving(f"[limits]\n{limits}") as relay:
        announced = await limits_of(relay)
        assert (announced["max_limit"], announced["default_limit"]) == (most, default)
        visit = await relay.visit()
        for number in range(5):
            await visit.publishes(alice.sign(1, [], str(number), NOW - number))
        assert len(await visit.asks({})) == default + 1
        assert len(await visit.asks({"limit": most + 1})) == most + 1


@pytest.mark.proves("N11-12", "N11-16", "N11-17", "N11-22")
@pytest.mark.parametrize(
    ("setting", "name", "value", "taken", "refused"),
    [
        ("max_content_length", "max_content_length", 5, {"content": "ééééé"}, {"content": "e" * 6}),
        ("max_event_tags", "max_event_tags", 2, {"tags": [["t"]] * 2}, {"tags": [["t"]] * 3}),
        ("created_at_upper", "created_at_upper_limit", 60, {"at": NOW + 60}, {"at": NOW + 61}),
        ("created_at_lower", "created_at_lower_limit", 60, {"at": NOW - 60}, {"at": NOW - 61}),
    ],
)
async def test_announced_limits_of_events_are_enforced(
    setting: str, name: str, value: int, taken: dict[str, Any], refused: dict[str, Any]
) -> None:
    """N11-16, N11-17, N11-22."""
    async with serving(policy=f"{OPEN}[limits]\n{setting} = {value}\n") as relay:
        assert (await limits_of(relay))[name] == value
        visit = await relay.visit()
        for changes, accepted in [(taken, True), (refused, False)]:
            event = alice.sign(
                1, changes.get("tags", []), changes.get("content", ""), changes.get("at", NOW)
            )
            answer = await visit.publishes(event)
            assert answer[0] is accepted
            assert accepted or answer[1].startswith("invalid: ")


@pytest.mark.proves("N11-12", "N11-20")
async def test_announced_min_pow_difficulty_is_enforced() -> None:
    """N11-20, N13-04."""
    async with serving(policy=f"{OPEN}[limits]\nmin_pow_difficulty = 8\n") as relay:
        assert (await limits_of(relay))["min_pow_difficulty"] == 8
        visit = await relay.visit()
        tries = (alice.sign(1, [["nonce", f"{n}", "8"]], "", NOW) for n in range(10_000))
        worked = next(event for event in tries if event.id.startswith("00"))
        assert await visit.publishes(worked) == (True, "")
        idle = alice.sign(1, [], "", NOW)
        assert (await visit.publishes(idle))[1].startswith("pow: ")


async def test_a_lower_limit_of_0_accepts_any_age() -> None:
    """created_at_lower 0: any age."""
    async with serving() as relay:
        assert (await limits_of(relay))["created_at_lower_limit"] == 0
        ancient = alice.sign(1, [], "", NOW - 50 * 365 * 86400)
        assert await (await relay.visit()).publishes(ancient) == (True, "")


@pytest.mark.proves("G-01")
async def test_nip11_follows_a_reload(tmp_path: Path) -> None:
    """G-01: at once, and without a restart."""
    async with serving() as relay:
        few = await asyncio.to_thread(loaded, tmp_path, a="[limits]\nmax_event_tags = 7\n")
        relay.state.enforce(few)
        assert (await limits_of(relay))["max_event_tags"] == 7

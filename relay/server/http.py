"""Plain HTTP: NIP-11, NIP-05 and NIP-AD documents, the page for browsers, client addresses."""

from __future__ import annotations

import html
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

import orjson

from relay import __version__
from relay.access.management import ListName
from relay.access.visibility import ANONYMOUS
from relay.config import LOOPBACK
from relay.nostr.filters import Filter, as_json
from relay.nostr.kinds import GROUP_METADATA, KindSet
from relay.nostr.nip42 import RelayAddress, is_one_of
from relay.nostr.nip50 import EXTENSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from ipaddress import IPv4Network, IPv6Network

    from aiohttp import web

    from relay.access.management import Blocklist, Management
    from relay.config import Config
    from relay.state import RelayState
    from relay.storage import Features

SOFTWARE: Final = "https://github.com/rookery-relay/rookery"
NOSTR_JSON: Final = "application/nostr+json"
RPC_JSON: Final = "application/nostr+json+rpc"
CORS: Final = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "*",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
}
SUPPORTED_NIPS: Final = (1, 9, 11, 13, 17, 29, 40, 42, 43, 45, 59, 62, 70, 77, 86)
"""Numbers only: nostr-sdk and Amethyst reject a document in which one of them is a text."""
_IPV4_LOOPBACK: Final = IPv4Address("127.0.0.1")
_IPV6_LOOPBACK: Final = IPv6Address("::1")
FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-IP")
_FORWARDED_FOR: Final = re.compile(rb"\r\nX-Forwarded-For:([^\r\n]*)", re.IGNORECASE)
MAX_HEAD: Final = 20_480
"""Bytes of a request line with its headers; up to 16,384 are always accepted. In memory each takes
up to five bytes, until a websocket is open."""
_MOST_HOPS: Final = 8
"""Addresses in a request at which `unparsed_address` looks; each takes 2 us."""


def information(config: Config, state: RelayState, relay_pubkey: str, features: Features) -> bytes:
    """The NIP-11 document. Every limit in it is the one enforced (N11-12)."""
    relay, limits, policy = config.relay, config.limits, state.policy
    management = state.management
    rules = policy.limits
    document: dict[str, object] = {
        "name": management.text("name", relay.name),
        "description": management.text("description", relay.description),
        "self": relay_pubkey,
        "supported_nips": sorted([*SUPPORTED_NIPS, *([50] if features.search else [])]),
        "nip29": {"subgroups": True},
        "software": SOFTWARE,
        "version": __version__,
        "limitation": {
            "max_message_length": limits.max_message_length,
            "max_subscriptions": limits.max_subscriptions,
            "max_filters": limits.max_filters,
            "max_limit": limits.max_limit,
            "default_limit": limits.default_limit,
            "max_subid_length": 64,
            "max_event_tags": rules.max_event_tags,
            "max_content_length": rules.max_content_length,
            "min_pow_difficulty": rules.min_pow_difficulty,
            "created_at_lower_limit": rules.created_at_lower,
            "created_at_upper_limit": rules.created_at_upper,
            "auth_required": False,
            "payment_required": False,
            "restricted_writes": policy.restricted_writes,
        },
        "memory": {
            **_memory(config, management, policy.systems.kinds),
            "search": EXTENSIONS if features.search else [],
            "history": bool(policy.keep.history.rules),
        },
    }
    owners = sorted(policy.actors.owners)
    if owners:
        document["pubkey"] = owners[0]
    for key in ("contact", "icon", "banner", "terms_of_service"):
        value = management.text(key, getattr(relay, key))
        if value:
            document[key] = value
    return orjson.dumps(document)


def _memory(config: Config, management: Management, kinds: Iterable[int]) -> dict[str, object]:
    """For agents: accepted memory kinds as numbers and inclusive ranges, and the tags that filters
    may name (G-25, G-09)."""
    disallowed = management.of(ListName.REFUSED_KINDS)
    accepted = KindSet.of(*(kind for kind in kinds if str(kind) not in disallowed))
    terms = config.storage.terms
    return {
        "kinds": [low if low == high else [low, high] for low, high in accepted.ranges],
        "index_tags": sorted(terms.index_tags),
        "prefix_d_kinds": sorted(terms.prefix_d_kinds),
    }


def names(url: str, relay_pubkey: str, name: str | None) -> bytes:
    """NIP-05: `_`, the domain itself, is the relay's key; no other name is known."""
    found = {"_": relay_pubkey} if name in (None, "_") else {}
    return orjson.dumps({"names": found, "relays": {pubkey: [url] for pubkey in found.values()}})


def web_address(
    paths: Iterable[str], base: str, url: str, state: RelayState, relay_pubkey: str
) -> bytes:
    """NIP-AD: the filter that finds the group of a web address, `https://HOST/GROUP`.

    `paths`: the path as the client spells it, decoded or not: the answer has it as a key. `base`:
    the path of this relay, which may stand before the id. `{}` for a group that needs a login to be
    read, as for one that does not exist.
    """
    decoded = next(iter(paths))
    group_id = decoded.removeprefix(base.rstrip("/")).removeprefix("/")
    group = state.groups.get(group_id)
    wanted = Filter(
        kinds=frozenset({GROUP_METADATA}),
        authors=frozenset({relay_pubkey}),
        tags=(("d", frozenset({group_id})),),
        limit=1,
    )
    if group is None or group.is_hidden or state.visibility(ANONYMOUS).gate((wanted,)) is not None:
        return b"{}"
    return orjson.dumps({path: {"filter": as_json(wanted), "relays": [url]} for path in paths})


def wants_information(headers: Mapping[str, str]) -> bool:
    """Whether the Accept list names the NIP-11 type, whatever its parameters (N11-01)."""
    accepted = headers.get("Accept", "").lower()
    return any(part.split(";")[0].strip() == NOSTR_JSON for part in accepted.split(","))


def page(config: Config, management: Management) -> str:
    """An HTML page about the relay, for browsers."""
    name = html.escape(management.text("name", config.relay.name))
    about = html.escape(management.text("description", config.relay.description))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width">'
        f"<title>{name}</title>"
        "<style>body{font:1.1rem/1.6 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem}"
        "code{background:#8882;padding:.1em .3em;border-radius:.2em}</style>"
        f"<h1>{name}</h1><p>{about}</p>"
        "<p>This is a Nostr relay for groups and their agents. Connect a client that supports "
        "NIP-29 to this address with <code>ws://</code> or <code>wss://</code>.</p></html>"
    )


def client_address(
    request: web.Request, trusted_proxies: Sequence[IPv4Network | IPv6Network]
) -> IPv4Address | IPv6Address | None:
    """The client's address behind trusted proxies. None: unknown, so no list trusts it."""
    peer = _address(request.remote or "")
    is_forwarded = _is_forwarded(request)
    # When a proxy, trusted or not, names no client, the proxy's own address must not count as the
    # client's: it may be loopback.
    if is_within(peer, trusted_proxies) is not is_forwarded:
        return None
    if not is_forwarded:
        return peer
    # Each proxy appends: the rightmost address that is no trusted proxy is the client's. A proxy
    # may append a header line of its own, so all lines are read in order.
    lines = ",".join(request.headers.getall("X-Forwarded-For", []))
    hops = [hop.strip() for hop in lines.split(",")]
    for hop in reversed(hops):
        address = _address(hop)
        if address is None:
            return None
        if not is_within(address, trusted_proxies):
            return address
    return None


def unparsed_address(
    head: bytes, peer: str, trusted_proxies: Sequence[IPv4Network | IPv6Network]
) -> IPv4Address | IPv6Address | None:
    """As `counted_address`, of the first bytes of a request that is not parsed yet: for its turn.
    `peer`: the other end's address."""
    address = _address(peer.partition("%")[0])
    if is_within(address, trusted_proxies):
        headers = head[:MAX_HEAD].partition(b"\r\n\r\n")[0]  # a body may say anything
        lines = b",".join(_FORWARDED_FOR.findall(headers))
        for hop in reversed(lines.rsplit(b",", _MOST_HOPS)[-_MOST_HOPS:]):
            client = _address(hop.decode("latin-1").strip())
            if not is_within(client, trusted_proxies):
                return client or address
    return address


def counted_address(
    request: web.Request, trusted_proxies: Sequence[IPv4Network | IPv6Network]
) -> IPv4Address | IPv6Address | None:
    """The address by which connections, rates and tried codes are counted: the client's, else the
    peer's. No header avoids being counted."""
    return client_address(request, trusted_proxies) or _address(request.remote or "")


def is_local(request: web.Request, trusted_proxies: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether the client is on this machine, or behind a proxy there that is not configured."""
    peer = _address(request.remote or "")
    return is_within(counted_address(request, trusted_proxies), LOOPBACK) and not is_within(
        peer, trusted_proxies
    )


def is_from_elsewhere(
    request: web.Request, trusted_proxies: Sequence[IPv4Network | IPv6Network]
) -> bool:
    """Whether a proxy, trusted or not, passed the request on, but for a client on this machine."""
    client = client_address(request, trusted_proxies)
    return _is_forwarded(request) and not is_within(client, LOOPBACK)


def is_of_page(request: web.Request, here: Iterable[RelayAddress]) -> bool:
    """Whether a browser connects for a page of another origin than this relay's own.

    Browsers send `Origin`, programs do not. The `Host` header proves nothing: the page's own domain
    name may point to this address.
    """
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    own = {RelayAddress(address.host, address.port, "") for address in here}
    return not is_one_of(origin, own)


def may_connect(
    request: web.Request, trusted_proxies: Sequence[IPv4Network | IPv6Network], blocked: Blocklist
) -> bool:
    """False when an address of the request is blocked (N86-27).

    The peer address is checked too unless it is a trusted proxy: a forwarding header must not hide
    a blocked address.
    """
    peer = _address(request.remote or "")
    if is_within(peer, trusted_proxies):
        peer = None
    client = client_address(request, trusted_proxies)
    return not any(address is not None and blocked.has(address) for address in (client, peer))


def is_within(
    address: IPv4Address | IPv6Address | None, networks: Sequence[IPv4Network | IPv6Network]
) -> bool:
    """A list that names 127.0.0.1 names ::1 too: a program that looks up localhost takes either."""
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    names = (address, _IPV4_LOOPBACK) if address == _IPV6_LOOPBACK else (mapped or address,)
    return any(name in network for network in networks for name in names)


def _is_forwarded(request: web.Request) -> bool:
    return any(name in request.headers for name in FORWARDED)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None

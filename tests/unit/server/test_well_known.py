"""/.well-known/nostr.json: NIP-05 for the relay itself, NIP-AD for its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest

from tests.cast import alice, owner, robot
from tests.unit.server.test_app import NOW, OPEN, RELAY, Relay, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

URL = "wss://relay.example"
CONFIG = f'[relay]\nurl = "{URL}"\n'


async def make(relay: Relay, group: str, *flags: Sequence[str], at: str = "/") -> None:
    visit = await relay.visit(at)
    for kind, tags in ((9007, []), (9002, flags)):
        event = robot.sign(kind, [["h", group], *map(list, tags)], "", NOW)
        assert await visit.publishes(event) == (True, "")


async def asked(relay: Relay, query: str) -> Any:
    response = await relay.get(f"/.well-known/nostr.json{query}")
    assert response.status == 200
    assert response.content_type == "application/json"
    assert response.headers["Access-Control-Allow-Origin"] == "*"
    return await response.json()


def found(group: str, path: str = "", url: str = URL) -> dict[str, object]:
    wanted = {"kinds": [39000], "#d": [group], "authors": [RELAY.pubkey], "limit": 1}
    return {path or f"/{group}": {"filter": wanted, "relays": [url]}}


@pytest.mark.proves("NAD-01")
@pytest.mark.parametrize("key", ["path", "ad"])
async def test_the_path_of_a_group_leads_to_its_39000(key: str) -> None:
    """nak looks for `filter["#d"]`, `authors` and `relays` (group.go, parseGroupIdentifier);
    nostr-tools for the path as the key (nipad.ts). The NIP's text says `ad`, both ask `path`."""
    async with serving(CONFIG) as relay:
        await make(relay, "tea", ["private"])
        assert await asked(relay, f"?{key}=/tea") == found("tea")
        assert (await asked(relay, f"?{key}=%2Ftea"))["/tea"] == found("tea")["/tea"]


@pytest.mark.proves("NAD-01")
async def test_the_key_is_the_path_decoded_and_as_it_was_sent() -> None:
    """nak encodes the decoded path; nostr-tools sends the path of the URL as it is, `%20` and all,
    and looks for just that (nipad.ts)."""
    async with serving(CONFIG) as relay:
        await make(relay, "tea & cake")
        by_nak = await asked(relay, f"?path={quote_plus('/tea & cake')}&more=1")
        assert by_nak["/tea & cake"] == found("tea & cake")["/tea & cake"]
        by_nostr_tools = await asked(relay, "?path=/tea%20%26%20cake")
        assert by_nostr_tools["/tea%20%26%20cake"] == found("tea & cake")["/tea & cake"]


@pytest.mark.proves("NAD-02")
async def test_a_hidden_group_is_answered_as_one_that_does_not_exist() -> None:
    async with serving(CONFIG) as relay:
        await make(relay, "den", ["hidden"])
        await make(relay, "tea")
        paths = ("/den", "/never-made", "/", "", "/tea/", "/tea/more", "tea?", "/" + "x" * 4000)
        assert [await asked(relay, f"?path={path}") for path in paths] == [{}] * len(paths)


@pytest.mark.proves("NAD-02")
async def test_a_rule_that_hides_39000_hides_the_address_too() -> None:
    rule = '[[rule]]\nname = "m"\nmatch = { kinds = [39000] }\nread = ["known"]\n'
    async with serving(CONFIG, policy=OPEN + rule) as relay:
        await make(relay, "tea")
        assert await asked(relay, "?path=/tea") == {}


@pytest.mark.proves("NAD-03")
async def test_a_relay_on_a_path_finds_its_groups_with_and_without_it() -> None:
    url = "wss://relay.example/groups/"
    async with serving(f'[relay]\nurl = "{url}"\n') as relay:
        await make(relay, "tea", at="/groups")
        assert await asked(relay, "?path=/groups/tea") == found("tea", "/groups/tea", url)
        assert await asked(relay, "?path=/tea") == found("tea", url=url)
        assert await asked(relay, "?path=/other/tea") == {}


async def test_without_a_url_the_address_that_was_asked_is_the_relay() -> None:
    async with serving() as relay:
        await make(relay, "tea")
        assert await asked(relay, "?path=/tea") == found("tea", url=f"ws://{relay.at}")


@pytest.mark.proves("NAD-04")
async def test_the_domain_itself_is_the_relays_key_and_no_other_name_is_known() -> None:
    """NIP-05: `_@relay.example`."""
    async with serving(CONFIG) as relay:
        itself = {"names": {"_": RELAY.pubkey}, "relays": {RELAY.pubkey: [URL]}}
        assert await asked(relay, "?name=_") == await asked(relay, "") == itself
        for name in ("owner", owner.pubkey, alice.npub, "tea"):
            assert await asked(relay, f"?name={name}") == {"names": {}, "relays": {}}

"""relay/console: what pages show to whom, and that strangers' texts stay texts."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
import tracemalloc
from collections import Counter
from dataclasses import replace
from difflib import unified_diff
from html.parser import HTMLParser
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson
import pytest
from msgspec import structs

from relay.console import app, places, tables
from relay.console.app import Console
from relay.console.charts import drawn
from relay.console.page import Found
from relay.console.pages import PAGES, events, groups, people
from relay.console.pages.groups import tree_of
from relay.console.sessions import Standing
from relay.console.tables import Column, Holds, Rows, arranged, as_csv, table
from relay.memory.aman.records import Preference, ToolCall, draft_of
from relay.memory.anamnesis.checks import content_hash
from relay.memory.anamnesis.records import Entry, entry_draft, timestamp_of
from relay.memory.nmem.records import (
    Observation,
    Prompt,
    Source,
    observation_draft,
    prompt_draft,
)
from relay.nostr.event import Event
from relay.observe import LogLine, Refusal, Sample
from tests.cast import alice, bob, carol, owner, person, robot
from tests.effort import tries
from tests.harness.patience import ANSWER_S
from tests.unit.console.browsing import Site, signed, site
from tests.unit.server.test_app import NOW, serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from relay.console.ask import Ask
    from relay.nostr.filters import Filter

OF_OWNERS: Final = {page.name for page in PAGES if page.audience.name == "OWNER"}
HK: Final = "group:zqx"
SESSION: Final = "session-1"
FILTER: Final = quote('{"kinds":[0,9,9021,39000]}')
MARK: Final = "zqx"
PAYLOADS: Final = [
    f"<script>alert('{MARK}')</script>",
    f"<img src=x onerror=alert('{MARK}')>",
    f"\"><svg onload=alert('{MARK}')>",
    f"' onmouseover='alert(\"{MARK}\")",
    f"</textarea><script>{MARK}</script>",
    f"</title><script>{MARK}</script>",
    f"{{{{ 7*7 }}}}{{% raw %}}{MARK}",
    f"javascript:alert('{MARK}')",
    f"&lt;script&gt;{MARK}&lt;/script&gt;",
    f"<!--{MARK}--><base href=//evil.example>",
    f"`; rm -rf ~; echo {MARK}",
    f"\u202e{MARK}\u2066<b>\u0000",
    f"<iframe srcdoc='<script>{MARK}</script>'>",
    f"<a href=javascript:{MARK}>x</a>",
    f"<style>*{{background:url(//evil.example/{MARK})}}</style>",
    f"]]><script>{MARK}</script>",
]


class Parts(HTMLParser):
    """Elements and attributes of a page, as a browser finds them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))


def check_harmless(page: str) -> None:
    """No element, attribute or link of a page comes from a text."""
    for tag, attributes in Parts(page).tags:
        assert tag not in ("iframe", "style", "base", "object", "embed"), tag
        assert not [name for name in attributes if name.startswith("on")], attributes
        assert "style" not in attributes
        if tag == "script":
            assert attributes.keys() == {"type", "src"}
            assert "/console/static/" in attributes["src"]
        if tag in ("img", "link"):
            assert "/console/static/" in attributes.get("src", attributes.get("href", ""))
        for name in ("href", "action", "src"):
            link = attributes.get(name, "/")
            assert link.startswith(("/", "?", "#", "https://", "http://")), link
            assert not link.startswith("//")


def pages_for(groups: Sequence[str], ids: Sequence[str], text: str) -> list[str]:
    """Every page that there is, with every parameter that names something here."""
    found = ["/"]
    for page in PAGES:
        path = f"/console/{page.name}"
        match page.name:
            case "group" | "edit-group":
                found += [f"{path}?id={quote(group, safe='')}" for group in groups]
            case "event":
                found += [f"{path}?id={event_id}" for event_id in ids]
            case "person":
                found += [f"{path}?key={alice.pubkey}", f"{path}?key={owner.npub}"]
            case "aman":
                found.append(f"{path}?hk={HK}")
            case "session" | "nmem":
                found.append(f"{path}?{'id' if page.name == 'session' else 'session'}={SESSION}")
            case "claim":
                found.append(f"{path}?hash={content_hash(text)}")
            case "context":
                of = {"aman": HK, "nmem": text, "snowclaw": groups[0]}
                by = f"{path}?agent={robot.pubkey}"
                found += [by, *(f"{by}&system={each}&of={quote(of[each])}" for each in of)]
            case "config":
                asked = f"scope={quote(f'group:{text}')}&respond_mode=all&context_history=unset"
                found += [path, f"{path}?group={quote(text)}", f"{path}?{asked}"]
            case "edit-relay":
                found += [path, f"{path}?name={quote(text)}&description={quote(text)}"]
            case "policy-file":
                found += [f"{path}?name={quote(text)}"]
            case "explain":
                found += [path, f"{path}?event={quote(quoted(text))}&as={owner.pubkey}"]
                found += [f"{path}?event={quote(text)}", *(f"{path}?id={each}" for each in ids)]
            case "events":
                found += [path, f"{path}?filter={FILTER}"]
            case _:
                found.append(path)
    return found


async def hostile(here: Site, payload: str) -> list[str]:
    """Plant it wherever somebody may write; the pages on which it may appear."""
    group = '"><img src=x onerror=zqx>'
    profile = f'{{"name": {quoted(payload)}, "display_name": {quoted(payload)}}}'
    await here.publish(
        alice.sign(0, [], profile, NOW),
        owner.sign(9007, [["h", group]], "", NOW),
        owner.sign(9002, [["h", group], ["name", payload], ["about", payload]], payload, NOW),
        owner.sign(9000, [["h", group], ["p", alice.pubkey, payload]], payload, NOW),
    )
    said = alice.sign(9, [["h", group], [payload, payload], ["e", payload]], payload, NOW)
    await here.publish(said, alice.sign(1, [["e", said.id]], payload, NOW))
    await here.publish(owner.sign(9009, [["h", group], ["code", f"12345678{payload}"]], "", NOW))
    article = alice.sign(30023, [["h", group], ["d", payload]], payload, NOW)
    pins = [["e", said.id, payload], ["a", f"30023:{alice.pubkey}:{payload}", payload]]
    await here.publish(article, owner.sign(9010, [["h", group], *pins], "", NOW))
    await here.publish(*remembered(payload))
    return pages_for([group], [said.id], payload)


def remembered(payload: str) -> list[Event]:
    """The text in a record of each memory system, by an agent."""
    drafts = [
        draft_of(Preference(HK, payload, NOW)),
        draft_of(ToolCall(HK, payload, True, payload, None, None, NOW)),  # noqa: FBT003
        prompt_draft(Prompt(SESSION, NOW, Source.USER, payload)),
        observation_draft(
            Observation(SESSION, NOW, "marker", payload, payload, payload, payload), payload
        ),
        entry_draft(Entry(payload, robot.pubkey, payload, timestamp_of(NOW), tags=("a",))),
    ]
    notes = [
        robot.sign(1988, [["d", SESSION], ["role", role], ["tool-name", payload]], payload, NOW)
        for role in ("user", "tool_call")
    ]
    return [*(robot.sign(*draft) for draft in drafts), *notes]


def quoted(text: str) -> str:
    import json

    return json.dumps(text)


@pytest.mark.parametrize("payload", PAYLOADS[:: tries(1, 1, 3)])
async def test_no_text_of_somebody_else_becomes_markup(payload: str) -> None:
    async with site() as here:
        here.owner_view.text = payload
        here.owner_view.problems["plug-ins"] = here.owner_view.problems["policies"] = payload
        line = LogLine(1, NOW, "info", payload, payload)
        here.owner_view.lines.append(line)
        noted = Refusal(
            1, NOW, payload, "blocked", 9, alice.pubkey, "", 1, payload, payload, payload
        )
        here.owner_view.noted.append(noted)
        here.owner_view.rules_refused[payload] = 1
        here.owner_view.found.append({"severity": "error", "text": payload, "cure": payload})
        paths = await hostile(here, payload)
        browser = await here.browser_of(owner)
        shown = 0
        for path in [*paths, f"/console/groups?find={quote(payload)}&sort={quote(payload)}"]:
            page = await browser.text(path)
            check_harmless(page)
            shown += MARK in page
        assert shown >= 4
        missing = await browser.text(f"/console/group?id={quote(payload, safe='')}", 404)
        check_harmless(missing)


async def test_a_command_to_copy_is_one_command_whatever_a_group_is_called() -> None:
    async with site() as here:
        group = "tea; touch pwned; $(id)"
        await here.publish(owner.sign(9007, [["h", group]], "", NOW))
        browser = await here.browser_of(owner)
        page = Parts(await browser.text(f"/console/group?id={quote(group, safe='')}"))
        copied = [
            attributes["data-copy"] for _, attributes in page.tags if "data-copy" in attributes
        ]
        assert "rookery group show 'tea; touch pwned; $(id)'" in copied


async def test_a_command_about_the_data_folder_names_it_to_owners_alone() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        for page, command in (
            ("health", "doctor"),
            ("health", "backup DEST"),
            ("health", "top"),
            ("health", "policy sweep --dry-run"),
            ("live", "log --follow"),
            ("policies", "policy show"),
            ("explain", "policy explain event.json"),
            ("verify", "verify"),
        ):
            text = html.unescape(await browser.text(f"/console/{page}"))
            assert f"rookery {command} --data '/srv/a team'" in text, page
        assert "/srv/" not in await here.browser().text("/")


async def test_letters_of_a_groups_id_that_are_not_seen_are_shown() -> None:
    """A stranger's `tea` with such a letter looked like the owner's, and the command named it."""
    async with site() as here:
        for blank in ("", "\u3164", "\u200b"):
            await here.publish(owner.sign(9007, [["h", f"tea{blank}"]], "", NOW))
        browser = await here.browser_of(owner)
        listed = await browser.text("/console/groups")
        for shown in ("tea", "tea[U+3164]", "tea[U+200B]"):
            assert f"<bdi>{shown}</bdi>" in listed
        page = await browser.text("/console/edit-group?id=" + quote("tea\u3164"))
        assert "<bdi>tea[U+3164]</bdi>" in page
        assert "rookery group delete $&#39;tea\\u3164&#39;" in page
        assert "<bdi>tea\u3164</bdi>" not in page


# -- who sees what ---------------------------------------------------------------------------------


async def test_a_hidden_group_is_answered_as_none() -> None:
    async with site() as here:
        await here.make_group("cellar", "hidden", "private", members=[alice])
        for browser in (here.browser(), await here.browser_of(bob)):
            for ending in ("", ".json", ".csv"):
                of_den = await browser.get(f"/console/group{ending}?id=cellar")
                of_none = await browser.get(f"/console/group{ending}?id=nowhere")
                assert of_den.status == of_none.status == 404
                text = (await of_den.text()).replace("cellar", "nowhere")
                assert text == await of_none.text()
            assert "cellar" not in str(await browser.json("/console/groups.json"))
        mine = await (await here.browser_of(alice)).json("/console/groups.json")
        assert [row["id"] for row in mine["table"]["rows"]] == ["cellar"]


async def test_requests_and_invites_are_seen_by_admins_alone() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        invite = owner.sign(9009, [["h", "den"], ["code", "s3cret-code"]], "", NOW)
        await here.publish(invite)
        visit = await here.relay.visit()
        asks = carol.sign(9021, [["h", "den"]], "let me in please", NOW)
        assert (await visit.publishes(asks))[1].startswith(("restricted: pending", ""))
        for who, is_admin in ((owner, True), (alice, False)):
            text = await (await here.browser_of(who)).text("/console/group?id=den")
            assert ("s3cret-code" in text) is is_admin
        twin = await (await here.browser_of(alice)).json("/console/group.json?id=den")
        assert twin["invites"] == []


async def test_admins_see_who_brought_whom() -> None:
    async with site() as here:
        await here.make_group("den", "closed", members=[alice])
        invite = owner.sign(9009, [["h", "den"], ["code", "s3cret-code"]], "", NOW)
        await here.publish(invite, bob.sign(9021, [["h", "den"], ["code", "s3cret-code"]], "", NOW))
        browser = await here.browser_of(owner)
        (root,) = (await browser.json("/console/group.json?id=den"))["tree"]
        assert root["pubkey"] == owner.pubkey
        assert {each["pubkey"] for each in root["children"]} == {alice.pubkey, bob.pubkey}
        assert "Who added whom" in await browser.text("/console/group?id=den")
        of_member = await (await here.browser_of(alice)).json("/console/group.json?id=den")
        assert of_member["tree"] == []


def depth_of(nodes: object) -> int:
    assert isinstance(nodes, list)
    return 1 + max((depth_of(node["children"]) for node in nodes), default=-1)


def keys_in(nodes: object) -> list[object]:
    assert isinstance(nodes, list)
    return [key for node in nodes for key in (node["pubkey"], *keys_in(node["children"]))]


@pytest.mark.parametrize(
    "brought",
    [
        {str(n): str(n - 1) for n in range(1, 400)},
        {"1": "2", "2": "3", "3": "1"},
        {"1": "1", "5": "gone", "6": "5"},
    ],
)
def test_a_tree_has_each_member_once_and_is_not_deep(brought: dict[str, str]) -> None:
    members = [str(n) for n in range(400)]
    found = tree_of(members, brought)
    assert sorted(map(str, keys_in(found))) == sorted(members)
    assert depth_of(found) <= 8


async def test_pages_of_owners_are_for_owners() -> None:
    async with site() as here:
        for browser, status in ((here.browser(), 401), (await here.browser_of(alice), 403)):
            for name in OF_OWNERS:
                for ending in ("", ".json"):
                    assert (await browser.get(f"/console/{name}{ending}")).status == status
        for who in (None, alice, robot):
            browser = here.browser() if who is None else await here.browser_of(who)
            assert (await browser.json("/console/home.json"))["owner"] is None
        browser = await here.browser_of(owner)
        assert (await browser.json("/console/home.json"))["owner"]["connections"] == 3


async def test_people_are_those_of_lists_that_one_may_read() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice, bob])
        await here.make_group("tea", members=[carol])
        seen = {}
        for who in (None, alice, owner):
            browser = here.browser() if who is None else await here.browser_of(who)
            data = await browser.json("/console/people.json")
            seen[who] = {row["pubkey"] for row in data["table"]["rows"]}
            assert (data["owner"] is not None) is (who is owner)
        of_tea = {owner.pubkey, carol.pubkey}
        assert seen[None] - {owner.pubkey} == of_tea - {owner.pubkey}
        assert seen[alice] == of_tea | {alice.pubkey, bob.pubkey}
        assert seen[owner] >= seen[alice] | {robot.pubkey}
        data = await (await here.browser_of(carol)).json(f"/console/person.json?key={bob.npub}")
        assert data["groups"] == []


async def test_half_a_surrogate_pair_in_a_profile_is_replaced() -> None:
    """JSON has none: the page of that person was an internal error."""
    async with site() as here:
        profile = r'{"name": "al\ud800ice", "about": "\udc00", "website": "x"}'
        await here.publish(alice.sign(0, [], profile, NOW))
        browser = await here.browser_of(owner)
        data = await browser.json(f"/console/person.json?key={alice.pubkey}")
        assert data["profile"] == {"name": "al\ufffdice", "about": "\ufffd", "website": "x"}


async def test_the_events_page_asks_as_a_client_does() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        said = alice.sign(9, [["h", "den"]], "only for members", NOW)
        await here.publish(said)
        asked = quote(f'{{"ids":["{said.id}"]}}')
        path = f"/console/events.json?filter={asked}"
        assert (await here.browser().json(path))["table"]["total"] == 0
        browser = await here.browser_of(alice)
        (row,) = (await browser.json(path))["table"]["rows"]
        assert (row["id"], row["content"]) == (said.id, "only for members")
        assert (await here.browser().get(f"/console/event?id={said.id}")).status == 404
        named = quote('{"kinds":[9],"#h":["den"]}')
        response = await here.browser().get(f"/console/events.json?filter={named}")
        assert response.status == 401
        for wrong in ("{", "[]", '{"kinds":["x"]}', "[" + ",".join(["{}"] * 11) + "]"):
            data = await browser.json(f"/console/events.json?filter={quote(wrong)}")
            assert data["error"]


async def test_of_an_event_about_another_the_readers_in_a_group_are_named_too() -> None:
    """A reaction or a report without `h` is read as a row of the group of what it names."""
    async with site() as here:
        await here.publish(owner.sign(9007, [["h", "den"], ["private"]], "", NOW))
        said = owner.sign(9, [["h", "den"]], "only for members", NOW)
        about = [["e", said.id], ["p", owner.pubkey]]
        sent = [owner.sign(kind, about, "", NOW) for kind in (7, 1984)]
        sent += [owner.sign(7, [*about, ["h", "den"]], "", NOW), owner.sign(1111, [], "", NOW)]
        for event in (said, *sent):
            await here.publish(event)
        browser = await here.browser_of(owner)
        told = [
            (await browser.json(f"/console/event.json?id={event.id}"))["readers"] for event in sent
        ]
    members = "owners, who may read its group"
    admins = "owners, admins of its group, its author"
    assert told == [
        f"anybody; about an event of a group: {members}",
        f"anybody; about an event of a group: {members}; and {admins}",
        members,
        "anybody",
    ]


async def test_a_page_that_takes_long_is_stopped_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with site() as here:

        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr("relay.console.app._PAGE_S", 0.0)
        monkeypatch.setattr("relay.read.stored.StoredRows.of", never)
        response = await here.browser().get("/console/events.json")
        assert response.status == 503
        assert "was stopped" in (await response.json())["error"]


async def test_rights_lost_while_a_page_is_made_are_lost_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page is made again with what is left."""
    from relay.console.ask import Ask

    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        await here.publish(alice.sign(9, [["h", "den"]], "said inside", NOW))
        browser = await here.browser_of(alice)
        people = Ask.people
        removed = owner.sign(9001, [["h", "den"], ["p", alice.pubkey]], "", NOW + 1)

        async def late(self: Ask, pubkeys: Sequence[str]) -> dict[str, dict[str, str]]:
            if "den" in self.query.get("id", "") and here.relay.state.groups.is_member(
                alice.pubkey
            ):
                await here.publish(removed)
            return await people(self, pubkeys)

        monkeypatch.setattr(Ask, "people", late)
        assert "said inside" not in await browser.text("/console/group?id=den")


# -- addresses -------------------------------------------------------------------------------------


async def test_documents_and_websockets_of_the_address_stay_as_they_were() -> None:
    async with site() as here:
        document = await here.relay.get(Accept="application/nostr+json")
        assert document.content_type == "application/nostr+json"
        visit = await here.relay.visit()
        assert await visit.publishes(owner.sign(1, [], "", NOW)) == (True, "")
        page = await here.relay.get(Accept="text/html")
        assert (page.status, page.content_type) == (200, "text/html")


async def test_a_relay_without_a_console_has_no_such_page() -> None:
    async with serving() as relay:
        assert (await relay.get("/console/groups")).status == 404
        assert "This is a Nostr relay" in await (await relay.get(Accept="text/html")).text()


async def test_a_relay_on_a_path_has_its_console_below_it() -> None:
    config = '[relay]\nurl = "ws://127.0.0.1/nostr/"\n'
    async with site(config) as here:
        browser = here.browser()
        page = await browser.text("/nostr/")
        assert 'href="/nostr/console/groups"' in page
        token = signed(here.relay, alice, "/nostr/console/sign-in", host="127.0.0.1")
        response = await browser.post("/nostr/console/sign-in", Authorization=token)
        assert response.status == 200
        assert alice.npub in await browser.text("/nostr/console/groups")
        assert (await browser.get("/console/groups")).status == 404


async def test_style_sheet_and_script_are_kept_for_ever_under_names_of_their_content() -> None:
    async with site() as here:
        browser = here.browser()
        page = Parts(await browser.text("/"))
        named = [
            attributes.get("src") or attributes.get("href", "")
            for tag, attributes in page.tags
            if tag in ("script", "link", "img")
        ]
        assert len(named) >= 3
        for path in named:
            response = await browser.get(path)
            assert response.status == 200
            assert "immutable" in response.headers["Cache-Control"]
        assert (await browser.get("/console/static/..%2fapp.py")).status == 404


async def test_the_first_page_is_light() -> None:
    async with site() as here:
        browser = here.browser()
        page = await browser.text("/")
        total = len(page)
        for tag, attributes in Parts(page).tags:
            if tag in ("script", "link", "img"):
                path = attributes.get("src") or attributes["href"]
                total += len(await (await browser.get(path)).read())
        assert total < 60_000


async def test_the_api_describes_every_page_that_answers() -> None:
    async with site() as here:
        described = await (await here.browser().get("/console/openapi.json")).json()
        browser = await here.browser_of(owner)
        assert {page.name for page in PAGES} == {
            path.removeprefix("/console/").removesuffix(".json")
            for path in described["paths"]
            if path.endswith(".json")
        }
        for path, methods in described["paths"].items():
            assert methods["get"]["responses"]
            response = await browser.get(path)
            assert response.status in (200, 404), (path, await response.text())


# -- the last day ----------------------------------------------------------------------------------


def sample(at: int, stored: float = 1.0) -> Sample:
    return Sample(at, stored, 0.0, 0.0, 0.0, 3, 0.02, 0.0, 4096.0, 8192.0)


def test_a_day_is_drawn_by_the_highest_of_six_minutes_with_gaps() -> None:
    now = 40 * 86_400
    found = drawn(
        [
            sample(now - 86_400),
            sample(now - 7200, 4.0),
            *(sample(now - ago) for ago in (400, 60, 0)),
        ],
        now,
    )
    stored = found["charts"][0]
    assert (stored["title"], stored["last"], stored["most"]) == ("Events stored", 60.0, 240.0)
    assert stored["d"] == "M219 1h1M238 44.5h1L239 44.5"
    assert [(hour["at"], hour["values"][0]) for hour in found["hours"]] == [
        (now, 60.0),
        (now - 3600, 60.0),
        (now - 7200, 240.0),
    ]
    commits = next(
        each for each in found["charts"] if each["title"].endswith("commits took at most")
    )
    assert (commits["last"], commits["unit"]) == (20.0, "ms")


async def test_the_last_day_is_drawn_for_owners_and_written_as_a_table() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        assert "No numbers yet." in await browser.text("/console/health")
        here.owner_view.samples = [sample(NOW - 60 * ago) for ago in range(1440, -1, -1)]
        page = await browser.text("/console/health")
        paths = [attributes["d"] for tag, attributes in Parts(page).tags if tag == "path"]
        assert len(paths) == 9
        assert page.count('<th scope="row">') in (24, 25)
        assert len(page) < 60_000


# -- many groups -----------------------------------------------------------------------------------


def turns_of(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[int]:
    """In which iteration of the loop each call of a function ran; from now on."""
    turn = 0
    ran: list[int] = []
    run = getattr(module, name)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    def noting(*args: Any) -> Any:
        ran.append(turn)
        return run(*args)

    monkeypatch.setattr(module, name, noting)
    next_turn()
    return ran


async def test_others_go_on_while_many_groups_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 of them took the loop for 0.1 s."""
    metadata = [owner.sign(39000, [["d", f"group-{number}"]], "", NOW).raw for number in range(650)]

    async def stored(_: object, __: object, filters: Sequence[Filter], *___: object) -> list[bytes]:
        return metadata if filters[0].kinds == frozenset({39000}) else []

    async with site() as here:
        browser = await here.browser_of(owner)
        monkeypatch.setattr("relay.read.stored.StoredRows.of", stored)
        made = turns_of(monkeypatch, groups, "_group_row")
        searched = turns_of(monkeypatch, tables, "_text")
        found = await browser.json("/console/groups.json?find=group-64")
    assert found["table"]["total"] == 11
    for ran in (made, searched):
        assert len(ran) == 650
        assert max(Counter(ran).values()) <= 200


async def test_others_go_on_between_members_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its list and of its records: 50,000 took the loop for 0.15 s."""
    put = [["p", f"{number:064x}"] for number in range(60)]
    async with site() as here:
        await here.make_group("den")
        for at in range(5):
            await here.publish(owner.sign(9000, [["h", "den"], *put], "", NOW + at))
        browser = await here.browser_of(owner)
        looked = turns_of(monkeypatch, groups, "is_hex64")
        clock = count()
        monkeypatch.setattr(tables, "perf_counter", lambda: next(clock))  # each row takes long
        found = await browser.json("/console/group.json?id=den")
    assert found["table"]["total"] == 61
    assert {each["what"]["text"] for each in found["moderation"]} > {"added or changed"}
    assert max(Counter(looked).values()) <= 2
    assert len(looked) < 2 * 5 * 60  # those of records once


async def test_a_group_whose_list_is_all_that_one_may_read_has_a_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A list of 6,000 members is larger than what strangers get of one query."""
    monkeypatch.setattr("relay.console.ask._MAX_WEIGHT", 10_000)
    monkeypatch.setattr("relay.console.ask._MAX_WEIGHT_UNKNOWN", 10_000)
    put = [["p", f"{number:064x}"] for number in range(100)]
    async with site() as here:
        await here.make_group("tea")
        await here.publish(owner.sign(9000, [["h", "tea"], *put], "", NOW))
        found = await here.browser().json("/console/group.json?id=tea")
        assert found["group"]["name"] == "tea"
        assert found["table"]["total"] == 101
        mine = await (await here.browser_of(owner)).json("/console/group.json?id=tea")
        assert mine["is_admin"]


class Role(str):
    """Counts how often roles are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Role.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


async def test_roles_of_a_key_are_compared_a_few_times_each() -> None:
    """Each with all others: 2,500 groups of somebody ended the pages of people for all."""
    lists = []
    for number in range(100):
        put = ["p", alice.pubkey, *(Role(f"{number}-{role}") for role in range(4)), Role("admin")]
        event = owner.sign(39001, [["d", f"{number:02}"]], "", NOW)
        lists.append(structs.replace(event, tags=(*event.tags, tuple(put))))
    Role.compared = 0
    found, roles = await people._memberships(lists)
    assert len(found[alice.pubkey]) == 100
    assert [*roles[alice.pubkey]][:6] == ["0-0", "0-1", "0-2", "0-3", "admin", "1-0"]
    assert len(roles[alice.pubkey]) == 401
    assert Role.compared < 3 * 500


async def test_every_group_is_listed_however_many_members_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.console.ask._MAX_WEIGHT", 10_000)
    everybody = [person(f"member-{number}") for number in range(40)]
    put = [["p", each.pubkey] for each in everybody]
    async with site() as here:
        for name in ("cake", "milk", "tea"):
            await here.make_group(name)
            await here.publish(owner.sign(9000, [["h", name], *put], "", NOW))
        found = await (await here.browser_of(owner)).json("/console/groups.json")
    assert [row["id"] for row in found["table"]["rows"]] == ["cake", "milk", "tea"]
    # Their lists are more than a page may read, and it says so once.
    assert None in [row["members"] for row in found["table"]["rows"]]
    assert found["notes"] == ["not everything is shown: there is too much for one page"]


async def test_groups_are_sorted_by_their_numbers_of_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "_COUNTED", 2)
    monkeypatch.setattr(tables, "PAGE_ROWS", 2)
    async with site() as here:
        await here.make_group("cake", members=[alice])
        await here.make_group("milk", members=[alice, bob, carol])
        await here.make_group("tea", members=[alice, bob])
        browser = await here.browser_of(owner)
        counted = []
        for query in ("", "?sort=-members", "?page=2"):
            rows = (await browser.json(f"/console/groups.json{query}"))["table"]["rows"]
            counted.append([(row["id"], row["members"]) for row in rows])
        assert counted == [[("cake", 2), ("milk", 4)], [("milk", 4), ("tea", 3)], [("tea", 3)]]
        exported = await (await browser.get("/console/groups.csv")).text()
    assert [row["members"] for row in csv.DictReader(io.StringIO(exported))] == ["2", "4", "3"]


async def test_of_many_groups_of_a_key_the_table_shows_some() -> None:
    """Its row as JSON has all of them, and so has the key's own page."""
    names = [f"group-{number:02}" for number in range(22)]
    async with site() as here:
        for name in names:
            await here.make_group(name)
        browser = await here.browser_of(owner)
        page = await browser.text("/console/people")
        assert page.count("<bdi>group-") == 20
        assert "and 2 more" in page
        row = (await browser.json("/console/people.json"))["table"]["rows"][0]
        assert row["groups"] == names
        of_key = await browser.json(f"/console/person.json?key={owner.pubkey}")
        assert of_key["groups"] == names


async def test_of_many_roles_of_a_key_its_page_shows_fifty() -> None:
    async with site() as here:
        names = [f"role-{number:02}" for number in range(56)]
        for first in range(0, 56, 8):
            await here.make_group(f"group-{first}")
            put = ["p", alice.pubkey, *names[first : first + 8]]
            await here.publish(owner.sign(9000, [["h", f"group-{first}"], put], "", NOW))
        browser = await here.browser_of(owner)
        page = await browser.text(f"/console/person?key={alice.pubkey}")
        assert page.count("<bdi>role-") == 50
        assert "and 6 more roles" in page
        found = await browser.json(f"/console/person.json?key={alice.pubkey}")
        assert sorted(found["roles"]) == names


# -- tables ----------------------------------------------------------------------------------------

COLUMNS: Final = (
    Column("name", "Name"),
    Column("size", "Size", Holds.NUMBER),
    Column("words", "Words", Holds.WORDS),
)


def rows(*given: tuple[str, int | None]) -> Rows:
    return Rows(
        COLUMNS, [{"name": name, "size": size, "words": ["a", name]} for name, size in given]
    )


async def test_a_table_is_sorted_with_empty_cells_last() -> None:
    whole = rows(("b", 2), ("a", None), ("c", 10))
    assert [row["size"] for row in await arranged(whole, {"sort": "size"})] == [2, 10, None]
    assert [row["size"] for row in await arranged(whole, {"sort": "-size"})] == [10, 2, None]
    assert [row["name"] for row in await arranged(whole, {"sort": "name"})] == ["a", "b", "c"]
    assert [row["name"] for row in await arranged(whole, {"sort": "nothing"})] == ["b", "a", "c"]


async def test_a_table_has_pages_and_a_wrong_number_is_the_nearest_one() -> None:
    whole = rows(*((f"{number:03}", number) for number in range(120)))
    for asked, page, first in (
        ("1", 1, 0),
        ("3", 3, 100),
        ("99", 3, 100),
        ("x", 1, 0),
        ("٣", 1, 0),
    ):
        found = await table(whole, {"page": asked})
        assert (found["page"], found["pages"], found["total"]) == (page, 3, 120)
        shown = found["rows"]
        assert isinstance(shown, list)
        assert shown[0]["size"] == first


async def test_rows_are_found_by_any_cell_and_by_names_of_people() -> None:
    people = {"k1": {"npub": "npub1xyz", "name": "Ada"}}
    whole = Rows((Column("who", "Who", Holds.PERSON),), [{"who": "k1"}, {"who": "k2"}], people)
    assert await arranged(whole, {"find": "ADA"}) == [{"who": "k1"}]
    assert await arranged(whole, {"find": "k2"}) == [{"who": "k2"}]


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", *"\uff1d\uff0b\uff0d\uff20"])
async def test_no_cell_of_a_csv_is_a_formula(first: str) -> None:
    text = await as_csv(rows((f"{first}cmd|' /C calc'!A0;=1+1", -5)), {})
    assert ";" not in re.sub('"[^"]*"', "", text)
    _, row = list(csv.reader(io.StringIO(text)))
    assert row[0].startswith("'")
    assert row[1] == "-5"


async def test_a_table_is_given_as_csv() -> None:
    async with site() as here:
        await here.make_group("tea")
        response = await here.browser().get("/console/groups.csv")
        assert response.content_type == "text/csv"
        assert "attachment" in response.headers["Content-Disposition"]
        assert [row[0] for row in csv.reader(io.StringIO(await response.text()))] == ["id", "tea"]


@pytest.mark.slow
async def test_a_page_of_a_stranger_is_small_and_rare() -> None:
    """Anybody makes a group of thousands: one page of people took the loop for four seconds."""
    async with site() as here:
        await here.make_group("big")
        keys = [f"{number:064x}" for number in range(3000)]
        put = owner.sign(9000, [["h", "big"], *(["p", key] for key in keys)], "", NOW)
        await here.publish(put)
        anybody = here.browser()
        found = await anybody.json("/console/people.json")
        assert found["table"]["total"] == 500
        assert found["notes"] == ["2501 more people are not shown"]
        assert len((await anybody.json("/console/group.json?id=big"))["people"]) <= 500
        answers = [(await anybody.get("/console/groups")).status for _ in range(20)]
        assert answers == [200] * 18 + [429] * 2
        owners = await here.browser_of(owner)
        answers = [(await owners.get("/console/groups")).status for _ in range(25)]
        assert answers == [200] * 25
        assert (await owners.json("/console/people.json"))["table"]["total"] == 2000


async def test_the_rest_after_pages_is_as_long_as_their_work_asks_and_refuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages of one agent that took 4 s each: others waited longer than a request waits."""
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(places, "perf_counter", lambda: 100.0)
    making = places.Places(8, 2, 4, "too many")
    making.count(Standing.KNOWN, 1.0)
    monkeypatch.setattr(asyncio, "sleep", rest)
    await making.rest(Standing.KNOWN)
    for _ in range(4):
        making.count(Standing.KNOWN, 4.0)
    await making.rest(Standing.KNOWN)
    assert rests == [2.0, 5.0]
    assert rests[-1] <= app._WAIT_S / 2


async def test_the_rest_after_other_pages_is_not_counted_as_work_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A page that took 0.6 s on a slow machine: nine times as long until the next, a 503."""

    async def rest(_: object, __: object) -> None:
        await asyncio.sleep(0.02)
        limits.append(True)

    limits: list[bool] = []
    monkeypatch.setattr(app, "_PAGE_S", 0.01)
    monkeypatch.setattr(places.Places, "rest", rest)
    async with site() as here:
        await here.browser().get("/console/groups")
    assert limits == [True]


async def test_pages_of_one_address_leave_turns_and_places_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests of one member, 40 at a time, kept out half of the owner's."""
    ends, asked = asyncio.Event(), list[str]()

    async def find(ask: Ask) -> Found:
        (asker,) = ask.viewer.keys
        asked.append(asker)
        if asker == alice.pubkey:
            await ends.wait()
        return Found({}, {}, Rows([], []))

    pages = [replace(page, find=find) if page.name == "groups" else page for page in PAGES]
    monkeypatch.setattr(app, "PAGES", pages)
    monkeypatch.setattr(app, "_MAX_WAITING", 64)
    async with site('[server]\ntrusted_proxies = ["127.0.0.1/32"]\n') as here:
        await here.make_group("tea", members=[alice, bob])
        members, others = await here.browser_of(alice), await here.browser_of(bob)
        owners = await here.browser_of(owner)
        first = [
            asyncio.create_task(members.get("/console/groups", X_Forwarded_For="192.0.2.1"))
            for _ in range(40)
        ]
        # Half of the places are taken, and the others' requests have been refused.
        refused = 0
        for answer in asyncio.as_completed(first):
            refused += (await answer).status == 429
            if refused == 8:
                break
        assert Counter(asked) == {alice.pubkey: 2}
        for number, browser in enumerate((others, owners), 2):
            address = f"192.0.2.{number}"
            answers = [
                (await browser.get("/console/groups", X_Forwarded_For=address)).status
                for _ in range(10)
            ]
            assert answers == [200] * 10
        ends.set()
        assert [(await each).status for each in first].count(200) == 32


async def test_pages_of_one_key_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """From four addresses they had all turns of known keys."""
    ends, two, asked = asyncio.Event(), asyncio.Event(), Counter[str]()

    async def find(ask: Ask) -> Found:
        (asker,) = ask.viewer.keys
        asked[asker] += 1
        if asker == alice.pubkey:
            if asked[asker] == 2:
                two.set()
            await ends.wait()
        return Found({}, {}, Rows([], []))

    pages = [replace(page, find=find) if page.name == "groups" else page for page in PAGES]
    monkeypatch.setattr(app, "PAGES", pages)
    async with site('[server]\ntrusted_proxies = ["127.0.0.1/32"]\n') as here:
        await here.make_group("tea", members=[alice, bob])
        members, others = await here.browser_of(alice), await here.browser_of(bob)
        first = [
            asyncio.create_task(members.get("/console/groups", X_Forwarded_For=f"192.0.2.{number}"))
            for number in range(4)
        ]
        await two.wait()
        for _ in range(10):
            answer = await others.get("/console/groups", X_Forwarded_For="192.0.2.9")
            assert answer.status == 200
        assert asked[alice.pubkey] == 2
        ends.set()
        assert [(await each).status for each in first] == [200] * 4


async def test_reads_of_a_page_are_counted_by_the_address_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was taken for a read of another client, so their cost was never noted."""
    addresses = set()

    async def stored(
        _: object, __: object, ___: object, ____: object, counted_as: str
    ) -> list[bytes]:
        addresses.add(counted_as)
        return []

    monkeypatch.setattr("relay.read.stored.StoredRows.of", stored)
    async with site('[server]\ntrusted_proxies = ["127.0.0.1/32"]\n') as here:
        await here.browser().get("/console/events.json", X_Forwarded_For="192.0.2.1")
    assert addresses == {"192.0.2.1"}


async def test_strangers_leave_owners_authorizations_and_places() -> None:
    async with site() as here:
        browser = here.browser()
        answers = [(await browser.sign_in(person(f"{n}"))).status for n in range(21)]
        assert answers == [200] * 20 + [429]
        assert (await browser.sign_in(owner)).status == 200


def _cycles(number: int) -> tuple[str, str]:
    """Two texts whose comparison takes difflib seconds, or minutes."""
    one = [chr(0x4E00 + n % 100) for n in range(number)]
    return "\n".join(one), "\n".join(reversed(one))


@pytest.mark.parametrize("contents", [_cycles(4900), _cycles(190), ("x\n" * 190, "x\ny\n" * 95)])
async def test_versions_that_differ_much_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, contents: Sequence[str]
) -> None:
    """50 notes of one `d`, 10 kB each, took the loop 80 s for one page, asked for by nobody."""
    compared: list[int] = []

    def noting(before: Sequence[str], after: Sequence[str], **more: Any) -> Any:
        compared.append(len(before) * len(after))
        return unified_diff(before, after, **more)

    monkeypatch.setattr(events, "unified_diff", noting)
    async with site() as here:
        for number in range(6):
            content = contents[number % 2]
            await here.publish(robot.sign(78, [["d", "x"]], content, NOW + number))
        last = robot.sign(78, [["d", "x"]], content.replace("\n", "\nz\n", 1), NOW + 6)
        await here.publish(last)
        page = await (await here.browser_of(robot)).json(f"/console/event.json?id={last.id}")
    changed = [each["changed"] for each in page["versions"]]
    assert changed[:6] == [[]] * 6
    assert "+z" in changed[6]
    assert len(compared) == 1


async def test_a_deep_text_is_not_indented_to_a_hundred_megabytes() -> None:
    content = "[" * 250 + ",".join("1" * 150_000) + "]" * 250
    deeper = "[" * 500 + "]" * 500
    async with site() as here:
        texts = (content, deeper, deeper + " ")
        sent = [robot.sign(78, [["d", "x"]], each, NOW + at) for at, each in enumerate(texts)]
        for event in sent:
            await here.publish(event)
        browser = await here.browser_of(robot)
        tracemalloc.start()
        try:
            assert (await browser.get(f"/console/event?id={sent[0].id}")).status == 200
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()


async def test_versions_of_deep_texts_are_compared_without_indentation() -> None:
    """Fifty of them took the loop for half a second for one page."""
    texts = ["[" * 200 + ",".join("1" * 4_000) + f",{each}" + "]" * 200 for each in (1, 2)]
    async with site() as here:
        sent = [robot.sign(78, [["d", "x"]], each, NOW + at) for at, each in enumerate(texts)]
        for event in sent:
            await here.publish(event)
        browser = await here.browser_of(robot)
        page = await browser.json(f"/console/event.json?id={sent[1].id}")
    (changed,) = [each["changed"] for each in page["versions"] if each["changed"]]
    assert changed == ["…", f"-{texts[0]}", f"+{texts[1]}"]


@pytest.mark.slow
async def test_an_event_of_many_values_shows_some_of_them_one_by_one() -> None:
    """110,000 of them took the loop for 0.3 s; keys take longer."""
    values = [["t", *["x"] * 22] for _ in range(4990)]
    keys = [["p", f"{number:064x}"] for number in range(4990)]
    async with site() as here:
        browser = here.browser()
        for number, tags in enumerate((values, keys, [["t", "x"]])):
            event = alice.sign(1, tags, "", NOW + number)
            await here.publish(event)
            text = await browser.text(f"/console/event?id={event.id}")
            assert text.count("<bdi>x</bdi>") <= 1000
            twin = await browser.json(f"/console/event.json?id={event.id}")
            assert sum(map(len, twin["tags"])) <= 1000
            assert len(twin["people"]) <= 500
            assert len(twin["tags"]) + twin["more_tags"] == len(tags)
            assert ("more tags: see the stored event" in text) is (len(tags) > 1)


async def test_of_a_large_event_the_beginning_is_shown_as_stored() -> None:
    """500 kB of tags took the loop 30 ms to indent, for anybody."""
    async with site() as here:
        small, large = alice.sign(1, [], "x" * 60_000, NOW), alice.sign(1, [], "x" * 70_000, NOW)
        for event in (small, large):
            await here.publish(event)
        browser = here.browser()
        for event in (small, large):
            twin = await browser.json(f"/console/event.json?id={event.id}")
            assert twin["is_cut"] is (event is large)
            assert len(twin["raw"]) < 65_600
            text = await browser.text(f"/console/event?id={event.id}")
            assert (f"nak req -i {event.id}" in text) is (event is large)


async def test_a_name_is_taken_from_a_profile_of_usual_size() -> None:
    async with site() as here:
        for who, size in ((alice, 10_000), (bob, 20_000)):
            about = {"name": "somebody", "about": "x" * size}
            await here.publish(who.sign(0, [], orjson.dumps(about).decode(), NOW))
            await here.publish(who.sign(1, [], "hello", NOW))
        query = quote('{"kinds":[1]}')
        people = (await here.browser().json(f"/console/events.json?filter={query}"))["people"]
    assert people[alice.pubkey]["name"] == "somebody"
    assert people[bob.pubkey]["name"] == ""


async def test_after_a_page_who_is_unknown_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """From however many addresses."""
    monkeypatch.setattr(places, "_REST_RATIO", {**places._REST_RATIO, Standing.OTHER: 1e9})
    async with site() as here:
        members = await here.browser_of(owner)
        assert (await here.browser().get("/console/groups")).status == 200
        monkeypatch.setattr(app, "_WAIT_S", 0.5)
        assert (await here.browser().get("/console/groups")).status == 503
        monkeypatch.setattr(app, "_WAIT_S", ANSWER_S)
        assert (await members.get("/console/groups")).status == 200


async def test_a_group_of_many_invites_shows_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """9,800 of them took the loop for four seconds."""
    looked: list[str] = []
    has_tag = Event.has_tag

    def noting(event: Event, name: str) -> bool:
        looked.append(name)
        return has_tag(event, name)

    async with site() as here:
        await here.make_group("den")
        codes = [f"code-{number:04}" for number in range(2000)]
        tags = [["h", "den"], ["reusable"], *(["code", code] for code in codes)]
        await here.publish(owner.sign(9009, tags, "", NOW))
        browser = await here.browser_of(owner)
        monkeypatch.setattr(Event, "has_tag", noting)
        text = await browser.text("/console/group?id=den")
        assert looked.count("reusable") == 1
        assert text.count(", reusable") == 50
        assert "The newest 50 are shown." in text
        twin = await browser.json("/console/group.json?id=den")
        assert [each["code"] for each in twin["invites"]] == codes
        assert all(each["reusable"] for each in twin["invites"])


async def test_a_hundred_bans_are_shown_to_owners() -> None:
    async with site() as here:
        for number in range(102):
            await here.call("banpubkey", f"{number:064x}")
        text = await (await here.browser_of(owner)).text("/console/people")
        assert text.count("Lift the ban") == 100
        assert "2 more banned keys." in text


async def test_others_go_on_between_two_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are ready at once: each takes the loop up to 0.1 s."""
    turns = 0
    made: list[int] = []
    make = Console._page

    def next_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(next_turn)

    def noting(*args: Any, **more: Any) -> web.Response:
        made.append(turns)
        return make(*args, **more)

    ready = asyncio.Barrier(4)

    async def find(_: object) -> Found:
        await ready.wait()
        return Found({}, {}, Rows([], []))

    alike = [replace(page, find=find) if page.name == "groups" else page for page in PAGES]
    monkeypatch.setattr(app, "PAGES", alike)
    monkeypatch.setattr(Console, "_page", noting)
    async with site() as here:
        browsers = [await here.browser_of(who) for who in (owner, owner, robot, robot)]
        next_turn()
        await asyncio.gather(*(each.get("/console/groups") for each in browsers))
    assert len(made) == len(set(made)) == 4

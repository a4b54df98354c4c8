"""The web console in a real browser: Chromium, driven by Playwright, with a stand-in for NIP-07.

What needs no browser is in tests/unit/console.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from relay.console.pages import PAGES
from relay.memory.aman.records import Preference, draft_of
from tests import cast
from tests.effort import tries
from tests.harness.patience import ANSWER_S, PROGRAM_S
from tests.harness.relay_program import Rookery, connected, outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, BrowserContext, Page

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser")
"""The first has no windows to draw and takes half of the time."""
CHROMIUM: Final = next(filter(None, map(shutil.which, PROGRAMS)), None)
AXE: Final = importlib.util.find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),  # of the browser
    pytest.mark.skipif(
        CHROMIUM is None or importlib.util.find_spec("playwright") is None,
        reason="no Chromium here: `apt install chromium-headless-shell`",
    ),
]
RUNS: Final = "window.__ran = (window.__ran || 0) + 1"
HANDLERS: Final = ("onload", "onerror", "onmouseover", "onfocus", "ontoggle", "onanimationstart")
WRAPPINGS: Final = (
    "{}",
    '">{}',
    "'>{}",
    "</textarea>{}",
    "</script>{}",
    "</title>{}",
    "-->{}",
    "]]>{}",
)
ELEMENTS: Final = (
    f"<script>{RUNS}</script>",
    f"<img src=x onerror='{RUNS}'>",
    f"<svg onload='{RUNS}'></svg>",
    f"<iframe srcdoc='<script>parent.{RUNS}</script>'></iframe>",
    f"<a href='javascript:{RUNS}' autofocus onfocus='{RUNS}'>x</a>",
    f"<details open ontoggle='{RUNS}'><summary>x</summary></details>",
    f"<object data='javascript:{RUNS}'></object>",
    f"<form action='javascript:{RUNS}'><button autofocus>x</button></form>",
)
PAYLOADS: Final = [
    *(wrapping.format(element) for wrapping in WRAPPINGS for element in ELEMENTS),
    *(f'" {handler}="{RUNS}" x="' for handler in HANDLERS),
    *(f"' {handler}='{RUNS}' x='" for handler in HANDLERS),
    *(f"x {handler}={RUNS} autofocus" for handler in HANDLERS),
    *(f"{scheme}:{RUNS}" for scheme in ("javascript", "JaVaScRiPt", "java\tscript", "vbscript")),
    f"data:text/html,<script>{RUNS}</script>",
    *(f"{{{{{code}}}}}" for code in ("7*7", "cycler.__init__", "self._TemplateReference__context")),
    *(f"{{% {code} %}}" for code in ("raw", "include '/etc/passwd'", "endblock")),
    *(f"&#x3c;script&#x3e;{RUNS}&#x3c;/script&#x3e;{end}" for end in ("", ";", "\n")),
    "\u202e\u2066<script>\u0000</script>",
    f"＜script＞{RUNS}＜/script＞",
    f"<scr<script>ipt>{RUNS}</scr</script>ipt>",
    f"<!--[if IE]><script>{RUNS}</script><![endif]-->",
    f"<math><mtext></p><script>{RUNS}</script></mtext></math>",
    f"<noscript><p title='</noscript><script>{RUNS}</script>'></noscript>",
    f"<template><script>{RUNS}</script></template>",
    f"<base href='//evil.example/'><script src='x.js'></script>{RUNS}",
]


def now() -> int:
    return int(time.time())


async def test_there_are_a_hundred_payloads() -> None:
    assert len(set(PAYLOADS)) >= 100


@dataclass
class Console:
    """A relay with a group, and a browser to look at it."""

    rookery: Rookery
    browser: Browser
    key_file: Path
    reports: list[str] = field(default_factory=list)
    """What the browser complained about: script errors, violations of the CSP."""

    @property
    def url(self) -> str:
        return self.rookery.url.replace("ws", "http", 1)

    async def publish(self, *events: Event) -> None:
        async with connected(self.rookery.url) as wire:
            for event in events:
                assert await wire.publish(event) == (True, ""), event

    async def members(self, group: str) -> set[str]:
        """As another client finds them."""
        async with connected(self.rookery.url) as wire:
            await wire.log_in(cast.owner, self.rookery.url, now())
            (found,) = await wire.query({"kinds": [39002], "#d": [group]})
        return {tag[1] for tag in found["tags"] if tag[0] == "p"}

    @contextlib.asynccontextmanager
    async def page(self, who: SecretKey | None = None, **options: Any) -> AsyncIterator[Page]:
        """A new browser window; `who` has an extension that signs (NIP-07)."""
        context: BrowserContext = await self.browser.new_context(**options)
        context.set_default_timeout(PROGRAM_S * 1000)
        if who is not None:
            await context.expose_function("signs", signer(who))
            await context.add_init_script(
                "window.nostr = { signEvent: async (draft) =>"
                " JSON.parse(await window.signs(JSON.stringify(draft))) }"
            )
        page = await context.new_page()
        page.on("pageerror", lambda error: self.reports.append(str(error)))
        page.on("console", self._told)
        try:
            yield page
        finally:
            await context.close()

    def _told(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.reports.append(message.text)

    async def sign_in(self, page: Page) -> None:
        await page.goto(f"{self.url}/console/sign-in")
        await page.click("#sign-in")
        await page.wait_for_selector(".me form")


def signer(who: SecretKey) -> Any:
    def signed(draft: str) -> str:
        asked = json.loads(draft)
        event = who.sign(asked["kind"], asked["tags"], asked["content"], asked["created_at"])
        return event.raw.decode()

    return signed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests, which open windows that share nothing."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def console(tmp_path: Path, browser: Browser) -> AsyncIterator[Console]:
    key_file = tmp_path / "owner.nsec"
    key_file.write_text(cast.owner.nsec)
    async with Rookery(tmp_path / "data") as rookery:
        await rookery.init("--owner", cast.owner.pubkey, "--agent", cast.robot.pubkey)
        own = '[groups]\nnew = []\nalways = []\njoins = "review"\n'
        (rookery.folder / "policies" / "50-own.toml").write_text(own)
        await rookery.start()
        made = Console(rookery, browser, key_file)
        await made.publish(
            cast.owner.sign(9007, [["h", "tea"]], "", now()),
            cast.owner.sign(9002, [["h", "tea"], ["name", "Tea"], ["private"]], "", now()),
            cast.owner.sign(9000, [["h", "tea"], ["p", cast.alice.pubkey]], "", now()),
            cast.owner.sign(9000, [["h", "tea"], ["p", cast.robot.pubkey]], "", now()),
        )
        yield made


async def test_one_signs_in_with_an_extension_and_out_again(console: Console) -> None:
    for_members = "Only members may see the list of members."
    async with console.page(cast.alice) as page:
        await page.goto(f"{console.url}/console/group?id=tea")
        assert await page.get_by_text(for_members).count()
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        assert not await page.get_by_text(for_members).count()
        await page.click("text=Sign out")
        await page.goto(f"{console.url}/console/group?id=tea")
        assert await page.get_by_text(for_members).count()
    async with console.page() as page:
        await page.goto(f"{console.url}/console/sign-in")
        await page.click("#sign-in")
        await page.wait_for_selector("text=No extension with a key")
    assert console.reports == []


async def test_the_command_opens_a_link_that_signs_in_without_javascript(console: Console) -> None:
    by = ("--relay", console.rookery.url, "--key-file", str(console.key_file))
    code, out, err = await outputs("console", "--json", *by)
    assert code == 0, err
    async with console.page(java_script_enabled=False) as page:
        await page.goto(json.loads(out)["link"])
        await page.click("text=Sign in with this key")
        assert await page.get_by_text("Signed in as owner").count()
        for name in ("groups", "people", "memory", "events", "policies", "live", "health"):
            await page.goto(f"{console.url}/console/{name}")
            assert await page.get_by_text("Signed in as owner").count(), name
        await page.click("text=Sign out")
        assert await page.get_by_role("heading", name="Groups").count()


async def test_an_admin_lets_somebody_in_and_takes_an_invite_back(console: Console) -> None:
    async with connected(console.rookery.url) as wire:
        asks = cast.bob.sign(9021, [["h", "tea"]], "may I?", now())
        assert (await wire.publish(asks)) == (False, "restricted: pending review")
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        await page.wait_for_selector("text=may I?")
        async with page.expect_navigation():
            await page.click("text=Let in")
        assert await console.members("tea") >= {cast.bob.pubkey}
        assert not await page.get_by_text("may I?").count()
        async with page.expect_navigation():
            await page.click("text=New invite")
        async with page.expect_navigation():
            await page.click("button >> text=Revoke")
        await page.wait_for_selector("text=No open invites")
    assert console.reports == []


async def test_an_admin_pins_a_message_and_deletes_it(console: Console) -> None:
    said = [cast.alice.sign(9, [["h", "tea"]], text, now()) for text in ("green tea", "black tea")]
    await console.publish(*said)

    async def seen(**wanted: Any) -> list[dict[str, Any]]:
        async with connected(console.rookery.url) as wire:
            await wire.log_in(cast.alice, console.rookery.url, now())
            return await wire.query(wanted)

    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        pins: list[str] = []
        for event in said:
            message = page.locator(".chat > li", has_text=event.content)
            await message.get_by_text("Moderate").click()
            async with page.expect_navigation():
                await message.get_by_text("Pin", exact=True).click()
            pins.append(event.id)
            (found,) = await seen(**{"kinds": [39005], "#d": ["tea"]})
            assert [tag[1] for tag in found["tags"] if tag[0] == "e"] == pins
        message = page.locator(".chat > li", has_text="green tea")
        await message.get_by_text("Moderate").click()
        async with page.expect_navigation():
            await message.get_by_text("Unpin").click()
        (found,) = await seen(**{"kinds": [39005], "#d": ["tea"]})
        assert [tag[1] for tag in found["tags"] if tag[0] == "e"] == pins[1:]

        async def answer(dialog: Any) -> None:
            await dialog.accept(said[0].id[:8])

        page.on("dialog", answer)
        await message.get_by_text("Moderate").click()
        assert await wrong_in(page) == []
        async with page.expect_navigation():
            await message.get_by_text("Delete").click()
        assert not await page.get_by_text("green tea").count()
        assert await seen(ids=[said[0].id]) == []
    async with console.page(cast.alice) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        assert await page.get_by_text("black tea").count() == 2
        assert not await page.get_by_text("Moderate").count()
    assert console.reports == []


async def test_an_owner_edits_a_policy_and_the_relay_follows(console: Console) -> None:
    own = console.rookery.folder / "policies" / "50-own.toml"
    before = own.read_text()
    rule = '[[rule]]\nname = "quiet"\nmatch = { kinds = [9] }\nwrite = ["owner"]\nreject = "hush"\n'
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/policy-file?name=50-own.toml")
        await page.click("summary")
        await page.fill("#text", before + "[[rule]]\nnonsense = 1\n")
        await page.click("text=Check")
        await page.wait_for_selector("h2 >> text=Faults")
        assert not await page.locator("button.save").count()
        await page.fill("#text", f"{before}# {PAYLOADS[0]}\n{rule}")
        await page.click("text=Check")
        await page.wait_for_selector("h2 >> text=Differences")
        assert await page.evaluate("window.__ran") is None
        assert await wrong_in(page) == []
        assert own.read_text() == before
        async with page.expect_navigation():
            await page.click("text=Save this file")
        await page.wait_for_selector("text=quiet")
    assert own.read_text() == f"{before}# {PAYLOADS[0]}\n{rule}"
    async with connected(console.rookery.url) as wire, asyncio.timeout(ANSWER_S):
        number = 0
        while True:  # the relay reads its files every second
            number += 1
            said = cast.alice.sign(9, [["h", "tea"]], f"hello {number}", now())
            if await wire.publish(said) == (False, "restricted: hush"):
                break
            await asyncio.sleep(0.2)
    assert console.reports == []


async def test_an_owner_verifies_the_store_and_sees_what_is_found(console: Console) -> None:
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/verify")
        async with page.expect_navigation():
            await page.click("text=Verify now")
        await page.wait_for_selector("text=events verified, no faults")
        assert await wrong_in(page) == []
    assert console.reports == []


async def test_what_cannot_be_undone_asks_for_the_name(console: Console) -> None:
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/person?key={cast.alice.npub}")
        answers = ["something else", cast.alice.npub]

        async def answer(dialog: Any) -> None:
            await dialog.accept(answers.pop(0))

        page.on("dialog", answer)
        await page.click("text=Ban from the relay")
        assert not await page.get_by_text("banned", exact=True).count()
        async with page.expect_navigation():
            await page.click("text=Ban from the relay")
        await page.wait_for_selector("text=Lift the ban")
    async with console.page(cast.alice) as page:
        await page.goto(f"{console.url}/console/sign-in")
        await page.click("#sign-in")
        await page.wait_for_selector("text=this key is banned here")


def answering(*texts: str) -> Any:
    """Types these into the dialogs that ask for a name."""
    left = [*texts]

    async def answer(dialog: Any) -> None:
        await dialog.accept(left.pop(0))

    return answer


async def found(console: Console, who: SecretKey, **wanted: Any) -> list[dict[str, Any]]:
    """What another client of this key finds."""
    filters = {
        f"#{name[4:]}" if name.startswith("tag_") else name: of for name, of in wanted.items()
    }
    async with connected(console.rookery.url) as wire:
        await wire.log_in(who, console.rookery.url, now())
        return await wire.query(filters)


async def test_an_owner_sets_how_agents_answer(console: Console) -> None:
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/memory")
        await page.click("text=Agent settings")
        await page.fill("[name=scope]", "group:tea")
        await page.select_option("[name=respond_mode]", "all")
        await page.click("text=Show what changes")
        assert await page.get_by_text("rookery config set group:tea respond_mode=all").count()
        assert await wrong_in(page) == []
        async with page.expect_navigation():
            await page.click("text=Sign this setting")
        assert await page.get_by_role("cell", name="respond_mode").count()
        (record,) = await found(console, cast.robot, kinds=[30078])
        assert ["respond_mode", "all"] in record["tags"]
        await page.fill("[name=scope]", "group:tea")
        await page.select_option("[name=respond_mode]", "unset")
        await page.click("text=Show what changes")
        async with page.expect_navigation():
            await page.click("text=Sign this setting")
        assert not await page.get_by_role("cell", name="respond_mode").count()
    assert console.reports == []


async def test_an_admin_renames_a_group_and_deletes_it(console: Console) -> None:
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        await page.click("text=Edit name, description and flags")
        await page.fill("[name=name]", "Tea room")
        await page.select_option("[name=closed]", "yes")
        await page.click("text=Show what changes")
        assert await wrong_in(page) == []
        async with page.expect_navigation():
            await page.click("text=Sign this edit")
        await page.wait_for_selector("h1 >> text=Tea room")
        (told,) = await found(console, cast.alice, kinds=[39000])
        assert [tag for tag in told["tags"] if tag[0] in ("name", "private", "closed")] == [
            ["name", "Tea room"],
            ["private"],
            ["closed"],
        ]
        await page.click("text=Edit name, description and flags")
        page.on("dialog", answering("tea", "Tea room"))
        await page.click("text=Delete the group >> nth=-1")
        assert await found(console, cast.alice, kinds=[39000])
        async with page.expect_navigation():
            await page.click("button >> text=Delete the group")
        assert not await page.get_by_text("Tea room").count()
    assert await found(console, cast.alice, kinds=[39000]) == []
    assert console.reports == []


async def test_an_owner_renames_the_relay(console: Console) -> None:
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.click("text=Edit name, description and icon")
        await page.fill("[name=name]", "The nest")
        await page.click("text=Show what changes")
        async with page.expect_navigation():
            await page.click("text=Change the name")
        assert await page.get_by_text("The nest").count()
    async with console.page() as page:
        await page.goto(f"{console.url}/")
        await page.wait_for_selector("h1 >> text=The nest")
    assert console.reports == []


async def test_one_forgets_one_event_and_then_all_that_one_wrote(console: Console) -> None:
    said = [cast.alice.sign(9, [["h", "tea"]], text, now()) for text in ("green tea", "black tea")]
    await console.publish(*said)
    async with console.page(cast.alice) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/event?id={said[0].id}")
        page.on("dialog", answering(said[0].id[:8], cast.alice.npub))
        assert await wrong_in(page) == []
        async with page.expect_navigation():
            await page.click("text=Delete for ever")
        # The page of the request: its receipt is asked for by the command there.
        await page.wait_for_selector("text=rookery forget --receipt")
        assert [each["id"] for each in await found(console, cast.owner, kinds=[9])] == [said[1].id]
        await page.goto(f"{console.url}/console/person?key={cast.alice.npub}")
        assert await wrong_in(page) == []
        async with page.expect_navigation():
            await page.click("text=Delete everything of this key")
    assert await found(console, cast.owner, authors=[cast.alice.pubkey]) == []
    assert console.reports == []


async def test_a_new_policy_file_is_made_in_the_page(console: Console) -> None:
    made = console.rookery.folder / "policies" / "60-hush.toml"
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/policies")
        await page.click("summary >> text=New file")
        await page.fill("[name=name]", made.name)
        await page.fill("#text", "[limits]\nmax_event_tags = 77\n")
        await page.click("text=Check")
        await page.wait_for_selector("text=+max_event_tags = 77")
        assert await wrong_in(page) == []
        assert not made.exists()
        async with page.expect_navigation():
            await page.click("text=Save this file")
        await page.wait_for_selector("li >> text=max_event_tags = 77")
    assert made.read_text() == "[limits]\nmax_event_tags = 77\n"
    assert console.reports == []


# -- what an admin wants to know or do, from the first page by clicks alone ------------------------


RETENTION: Final = """
[[rule]]
name = "no adverts"
match = { kinds = [9] }
content = { refuse = ["watches"] }
reject = "no adverts here"

[[retention]]
name = "notes for ten days"
match = { kinds = [1] }
days = 10
"""


async def test_the_five_tasks_of_an_admin(console: Console) -> None:
    own = console.rookery.folder / "policies" / "50-own.toml"
    own.write_text(own.read_text() + RETENTION)
    assert await console.rookery.stop() == 0
    await console.rookery.start()
    about = f"snowclaw:memory:npub:{cast.alice.pubkey}"
    await console.publish(
        cast.alice.sign(0, [], '{"name":"Alice"}', now()),
        cast.robot.sign(30078, [["d", about]], '{"notes":["takes her tea green"]}', now()),
        cast.owner.sign(1, [], "goes tomorrow", now() - 10 * 86_400 + 3600),
        cast.owner.sign(1, [], "stays", now()),
        cast.owner.sign(9, [["h", "tea"], ["expiration", f"{now() + 3600}"]], "bye", now()),
    )
    advert = cast.alice.sign(9, [["h", "tea"]], "cheap watches", now())
    async with connected(console.rookery.url) as wire:
        assert await wire.publish(advert) == (False, "blocked: no adverts here")
        asks = cast.bob.sign(9021, [["h", "tea"]], "may I?", now())
        assert not (await wire.publish(asks))[0]
    # Yesterday's: the relay was started again since.
    assert await console.rookery.stop() == 0
    await console.rookery.start()
    async with console.page(cast.owner) as page:
        await console.sign_in(page)

        async def opens(name: str) -> None:
            await page.goto(f"{console.url}/")
            await page.click(f"header nav >> text={name}")

        # Why was Alice's message refused?
        await opens("Live")
        await page.fill("[name=find]", "alice")
        await page.click("form.find >> text=Find >> nth=-1")
        await page.wait_for_selector("td >> text=blocked: no adverts here")
        assert await page.get_by_text("no adverts", exact=True).count()
        # Who can read what the agent knows about Alice?
        await opens("People")
        await page.click("main a.person >> text=Alice")
        await page.click("text=Agents' records about this person")
        await page.click("td.link a")
        await page.click("text=Who may read it, and by which rule")
        await page.wait_for_selector("text=Matching rules")
        assert await page.get_by_text("packaged/20-memory.toml:").count()
        told = [
            [await cell.inner_text() for cell in (await row.locator("td").all())[1:3]]
            for row in await page.locator("tbody tr").all()
        ]
        assert told == [["anybody", "no"], ["author", "yes"], ["owner", "yes"]]
        # Let Bob in.
        await opens("Groups")
        await page.click("td a >> text=Tea")
        async with page.expect_navigation():
            await page.click("text=Let in")
        assert cast.bob.pubkey in await console.members("tea")
        # Take an invite back: of the relay, and of the group.
        async with page.expect_navigation():
            await page.click("text=New invite")
        async with page.expect_navigation():
            await page.click("button >> text=Revoke")
        await page.wait_for_selector("text=No open invites")
        await opens("People")
        await page.click("text=New invite")
        await page.wait_for_selector("text=Invite code:")
        await page.reload()
        async with page.expect_navigation():
            await page.click("button >> text=Revoke")
        await page.wait_for_selector("text=No open invites")
        # What does the retention rule remove tomorrow?
        await opens("Health")
        row = page.locator("#next ~ .scroll tr", has_text="notes for ten days")
        assert (await row.locator("td").all_inner_texts())[2:4] == ["1", "1"]
        row = page.locator("#next ~ .scroll tr", has_text="expiration")
        assert (await row.locator("td").all_inner_texts())[2:4] == ["9", "1"]
    assert console.reports == []


async def test_a_message_comes_to_an_open_page(console: Console) -> None:
    async with console.page(cast.alice) as page:
        await console.sign_in(page)
        await page.goto(f"{console.url}/console/group?id=tea")
        await console.publish(cast.alice.sign(9, [["h", "tea"]], "the kettle sings", now()))
        await page.wait_for_selector("text=the kettle sings")


OF_WCAG_AA: Final = {
    "light": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
    "dark": ["color-contrast", "link-in-text-block"],
}
"""Rules or their tags. A page in dark differs in its colours alone."""
SCHEMES: Final = [*OF_WCAG_AA][: tries(2, 2, 1)]
"""Of every page; `make test` leaves dark to CI."""
EVERY: Final = tries(1, 1, 4)
"""`make test` measures one page of so many; all have the same frame and style."""


async def wrong_in(page: Page, *schemes: str) -> list[tuple[str, str, list[str]]]:
    """Violations of WCAG AA, in light where no scheme is named; none without axe."""
    if AXE is None or AXE.origin is None:
        return []
    await page.evaluate(Path(AXE.origin).with_name("axe.min.js").read_text("utf-8"))
    wrong = []
    for scheme in schemes or ("light",):
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        options = json.dumps({"runOnly": OF_WCAG_AA[scheme], "resultTypes": ["violations"]})
        found = await page.evaluate(f"axe.run(document, {options})")
        wrong += [
            (scheme, each["id"], [node["html"][:120] for node in each["nodes"][:2]])
            for each in found["violations"]
        ]
    return wrong


def paths(event_id: str) -> list[str]:
    """Every page there is."""
    named = {
        "group": "?id=tea",
        "event": f"?id={event_id}",
        "person": f"?key={cast.alice.npub}",
        "aman": "?hk=group:tea",
        "context": f"?agent={cast.robot.pubkey}&system=snowclaw&of=tea",
        "config": "?group=tea&scope=group:tea&respond_mode=all",
        "edit-group": "?id=tea&name=T",
        "edit-relay": "?name=T",
        "policy-file": "?name=50-own.toml",
        "explain": f"?id={event_id}",
    }
    missing = ("session", "nmem", "claim")
    return [
        "/",
        "/console/sign-in",
        *(
            f"/console/{page.name}{named.get(page.name, '')}"
            for page in PAGES
            if page.name not in missing
        ),
    ]


async def test_none_of_a_hundred_payloads_runs_on_any_page(console: Console) -> None:
    every = "\n".join(PAYLOADS)
    profile = json.dumps({"name": PAYLOADS[1], "about": every})
    said = [cast.alice.sign(9, [["h", "tea"], ["x", each]], each, now()) for each in PAYLOADS[-40:]]
    await console.publish(
        cast.alice.sign(0, [], profile, now()),
        cast.owner.sign(
            9002, [["h", "tea"], ["name", PAYLOADS[0]], ["about", every], ["private"]], every, now()
        ),
        cast.owner.sign(
            9000,
            [
                ["h", "tea"],
                ["p", cast.alice.pubkey, *[each for each in PAYLOADS if len(each) <= 64][:8]],
            ],
            every,
            now(),
        ),
        cast.robot.sign(*draft_of(Preference("group:tea", every, now()))),
        cast.alice.sign(9, [["h", "tea"], *([each, each] for each in PAYLOADS)], every, now()),
    )
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        for event in said[:1]:
            await console.publish(event)
        for path in paths(said[0].id):
            await page.goto(f"{console.url}{path}")
            for each in await page.locator("summary").all():
                await each.click()
            assert await page.evaluate("window.__ran") is None, path
    assert console.reports == []


@pytest.mark.skipif(AXE is None, reason="axe-playwright-python is not installed")
async def test_no_page_has_a_violation_of_wcag_aa(console: Console) -> None:
    said = cast.alice.sign(9, [["h", "tea"]], "hello", now())
    await console.publish(said, cast.robot.sign(*draft_of(Preference("group:tea", "short", now()))))
    wrong = []
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        for path in paths(said.id)[::EVERY]:
            await page.goto(f"{console.url}{path}")
            wrong += [(path, each) for each in await wrong_in(page, *SCHEMES)]
    assert wrong == []


async def test_no_page_is_wider_than_its_window(console: Console) -> None:
    said = cast.alice.sign(9, [["h", "tea"]], f"{'long' * 100} {'😀' * 50}", now())
    await console.publish(said, cast.robot.sign(*draft_of(Preference("group:tea", "short", now()))))
    async with console.page(cast.owner) as page:
        await console.sign_in(page)
        for path in paths(said.id)[::EVERY]:
            await page.goto(f"{console.url}{path}")
            for width in (1280, 390):
                await page.set_viewport_size({"width": width, "height": 844})
                over = await page.evaluate(
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                )
                assert over == 0, (path, width)

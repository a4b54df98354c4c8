"""relay/console: who is signed in, by what, for how long; and who is not."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING

import orjson
import pytest

from relay.console import app
from relay.console.sessions import LINK_S, SESSION_S, Sessions, Signer, Standing
from relay.server.app import Server
from tests.cast import alice, bob, owner, person, robot, stranger
from tests.harness.relay_program import until
from tests.unit.console.browsing import header, signed, site
from tests.unit.server.test_app import NOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import ClientResponse

    from tests.unit.console.browsing import Browser, Site


PROXIED = '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'
ALICE = Signer(alice.pubkey, Standing.KNOWN, "192.0.2.2")


async def error_of(response: ClientResponse) -> str:
    return str((await response.json())["error"])


async def test_a_signed_event_begins_a_session_and_sign_out_ends_it() -> None:
    async with site() as here:
        browser = here.browser()
        assert "Sign in" in await browser.text("/")
        response = await browser.sign_in(alice)
        assert (response.status, (await response.json())["pubkey"]) == (200, alice.pubkey)
        assert alice.npub in await browser.text("/")
        copied = dict(browser.cookies)
        csrf = await browser.csrf()
        response = await browser.post("/console/sign-out", {"csrf": csrf})
        assert (response.status, response.headers["Location"]) == (303, "/")
        browser.cookies = copied
        assert alice.npub not in await browser.text("/")


async def test_sign_ins_leave_room_for_known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 of made-up keys in a minute kept members out, from 35 addresses or one IPv6 /48."""
    monkeypatch.setattr("relay.console.app.MAX_OF_OTHERS", 2)
    answers = ((stranger, 200), (alice, 200), (bob, 200), (person("x"), 429), (robot, 200))
    async with site() as here:
        for who, status in (*answers, (owner, 200)):
            response = await here.browser().sign_in(who)
            assert response.status == status


async def test_the_cookie_is_for_this_site_alone_and_not_for_scripts() -> None:
    async with site() as here:
        browser = await here.browser_of(alice)
        attributes = {part.strip().lower() for part in browser.set_cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/"} <= attributes
        assert "secure" not in attributes
        (secret,) = browser.cookies.values()
        assert len(secret) >= 43


async def test_other_cookies_are_passed_over_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 of them took 26 ms of the loop, before the pace of the client was looked at."""

    def read(_: object) -> None:
        raise AssertionError

    async with site() as here:
        browser = await here.browser_of(alice)
        ((name, secret),) = browser.cookies.items()
        monkeypatch.setattr("aiohttp.web.BaseRequest.cookies", property(read))
        browser.cookies = {}
        for cookies, is_signed_in in (
            (f"a; b=c;{name}={secret}", True),
            (f"{name}=old; {name}={secret} ; d", True),
            (f"{name}={secret};\t{name}2=x", True),
            (f"{name}={secret};\u2000{name}=x", True),  # for browsers another name
            (f"{name}={secret}x", False),
            (f"x{name}={secret}; y={name}={secret}", False),
            ("a;" * 4000, False),
        ):
            page = await (await browser.get("/", Cookie=cookies, Accept="text/html")).text()
            assert (alice.npub in page) is is_signed_in, cookies[:80]


async def test_behind_tls_the_cookie_is_secure_and_bound_to_the_host() -> None:
    async with site('[relay]\nurl = "wss://relay.example"\n') as here:
        browser = here.browser()
        token = signed(here.relay, alice, host="relay.example").replace("http:", "https:")
        response = await browser.post("/console/sign-in", Authorization=token)
        assert response.status == 200
        attributes = {part.strip().lower() for part in browser.set_cookie.split(";")[1:]}
        assert {"secure", "httponly", "samesite=strict", "path=/"} <= attributes
        assert browser.set_cookie.startswith("__Host-")
        assert "Strict-Transport-Security" in (await browser.get("/")).headers


async def test_a_sign_in_is_good_once() -> None:
    async with site() as here:
        token = signed(here.relay, alice)
        browser = here.browser()
        assert (await browser.post("/console/sign-in", Authorization=token)).status == 200
        other = here.browser()
        response = await other.post("/console/sign-in", Authorization=token)
        assert (response.status, await error_of(response)) == (
            401,
            "this authorization was already used",
        )
        assert other.cookies == {}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"at": NOW - 61}, "created_at: must be within 60 seconds of now"),
        ({"at": NOW + 61}, "created_at: must be within 60 seconds of now"),
        ({"host": "relay.example"}, "u: is not the URL of this request"),
        ({"path": "/"}, "u: is not the URL of this request"),
        ({"path": "/console/link"}, "u: is not the URL of this request"),
        ({"path": "/console/sign-in?a=1"}, "u: is not the URL of this request"),
        ({"method": "GET"}, "method: is not POST"),
        ({"kind": 22242}, "kind: must be 27235"),
    ],
)
async def test_what_was_signed_for_something_else_signs_nobody_in(
    wrong: dict[str, object], says: str
) -> None:
    """Expired, of another relay, of another call of this one, a login of NIP-42."""
    async with site() as here:
        browser = here.browser()
        token = signed(here.relay, alice, **wrong)  # type: ignore[arg-type]
        response = await browser.post("/console/sign-in", Authorization=token)
        assert (response.status, await error_of(response)) == (401, says)
        assert browser.cookies == {}


async def test_a_forged_event_signs_nobody_in() -> None:
    async with site() as here:
        tags = [["u", f"http://{here.relay.at}/console/sign-in"], ["method", "POST"]]
        own = alice.sign(27235, tags, "", NOW)
        forged = orjson.loads(own.raw)
        others = orjson.loads(bob.sign(27235, tags, "", NOW).raw)
        forged["sig"] = others["sig"]
        browser = here.browser()
        for fields in (forged, {**others, "pubkey": alice.pubkey}):
            token = "Nostr " + b64encode(orjson.dumps(fields)).decode()
            response = await browser.post("/console/sign-in", Authorization=token)
            assert response.status == 401
        assert browser.cookies == {}
        assert (await browser.post("/console/sign-in")).status == 401


async def test_a_signed_management_call_is_no_sign_in_and_the_other_way_round() -> None:
    """Each names its own URL."""
    async with site() as here:
        browser = here.browser()
        call = signed(here.relay, owner, "/")
        assert (await browser.post("/console/sign-in", Authorization=call)).status == 401
        own = signed(here.relay, owner)
        named = {"Authorization": own, "Content-Type": "application/nostr+json+rpc"}
        response = await here.relay.browser.post(
            f"http://{here.relay.at}/", data=b'{"method":"supportedmethods"}', headers=named
        )
        assert response.status == 401


async def test_a_ban_ends_sessions_at_once_and_lets_none_begin() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        browser = await here.browser_of(alice)
        assert (await browser.json("/console/group.json?id=den"))["is_member"]
        await here.call("banpubkey", alice.pubkey)
        assert (await browser.get("/console/publish")).status == 405
        assert alice.npub not in await browser.text("/")
        response = await here.browser().sign_in(alice)
        assert (response.status, await error_of(response)) == (403, "this key is banned here")
        await here.call("unbanpubkey", alice.pubkey)
        assert alice.npub not in await browser.text("/")


async def test_who_was_removed_a_moment_ago_sees_no_more_than_an_outsider() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        await here.publish(alice.sign(9, [["h", "den"]], "a secret word", NOW))
        browser = await here.browser_of(alice)
        assert "a secret word" in await browser.text("/console/group?id=den")
        await here.publish(owner.sign(9001, [["h", "den"], ["p", alice.pubkey]], "", NOW + 1))
        assert "a secret word" not in await browser.text("/console/group?id=den")


async def test_a_blocked_address_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site() as here:
        browser = here.browser()
        monkeypatch.setattr(Server, "may_connect", lambda *_: False)
        assert (await browser.get("/console/groups.json")).status == 403
        assert (await browser.sign_in(alice)).status == 403


# -- links of `rookery console` --------------------------------------------------------------------


async def test_a_link_asks_first_and_signs_in_once() -> None:
    async with site() as here:
        program, browser = here.browser(), here.browser()
        token = signed(here.relay, alice, "/console/link")
        response = await program.post("/console/link", Authorization=token)
        path = (await response.json())["path"]
        for _ in range(2):  # whatever looks at it before does not use it up
            assert alice.npub in await browser.text(path)
        assert browser.cookies == {}
        response = await browser.post(path)
        assert (response.status, response.headers["Location"]) == (303, "/")
        assert alice.npub in await browser.text("/")
        other = here.browser()
        assert (await other.post(path)).status == 403
        assert (await other.get(path)).status == 403
        assert other.cookies == {}


def test_a_link_is_good_for_a_minute() -> None:
    sessions = Sessions()
    code = sessions.link(ALICE, NOW)
    assert sessions.linked(code, NOW + LINK_S - 1) is not None
    assert sessions.follow(code, NOW + LINK_S) is None
    assert sessions.follow("guessed", NOW) is None


# -- bounds ----------------------------------------------------------------------------------------


def test_a_session_ends_after_twelve_hours() -> None:
    sessions = Sessions()
    secret = sessions.begin(ALICE, NOW)
    assert sessions.get(secret, NOW + SESSION_S - 1) is not None
    assert sessions.get(secret, NOW + SESSION_S) is None


def test_a_key_has_eight_sessions_and_the_oldest_goes() -> None:
    sessions = Sessions()
    secrets = [sessions.begin(ALICE, NOW) for _ in range(9)]
    assert sessions.get(secrets[0], NOW) is None
    assert all(sessions.get(secret, NOW) is not None for secret in secrets[1:])


@pytest.mark.parametrize("address", ["198.51.100.7", "198.51.100.{}", "2001:db8:7:{}::/64"])
@pytest.mark.parametrize("standing", [Standing.KNOWN, Standing.OTHER])
def test_made_up_keys_take_no_place_of_others(standing: Standing, address: str) -> None:
    """In preset `open` anybody can make keys known: by adding them to a group."""
    sessions = Sessions()
    of_owner = sessions.begin(Signer(owner.pubkey, Standing.OWNER, "192.0.2.1"), NOW)
    mine = sessions.begin(Signer(alice.pubkey, standing, "192.0.2.2"), NOW)
    for number in range(2000):
        sessions.begin(Signer(f"{number:064x}", standing, address.format(number % 256)), NOW)
    late = sessions.begin(Signer(bob.pubkey, standing, "192.0.2.3"), NOW)
    assert all(sessions.get(secret, NOW) is not None for secret in (of_owner, mine, late))
    assert len(sessions) == 1 + 1024
    code = sessions.link(Signer(bob.pubkey, standing, "192.0.2.3"), NOW)
    for number in range(200):
        sessions.link(Signer(f"{number:064x}", standing, address.format(number)), NOW)
    assert sessions.linked(code, NOW) is not None


# -- requests that others make ---------------------------------------------------------------------


async def test_a_form_without_the_token_of_its_session_does_nothing() -> None:
    async with site() as here:
        browser, other = await here.browser_of(alice), await here.browser_of(bob)
        foreign = await other.csrf()
        event = alice.sign(1, [], "said by another page", NOW).raw.decode()
        for form in ({"event": event}, {"event": event, "csrf": foreign}, {"csrf": ""}):
            for path in ("/console/publish", "/console/sign-out"):
                assert (await browser.post(path, form)).status == 403
        assert alice.npub in await browser.text("/")
        assert await browser.json('/console/events.json?filter={"kinds":[1]}') is not None


@pytest.mark.parametrize("charset", ["punycode", "no-such-codec", "utf-8"])
async def test_no_form_is_decoded_as_it_says(charset: str) -> None:
    """The decoder of punycode takes seconds for 300 kB."""
    async with site() as here:
        browser = await here.browser_of(alice)
        kind = f"application/x-www-form-urlencoded; charset={charset}"
        form = f"csrf={await browser.csrf()}&event=0"
        response = await browser.post("/console/publish", form, Content_Type=kind)
        assert (response.status, await error_of(response)) == (400, "event: must be a JSON object")


@pytest.mark.parametrize("form", ["&".join(["a=1"] * 17), "csrf=\u00e9", "csrf=\0\xff"])
async def test_a_form_that_no_page_sends_is_refused(form: str) -> None:
    async with site() as here:
        browser = await here.browser_of(alice)
        kind = "application/x-www-form-urlencoded"
        response = await browser.post("/console/publish", form, Content_Type=kind)
        assert (response.status, "percent-encoded" in await error_of(response)) == (400, True)


async def test_forms_are_decoded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six at once on threads made others' writes twenty times slower."""
    fields, noted = app._fields, list[str]()

    def decode(body: bytes) -> Mapping[str, str]:
        noted.append("begun")
        decoded = fields(body)
        noted.append("ended")
        return decoded

    monkeypatch.setattr(app, "_fields", decode)
    async with site() as here:
        browser = await here.browser_of(stranger)
        form = f"csrf={await browser.csrf()}&event={'%41' * 20_000}"
        kind = "application/x-www-form-urlencoded"
        posts = [browser.post("/console/publish", form, Content_Type=kind) for _ in range(4)]
        assert [each.status for each in await asyncio.gather(*posts)] == [400] * 4
    assert noted == ["begun", "ended"] * 4


async def half_a_form(
    here: Site, browser: Browser, address: str = "192.0.2.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One of the longest, of which a byte is sent. `address`: as a proxy tells it."""
    ((name, value),) = browser.cookies.items()
    head = (
        f"POST /console/publish HTTP/1.1\r\nHost: x\r\nCookie: {name}={value}\r\n"
        f"X-Forwarded-For: {address}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {app._MAX_FORM}\r\n\r\na"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", here.relay.server.port)
    writer.write(head.encode())
    return reader, writer


async def test_forms_of_unknown_keys_that_never_arrive_are_few() -> None:
    """A thousand of 528 kB, all but the last byte, held 800 MB. Known keys have their own share."""
    async with site() as here:
        browser, known = await here.browser_of(stranger), await here.browser_of(owner)
        forms = {each: {"csrf": await each.csrf(), "event": "{}"} for each in (browser, known)}
        halves = [await half_a_form(here, browser) for _ in range(4)]
        async with until("the forms are being read") as tries:
            async for _ in tries:
                response = await browser.post("/console/publish", forms[browser])
                if response.status == 429:
                    break
        assert await error_of(response) == "too many forms at once, try again"
        # Read, and no event.
        assert (await known.post("/console/publish", forms[known])).status == 400
        for _, writer in halves:
            writer.close()
        async with until("the places are free") as tries:
            async for _ in tries:
                if (await browser.post("/console/publish", forms[browser])).status == 400:
                    break


async def test_forms_of_a_member_leave_places_to_members_and_owners() -> None:
    async with site(PROXIED) as here:
        await here.make_group("tea", members=[alice, bob])
        taken = {f"192.0.2.{number}": alice for number in (1, 2, 3)}
        free = {"192.0.2.4": bob, "192.0.2.5": owner, "192.0.2.6": stranger}
        browsers = {each: await here.browser_of(who) for each, who in (taken | free).items()}
        forms = {each: {"csrf": await browsers[each].csrf()} for each in browsers}

        async def post(address: str) -> int:
            form, browser = forms[address], browsers[address]
            posted = await browser.post("/console/publish", form, X_Forwarded_For=address)
            return posted.status

        writers = []
        for address in taken:
            for _ in range(8):
                writers.append((await half_a_form(here, browsers[address], address))[1])
            async with until("the forms are being read") as tries:
                async for _ in tries:
                    if await post(address) == 429:
                        break
            # Read, and no event.
            assert {await post(each) for each in free} == {400}
        for writer in writers:
            writer.close()


async def test_a_form_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.console.app._FORM_S", 0)
    async with site() as here:
        reader, writer = await half_a_form(here, await here.browser_of(alice))
        assert b" 400 " in await reader.readline()
        assert b"the form did not arrive in time" in await reader.readuntil(b"}")
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_can_send_nothing(headers: dict[str, str]) -> None:
    async with site() as here:
        browser = await here.browser_of(alice)
        csrf = await browser.csrf()
        for path in ("/console/sign-out", "/console/publish", "/console/sign-in", "/console/link"):
            assert (await browser.post(path, {"csrf": csrf}, **headers)).status == 403
        assert alice.npub in await browser.text("/")


async def test_no_page_may_be_framed_cached_or_read_by_other_origins() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        for path in ("/", "/console/groups", "/console/groups.json", "/console/sign-in", "/nope"):
            response = await browser.get(path, Accept="text/html")
            if path == "/nope":
                assert response.status == 404
                continue
            policy = response.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in policy
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert response.headers["X-Frame-Options"] == "DENY"
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Cache-Control"] == "no-store"
            assert "Access-Control-Allow-Origin" not in response.headers


# -- programs --------------------------------------------------------------------------------------


async def test_a_program_reads_a_twin_with_nip98_once_and_for_its_own_url() -> None:
    async with site() as here:
        await here.make_group("den", "private", "hidden", members=[alice])
        program = here.browser()
        path = "/console/group.json?id=den"
        assert (await program.get(path)).status == 404
        token = signed(here.relay, alice, path, "GET")
        assert (await program.get(path, Authorization=token)).status == 200
        assert (await program.get(path, Authorization=token)).status == 401
        for other in ("/console/group.json?id=tea", "/console/groups.json"):
            token = signed(here.relay, alice, other, "GET")
            assert (await program.get(path, Authorization=token)).status == 401
        token = signed(here.relay, person("nobody known"), path, "GET")
        assert (await program.get(path, Authorization=token)).status == 404


async def test_what_a_browser_signed_is_published_as_by_a_client() -> None:
    async with site() as here:
        await here.make_group("den", "private", members=[alice])
        browser = await here.browser_of(alice)
        csrf = await browser.csrf()
        said = alice.sign(9, [["h", "den"]], "from the console", NOW)
        form = {"csrf": csrf, "event": said.raw.decode()}
        reply = await (await browser.post("/console/publish", form)).json()
        assert reply == {"ok": True, "message": ""}
        assert "from the console" in await browser.text("/console/group?id=den")
        elsewhere = stranger.sign(9, [["h", "den"]], "not a member", NOW)
        form["event"] = elsewhere.raw.decode()
        reply = await (await browser.post("/console/publish", form)).json()
        assert reply["ok"] is False
        form["event"] = "{"
        response = await browser.post("/console/publish", form)
        assert (response.status, await error_of(response)) == (400, "event: is not JSON")


def test_a_header_is_what_nip98_says() -> None:
    assert header(alice.sign(27235, [], "", NOW)).startswith("Nostr ey")

"""A relay with its console in this process, and people who look at it without a browser."""

from __future__ import annotations

from base64 import b64encode
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import ClientSession, DummyCookieJar

from relay.console import Console
from relay.errors import Prefix, Refused
from relay.observe import LogLine, Refusal, Sample, Status
from tests.cast import owner
from tests.unit.server.test_app import NOW, OPEN, Relay, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from aiohttp import ClientResponse

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from relay.server.app import Server
    from tests.unit.server.test_app import Services

PUBLIC = OPEN + "[groups]\nnew = []\nalways = []\n"
_numbers = count()


@dataclass
class FakeOwnerView:
    """What owners see, as a test sets it."""

    rules_refused: dict[str, int] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    noted: list[Refusal] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    found: list[dict[str, str]] = field(default_factory=list)
    verified: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Of an edit of a policy file."""
    data_folder: str = "/srv/a team"
    is_in_database: bool = False
    may_edit_policies: bool = True
    saved: list[tuple[str, str, str, str]] = field(default_factory=list)
    text: str = "a text"
    """Of names, rules and files."""

    async def status(self) -> Status:
        refused = self.rules_refused
        return Status("1", 0.0, 5.0, {"connections": 3}, {}, refused, (), {}, self.problems)

    def day(self) -> Sequence[Sample]:
        return self.samples

    async def disk(self) -> Mapping[str, object]:
        sizes = ("store_bytes", "wal_bytes", "search_bytes", "free_bytes", "bytes_per_day")
        return {**dict.fromkeys(sizes, 1024), "backup_at": None}

    async def refusals(self) -> Sequence[Refusal]:
        return self.noted

    async def log_lines(self) -> Sequence[LogLine]:
        return self.lines

    async def findings(self) -> Sequence[Mapping[str, str]]:
        return self.found

    def verification(self) -> Mapping[str, Any]:
        return self.verified

    def start_verify(self) -> None:
        if self.verified.get("ended_at", 0) is None:
            raise Refused(Prefix.RATE_LIMITED, "a verification is already running")
        self.verified = {"began_at": NOW, "ended_at": None, "done": 1, "total": 3, "report": None}

    async def retention(self) -> Sequence[Mapping[str, object]]:
        text = self.text
        one = {"rule": text, "place": text, "cause": text, "kind": 9, "held": text}
        return [{**one, "events": 1, "bytes": 10}]

    async def policies(self) -> Mapping[str, object]:
        rule = {"text": self.text, "name": self.text, "file": self.text, "line": 3, "is_own": True}
        sections = [{"title": self.text, "rules": [rule]}]
        return {"sections": sections, "files": [self.text], "notes": [self.text]}

    async def policy_file(self, name: str) -> str | None:
        return f"# {self.text}\n" if name == self.text else None

    async def check_policy(self, name: str, text: str, owner: str) -> Mapping[str, object]:
        said = [self.text]
        lists = {"faults": self.faults, "warnings": said, "access": said, "diff": ["+" + text]}
        return {"text": text, "before": self.text, **lists}

    async def save_policy(self, name: str, text: str, before: str, owner: str) -> None:
        self.saved.append((name, text, before, owner))

    async def explain_write(self, fields: object, logins: frozenset[str]) -> Mapping[str, object]:
        text = self.text
        place = {"rule": text, "file": text, "line": 3}
        step = {**place, "stage": text, "matched": True, "says": text}
        return {**place, "ok": False, "message": text, "draft": True, "steps": [step]}

    async def explain_read(self, event: Event) -> Mapping[str, object]:
        rule = {"rule": self.text, "file": self.text, "line": 3, "readers": self.text}
        reader = {"who": self.text, "pubkey": "", "allowed": False, "rule": self.text}
        return {"rules": [rule], "readers": [reader]}

    def connections(self) -> Sequence[Mapping[str, object]]:
        one = {"number": 1, "address": self.text, "keys": [owner.pubkey]}
        return [{**one, "subscriptions": 2, "unsent_bytes": 0}]


class Browser:
    """One person's: it keeps the cookie that it was given."""

    def __init__(self, relay: Relay, session: ClientSession) -> None:
        self.relay = relay
        self._session = session
        self.cookies: dict[str, str] = {}
        self.set_cookie = ""
        """As it came last."""

    async def get(self, path: str, **headers: str) -> ClientResponse:
        return await self._ask("GET", path, None, headers)

    async def post(
        self, path: str, form: Mapping[str, str] | str | None = None, **headers: str
    ) -> ClientResponse:
        return await self._ask("POST", path, form, headers)

    async def _ask(
        self,
        method: str,
        path: str,
        form: Mapping[str, str] | str | None,
        headers: Mapping[str, str],
    ) -> ClientResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            pairs = (f"{name}={value}" for name, value in self.cookies.items())
            named["Cookie"] = "; ".join(pairs)
        response = await self._session.request(
            method,
            f"http://{self.relay.at}{path}",
            data=form,
            headers=named,
            allow_redirects=False,
        )
        await response.read()
        if "Set-Cookie" in response.headers:
            self.set_cookie = response.headers["Set-Cookie"]
            for name, morsel in response.cookies.items():
                self.cookies[name] = morsel.value
        return response

    async def json(self, path: str) -> Any:
        response = await self.get(path)
        assert response.status == 200, await response.text()
        return await response.json()

    async def text(self, path: str, status: int = 200) -> str:
        response = await self.get(path, Accept="text/html")
        assert response.status == status, await response.text()
        return await response.text()

    async def sign_in(self, who: SecretKey) -> ClientResponse:
        return await self.post("/console/sign-in", Authorization=signed(self.relay, who))

    async def csrf(self) -> str:
        """The token of this session, as the page tells its own script."""
        page = await self.text("/")
        return page.partition('data-csrf="')[2].partition('"')[0]


def signed(
    relay: Relay,
    who: SecretKey,
    path: str = "/console/sign-in",
    method: str = "POST",
    *,
    at: int = NOW,
    kind: int = 27235,
    host: str | None = None,
) -> str:
    """The Authorization header; each is another event."""
    tags = [
        ["u", f"http://{relay.at if host is None else host}{path}"],
        ["method", method],
        ["number", str(next(_numbers))],
    ]
    return header(who.sign(kind, tags, "", at))


def header(event: Event) -> str:
    return "Nostr " + b64encode(event.raw).decode()


@dataclass
class Site:
    relay: Relay
    owner_view: FakeOwnerView
    _session: ClientSession

    def browser(self) -> Browser:
        return Browser(self.relay, self._session)

    async def browser_of(self, who: SecretKey) -> Browser:
        """Signed in."""
        browser = self.browser()
        response = await browser.sign_in(who)
        assert response.status == 200, await response.text()
        return browser

    async def publish(self, *events: Event) -> None:
        visit = await self.relay.visit()
        for event in events:
            assert await visit.publishes(event) == (True, ""), orjson.loads(event.raw)

    async def make_group(self, group: str, *flags: str, members: Sequence[SecretKey] = ()) -> None:
        """By the owner."""
        await self.publish(owner.sign(9007, [["h", group]], "", NOW))
        if flags:
            tags = [["h", group], *([flag] for flag in flags)]
            await self.publish(owner.sign(9002, tags, "", NOW))
        for member in members:
            put = owner.sign(9000, [["h", group], ["p", member.pubkey]], "", NOW)
            await self.publish(put)

    async def call(self, method: str, *params: object) -> None:
        """NIP-86, by the owner."""
        from tests.unit.server.test_nip86 import body_of, post
        from tests.unit.server.test_nip86 import signed as call_signed

        body = body_of(method, *params)
        assert await post(self.relay, body, call_signed(self.relay, body)) == (
            200,
            {"result": True},
        )


@asynccontextmanager
async def site(config: str = "", policy: str = PUBLIC) -> AsyncIterator[Site]:
    """A relay with a console; its groups are public unless they are made otherwise."""
    owner_view = FakeOwnerView()

    def pages(services: Services, server: Server) -> Console:
        return Console(services, server, owner_view)

    async with (
        serving(config, policy, pages=pages) as relay,
        ClientSession(cookie_jar=DummyCookieJar()) as session,
    ):
        yield Site(relay, owner_view, session)

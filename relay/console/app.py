"""Console: routes, authentication, sign-in, and the headers of every page."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, replace
from functools import partial
from hmac import compare_digest
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import orjson
from aiohttp import hdrs, web

from relay.access.actors import is_known
from relay.access.quotas import Per, Rate, TokenBuckets, subnet_of
from relay.access.visibility import ANONYMOUS, Viewer
from relay.console.ask import Ask, NotFoundError, T
from relay.console.html import Assets, environment
from relay.console.measured import Measured
from relay.console.openapi import described
from relay.console.page import Audience
from relay.console.pages import PAGES
from relay.console.parts import MAX_OF_KNOWN, MAX_OF_OTHERS
from relay.console.places import Places, standing_of
from relay.console.sessions import SESSION_S, Sessions, Signer, Standing
from relay.console.tables import as_csv, table
from relay.console.threads import Threads
from relay.errors import (
    ANOTHER_VERSION,
    GROUP_CHANGED,
    VERSION_DELETED,
    Invalid,
    Prefix,
    Refused,
    StoreFault,
)
from relay.nostr.event import event_from
from relay.nostr.keys import npub
from relay.nostr.nip98 import HttpRequest, authorization

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from relay.console.ask import InThread
    from relay.console.page import Page
    from relay.console.parts import ConsoleServices, OwnerView, Site
    from relay.console.sessions import Session

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""Pages that are made at the same time for owners, for other known keys, and for unknown keys."""
_FEW_PAGES: Final = 2
_MAX_WAITING: Final = 16 * 8 * _FEW_PAGES
"""Pages that wait or are made, see `Shares.room_for`: so many that sixteen networks leave some to
others."""
_PACE: Final = Rate("console", Per.ADDRESS, burst=20, refill=60)
"""Pages, forms and signatures of unknown keys from one address; a page takes up to 0.1 s of the
loop."""
_WAIT_S: Final = 10.0
"""A request that waits longer for its turn, and for the rest after other pages, is refused."""
_PAGE_S: Final = 5.0
"""A page that takes longer is abandoned."""
_MAX_FORM: Final = 524_288 + 4096
_MAX_FIELDS: Final = 16
_FORM_OVERHEAD: Final = 4096
"""What a form takes besides its bytes."""
_MAX_FORMS: Final = 16 * (_MAX_FORM + _FORM_OVERHEAD)
"""Bytes of the forms that are read at the same time, see `Shares.room_for`: most forms are small,
and a body that does not come takes nothing."""
_FEW_FORMS: Final = 32_768
_FORM_S: Final = 10.0
_MAX_QUERY: Final = 16_384
_RETRIES: Final = 3
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _CSP,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer a form sends `Origin: null`
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_STATUS: Final = {
    Prefix.AUTH_REQUIRED: 401,
    Prefix.RESTRICTED: 403,
    Prefix.BLOCKED: 403,
    Prefix.RATE_LIMITED: 429,
    Prefix.ERROR: 503,
}
"""Refusal → HTTP status; any other is 400."""
_CHANGED: Final = {
    f"{Prefix.DUPLICATE}: {text}" for text in (ANOTHER_VERSION, VERSION_DELETED, GROUP_CHANGED)
}
"""Answers to a form that was made from what is no longer stored."""


@dataclass(frozen=True, slots=True)
class _Who:
    viewer: Viewer = ANONYMOUS
    session: Session | None = None
    """None: not signed in, or one request signed by NIP-98."""

    @property
    def pubkey(self) -> str | None:
        return next(iter(self.viewer.keys), None)


class Console:
    """Satisfies `relay.server.app.Pages`."""

    def __init__(self, services: ConsoleServices, site: Site, owner_view: OwnerView) -> None:
        self._services = services
        self._site = site
        self._owner_view = owner_view
        self._sessions = Sessions()
        self._assets = Assets()
        self._templates = environment()
        self._making = Places(
            _MAX_WAITING, _FEW_PAGES, _AT_ONCE, "too many page requests, try again"
        )
        self._threads = Threads()
        self._answering = {standing: asyncio.Lock() for standing in Standing}
        self._forms = Places(_MAX_FORMS, _FEW_FORMS, 1, "too many forms at once, try again")
        self._buckets = TokenBuckets()
        self._base = ""
        self._is_secure = site.is_secure
        self._cookie = "__Host-rookery" if self._is_secure else "rookery"
        self._secrets = re.compile(rf"(?:^|;)[ \t]*+{self._cookie}=([^; \t]*)").findall

    def add_routes(self, router: web.UrlDispatcher, base: str) -> None:
        self._base = base
        at = f"{base}/console"
        for page in PAGES:
            for ending in ("", ".json", *((".csv",) if page.has_table else ())):
                router.add_get(f"{at}/{page.name}{ending}", self._getter(page, ending))
        router.add_get(at, self.front)
        router.add_get(f"{at}/static/{{name}}", self._static)
        router.add_get(f"{at}/openapi.json", self._openapi)
        router.add_get(f"{at}/sign-in", self._shield(self._sign_in_page))
        router.add_post(f"{at}/sign-in", self._shield(self._sign_in))
        router.add_post(f"{at}/sign-out", self._shield(self._sign_out))
        router.add_post(f"{at}/link", self._shield(self._make_link))
        router.add_get(f"{at}/link/{{code}}", self._shield(self._link_page))
        router.add_post(f"{at}/link/{{code}}", self._shield(self._follow_link))
        router.add_post(f"{at}/publish", self._shield(self._publish))
        router.add_post(f"{at}/verify", self._shield(self._start_verify))
        router.add_post(f"{at}/policy-check", self._shield(self._check_policy))
        router.add_post(f"{at}/policy-save", self._shield(self._save_policy))

    def rights_changed(self) -> None:
        self._sessions.end_of(self._services.state.actors.banned)

    async def front(self, request: web.Request) -> web.Response:
        return await self._answer(request, PAGES[0], "")

    # -- who asks ---------------------------------------------------------------------------------

    def _secret_in(self, request: web.Request) -> str | None:
        """The value of the session's cookie. Not by `request.cookies`: aiohttp makes an object of
        each, 26 ms for 8,000 bytes."""
        found = self._secrets(request.headers.get(hdrs.COOKIE, ""))
        return found[-1] if found else None

    def _session(self, request: web.Request) -> Session | None:
        session = self._sessions.get(self._secret_in(request), self._services.clock())
        if session is None or session.pubkey in self._services.state.actors.banned:
            return None
        return session

    async def _who(self, request: web.Request, ending: str) -> _Who:
        """Raises Refused. NIP-98 is for programs: a page in a browser has a session."""
        header = request.headers.get(hdrs.AUTHORIZATION)
        if header is not None and ending:
            return _Who(Viewer(frozenset({await self._signer(request, header, b"")})))
        session = self._session(request)
        if session is None:
            return _Who()
        return _Who(Viewer(frozenset({session.pubkey})), session)

    async def _signer(self, request: web.Request, header: str | None, body: bytes) -> str:
        """The key that signed this very request (NIP-98), once. Raises Refused."""
        now = self._services.clock()
        path = request.path
        if self._base:
            path = path.removeprefix(self._base)
        here = frozenset(
            replace(each, path=f"{each.path}{path}") for each in self._site.addresses_for(request)
        )
        asked = HttpRequest(request.method, request.rel_url.raw_query_string, body)
        try:
            signed = authorization(header, asked, here, now)
        except Invalid as invalid:
            raise Refused(Prefix.AUTH_REQUIRED, invalid.text) from invalid
        if signed.pubkey in self._services.state.actors.banned:
            raise Refused(Prefix.RESTRICTED, "this key is banned here")
        self._pace(request, signed.pubkey)
        most, address = self._share_of(signed.pubkey), self._site.counted_as(request)
        if await self._services.used_calls.was_used(signed, now, most, address):
            raise Refused(Prefix.AUTH_REQUIRED, "this authorization was already used")
        return signed.pubkey

    def _is_owner(self, pubkey: str | None) -> bool:
        actors = self._services.state.actors
        return pubkey is not None and (pubkey in actors.owners or pubkey == actors.relay)

    def _is_known(self, pubkey: str | None) -> bool:
        state = self._services.state
        return pubkey is not None and is_known(pubkey, state.actors, state.groups)

    def _signed_in(self, request: web.Request, pubkey: str) -> Signer:
        standing = Standing.KNOWN if self._is_known(pubkey) else Standing.OTHER
        if self._is_owner(pubkey):
            standing = Standing.OWNER
        return Signer(pubkey, standing, subnet_of(self._site.address_of(request)))

    def _share_of(self, pubkey: str) -> int | None:
        """Signed requests that may be remembered before this key must wait; None: as many as of
        owners."""
        if self._is_owner(pubkey):
            return None
        return MAX_OF_KNOWN if self._is_known(pubkey) else MAX_OF_OTHERS

    def _pace(self, request: web.Request, pubkey: str | None) -> None:
        """Raises Refused."""
        if self._is_known(pubkey):
            return
        name, now = subnet_of(self._site.address_of(request)), self._services.clock()
        if self._buckets.wait_s(_PACE, name, now):
            raise Refused(Prefix.RATE_LIMITED, "too many page requests, wait a minute")
        self._buckets.take(_PACE, name, now)

    # -- pages ------------------------------------------------------------------------------------

    def _getter(self, page: Page, ending: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def get(request: web.Request) -> web.Response:
            return await self._answer(request, page, ending)

        return get

    async def _answer(self, request: web.Request, page: Page, ending: str) -> web.Response:
        who = _Who()
        try:
            self._check_client(request)
            who = await self._who(request, ending)
            if page.audience is Audience.OWNER and not self._is_owner(who.pubkey):
                if who.pubkey is None:
                    raise Refused(
                        Prefix.AUTH_REQUIRED, "only an owner of the relay may see this page"
                    )
                raise Refused(Prefix.RESTRICTED, "only an owner of the relay may see this page")
            if who.session is not None or who.pubkey is None:  # otherwise its signature counted
                self._pace(request, who.pubkey)
            return await self._made(request, page, who, ending)
            # A hidden group and one that does not exist get the same page, not only the same
            # status.
        except NotFoundError as missing:
            return self._failed(request, who, 404, str(missing), ending)
        except Refused as refused:
            status = _STATUS.get(refused.prefix, 400)
            return self._failed(request, who, status, refused.text, ending)
        except StoreFault as fault:
            _log.error("a page of the console failed: %s", fault)
            text = "the store is not available, try again later"
            return self._failed(request, who, 503, text, ending)
        except TimeoutError:
            text = f"this page takes longer than {_PAGE_S:.0f} s and was stopped: ask for less"
            return self._failed(request, who, 503, text, ending)
        except Exception:  # last frame of a request  # noqa: BLE001
            _log.exception("a page of the console failed")
            return self._failed(request, who, 500, "internal error, try again later", ending)

    async def _made(self, request: web.Request, page: Page, who: _Who, ending: str) -> web.Response:
        """Raises NotFoundError, Refused, StoreFault, TimeoutError."""
        rights = self._services.state.visibility(who.viewer)
        standing, part = standing_of(rights), self._part(request, who.pubkey)
        with self._making.place(rights, part):
            # An admitted key is a network of its own: all members may be in one office.
            turn = self._making.turn(standing, rights.admitted_as or part, who.pubkey)
            async with asyncio.timeout(_WAIT_S) as limit, turn:
                for _ in range(_RETRIES):
                    await self._making.rest(standing)
                    limit.reschedule(asyncio.get_running_loop().time() + _PAGE_S)
                    before = self._services.state.visibility(who.viewer)
                    ask = Ask(
                        self._services,
                        who.viewer,
                        dict(request.query),
                        self._information(),
                        self._in_thread(standing),
                        self._site.url_for(request),
                        self._base,
                        self._owner_view if self._is_owner(who.pubkey) else None,
                        self._services.clock(),
                        self._site.counted_as(request),
                    )
                    finding = Measured(_content(page, ask, ending))
                    try:
                        content = await finding
                    finally:
                        self._making.count(standing, finding.work_s)
                    async with self._answering[standing]:
                        # A page of several queries must have nothing that was read with a right
                        # lost since.
                        if self._services.state.visibility(who.viewer).covers(before):
                            began = thread_time()
                            response = self._found(request, page, who, ending, content)
                            self._making.count(standing, thread_time() - began)
                            # Other tasks run between two answers, even if many are ready.
                            await asyncio.sleep(0)
                            return response
        raise Refused(Prefix.ERROR, "your rights are changing, try again")

    def _in_thread(self, standing: Standing) -> InThread:
        count = partial(self._making.count, standing)

        async def in_thread(work: Callable[[], T]) -> T:
            return await self._threads.run(standing, work, count)

        return in_thread

    def _part(self, request: web.Request, pubkey: str | None) -> str | None:
        """By which places and turns are shared: a proxy may not tell addresses."""
        return self._site.counted_as(request) or pubkey

    def _found(
        self,
        request: web.Request,
        page: Page,
        who: _Who,
        ending: str,
        content: Mapping[str, object] | str,
    ) -> web.Response:
        if isinstance(content, str):
            headers = {"Content-Disposition": f'attachment; filename="{page.name}.csv"'}
            return self._response(content.encode(), "text/csv", headers=headers)
        if ending == ".json":
            return self._response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS))
        return self._page(request, who, page.name, page.title, content, page=page)

    def _page(
        self,
        request: web.Request,
        who: _Who,
        template: str,
        title: str,
        data: Mapping[str, object],
        *,
        page: Page | None = None,
        status: int = 200,
    ) -> web.Response:
        is_owner = self._is_owner(who.pubkey)
        at = f"{self._base}/console"
        text = self._templates.get_template(f"{template}.html").render(
            data=data,
            people=data.get("people", {}),
            notes=data.get("notes", ()),
            title=title,
            page=page,
            relay_name=self._information()["name"],
            at=at,
            home=f"{self._base}/",
            asset=lambda name: f"{at}/static/{self._assets.path(name)}",
            menu=[
                each
                for each in PAGES
                if each.in_menu and (each.audience is Audience.ANYONE or is_owner)
            ],
            query=dict(request.query),
            me=who.pubkey,
            my_npub=npub(who.pubkey) if who.pubkey else "",
            is_owner=is_owner,
            data_folder=self._owner_view.data_folder if is_owner else "",
            csrf=who.session.csrf if who.session else "",
            now=self._services.clock(),
            url=self._site.url_for(request),
        )
        return self._response(text.encode("utf-8", "replace"), "text/html", status=status)

    def _failed(
        self, request: web.Request, who: _Who, status: int, text: str, ending: str
    ) -> web.Response:
        if ending:
            response = self._response(orjson.dumps({"error": text}), status=status)
        else:
            data = {"status": status, "text": text, "wants_sign_in": status == 401}
            title = {401: "Sign in required", 404: "Not found"}.get(status, "Not possible")
            response = self._page(request, who, "failed", title, data, status=status)
        if status == 401:
            response.headers[hdrs.WWW_AUTHENTICATE] = "Nostr"
        return response

    def _response(
        self,
        body: bytes,
        content_type: str = "application/json",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> web.Response:
        given = {**HEADERS, "Cache-Control": "no-store", **(headers or {})}
        if self._is_secure:
            given["Strict-Transport-Security"] = "max-age=31536000"
        return web.Response(
            body=body, content_type=content_type, charset="utf-8", status=status, headers=given
        )

    async def _static(self, request: web.Request) -> web.Response:
        found = self._assets.files.get(request.match_info["name"])
        if found is None:
            return self._response(b'{"error":"not found"}', status=404)
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        response = self._response(found[0], found[1], headers=headers)
        response.enable_compression()
        return response

    async def _openapi(self, _: web.Request) -> web.Response:
        version = self._information()["version"]
        return self._response(orjson.dumps(described(PAGES, f"{self._base}/console", version)))

    def _information(self) -> dict[str, object]:
        found: dict[str, object] = orjson.loads(self._site.information())
        return found

    # -- signing in and out -----------------------------------------------------------------------

    def _shield(
        self, answer: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Refusals as pages or JSON; nothing from blocked addresses or pages of others."""

        async def shielded(request: web.Request) -> web.Response:
            try:
                self._check_client(request)
                if request.method != "GET":
                    self._check_origin(request)
                return await answer(request)
            except Refused as refused:
                status = _STATUS.get(refused.prefix, 400)
                wants_page = "text/html" in request.headers.get(hdrs.ACCEPT, "")
                ending = "" if wants_page else ".json"
                who = _Who(session=self._session(request))
                return self._failed(request, who, status, refused.text, ending)

        return shielded

    def _check_client(self, request: web.Request) -> None:
        if not self._site.may_connect(request):
            raise Refused(Prefix.BLOCKED, "your address is blocked")
        if len(request.rel_url.raw_query_string) > _MAX_QUERY:
            raise Invalid("the query is too long")

    def _check_origin(self, request: web.Request) -> None:
        """Refuse forms from other sites (CSRF)."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused(Prefix.RESTRICTED, "this was sent by another site")
        if self._site.is_of_page(request):
            raise Refused(
                Prefix.RESTRICTED,
                "this was sent by another site; if that site is this relay, set [relay] url to its"
                " address",
            )

    async def _sign_in_page(self, request: web.Request) -> web.Response:
        who = await self._who(request, "")
        return self._page(request, who, "sign-in", "Sign in", {})

    async def _sign_in(self, request: web.Request) -> web.Response:
        """NIP-98 by a browser extension (NIP-07): a new session."""
        pubkey = await self._signer(request, request.headers.get(hdrs.AUTHORIZATION), b"")
        response = self._response(orjson.dumps({"pubkey": pubkey, "next": f"{self._base}/"}))
        self._begin(request, response, pubkey)
        return response

    def _begin(self, request: web.Request, response: web.Response, pubkey: str) -> None:
        self._sessions.end(self._secret_in(request))
        signer = self._signed_in(request, pubkey)
        secret = self._sessions.begin(signer, self._services.clock())
        response.set_cookie(
            self._cookie,
            secret,
            max_age=SESSION_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._is_secure,
        )
        _log.info("console: %s signed in", pubkey)

    def _form_size(self, request: web.Request) -> int:
        """Raises Invalid for what is not a form of a page."""
        # Not `content_type`: aiohttp parses all of the header, and 8 kB of quotes take 0.6 s.
        media_type = request.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        if media_type != "application/x-www-form-urlencoded":
            raise Invalid("Content-Type: must be application/x-www-form-urlencoded")
        if request.content_length is None or request.content_length > _MAX_FORM:
            raise Invalid("the form is too long")
        return request.content_length

    async def _form(
        self, request: web.Request, standing: Standing, part: str | None
    ) -> Mapping[str, str]:
        body = await request.read()
        async with self._forms.turn(standing, part):  # the loop waits for the GIL behind each
            await self._forms.rest(standing)
            began = perf_counter()
            try:
                return await asyncio.to_thread(_fields, body)
            finally:
                self._forms.count(standing, perf_counter() - began)

    async def _form_of_session(self, request: web.Request) -> tuple[Session, Mapping[str, str]]:
        """Raises Refused for who is not signed in, and for a form without its token (CSRF)."""
        session = self._session(request)
        if session is None:
            raise Refused(Prefix.AUTH_REQUIRED, "sign in first")
        self._pace(request, session.pubkey)
        rights = self._services.state.visibility(Viewer(frozenset({session.pubkey})))
        part = self._part(request, session.pubkey)
        size = self._form_size(request) + _FORM_OVERHEAD
        with self._forms.place(rights, part, size):
            try:
                async with asyncio.timeout(_FORM_S):
                    form = await self._form(request, standing_of(rights), part)
            except TimeoutError:
                raise Invalid("the form did not arrive in time") from None
        if not _equal(form.get("csrf", ""), session.csrf):
            raise Refused(
                Prefix.RESTRICTED, "this form belongs to another session: load the page again"
            )
        return session, form

    async def _sign_out(self, request: web.Request) -> web.Response:
        await self._form_of_session(request)
        self._sessions.end(self._secret_in(request))
        response = self._see_other(f"{self._base}/")
        response.del_cookie(self._cookie, path="/", secure=self._is_secure, samesite="Strict")
        return response

    async def _make_link(self, request: web.Request) -> web.Response:
        """NIP-98 by `rookery console`: a link that signs in once, within a minute."""
        pubkey = await self._signer(request, request.headers.get(hdrs.AUTHORIZATION), b"")
        code = self._sessions.link(self._signed_in(request, pubkey), self._services.clock())
        return self._response(orjson.dumps({"path": f"{self._base}/console/link/{code}"}))

    async def _link_page(self, request: web.Request) -> web.Response:
        """Asks for confirmation: the preview of a link must not use it up, and a link from somebody
        else must not sign in."""
        code = request.match_info["code"]
        link = self._sessions.linked(code, self._services.clock())
        if link is None:
            raise Refused(
                Prefix.RESTRICTED,
                "this link was already used or has expired: run `rookery console` again",
            )
        data = {"npub": npub(link.pubkey), "code": code}
        return self._page(request, await self._who(request, ""), "link", "Sign in", data)

    async def _follow_link(self, request: web.Request) -> web.Response:
        link = self._sessions.follow(request.match_info["code"], self._services.clock())
        if link is None or link.pubkey in self._services.state.actors.banned:
            raise Refused(
                Prefix.RESTRICTED,
                "this link was already used or has expired: run `rookery console` again",
            )
        response = self._see_other(f"{self._base}/")
        self._begin(request, response, link.pubkey)
        return response

    def _see_other(self, path: str) -> web.Response:
        return self._response(b"", "text/plain", status=303, headers={hdrs.LOCATION: path})

    # -- acting -----------------------------------------------------------------------------------

    async def _publish(self, request: web.Request) -> web.Response:
        """An event that the browser's extension signed, as from a connection of this key."""
        session, form = await self._form_of_session(request)
        try:
            event = event_from(orjson.loads(form.get("event", "")))
        except ValueError:
            raise Invalid("event: is not JSON") from None
        accepted, text = await self._services.ingest.published(
            event,
            frozenset({session.pubkey}),
            self._site.address_of(request),
            self._site.counted_as(request) or session.pubkey,
        )
        if not accepted and text in _CHANGED:
            text += ", look at it again"
        return self._response(orjson.dumps({"ok": accepted, "message": text}))

    def _owner_of(self, session: Session) -> str:
        """Raises Refused if the key is not an owner now."""
        if not self._is_owner(session.pubkey):
            raise Refused(Prefix.RESTRICTED, "only owners of the relay may do this")
        return session.pubkey

    async def _start_verify(self, request: web.Request) -> web.Response:
        session, _ = await self._form_of_session(request)
        owner = self._owner_of(session)
        self._owner_view.start_verify()
        _log.info("console: %s started verify", owner, extra={"audit": True})
        return self._see_other(f"{self._base}/console/verify")

    async def _check_policy(self, request: web.Request) -> web.Response:
        """What an edit of a policy file changes; nothing is saved."""
        session, form = await self._form_of_session(request)
        owner, name = self._owner_of(session), form.get("name", "")
        edit = await self._owner_view.check_policy(name, form.get("text", ""), owner)
        who = _Who(Viewer(frozenset({owner})), session)
        return self._page(request, who, "policy-check", "Policy file", {**edit, "name": name})

    async def _save_policy(self, request: web.Request) -> web.Response:
        session, form = await self._form_of_session(request)
        owner, name = self._owner_of(session), form.get("name", "")
        # Signed like a NIP-86 call: a cookie alone must not change policies.
        header, body = request.headers.get(hdrs.AUTHORIZATION), await request.read()
        if await self._signer(request, header, body) != owner:
            raise Refused(
                Prefix.RESTRICTED, "the signature is by another key than the one signed in"
            )
        self._owner_of(session)  # a reload may have come meanwhile
        text, before = form.get("text", ""), form.get("before", "")
        await self._owner_view.save_policy(name, text, before, owner)
        _log.info("console: %s saved the policy file %s", owner, name, extra={"audit": True})
        return self._response(orjson.dumps({"ok": True}))


async def _content(page: Page, ask: Ask, ending: str) -> Mapping[str, object] | str:
    """The data of the page, or its table as CSV. Raises as `Page.find`."""
    found = await page.find(ask)
    if ending == ".csv":
        assert found.table is not None
        return await as_csv(found.table, ask.query)
    data = {**found.data, "people": found.people, "notes": ask.notes}
    if found.table is not None:
        data["table"] = await table(found.table, ask.query)
    return data


def _fields(body: bytes) -> Mapping[str, str]:
    """The fields of a form. The charset that it names is ignored: some codecs take quadratic time.
    Takes up to 0.4 s. Raises Invalid."""
    try:
        text = body.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        raise Invalid(
            f"the form must be percent-encoded, with at most {_MAX_FIELDS} fields"
        ) from None


def _equal(one: str, other: str) -> bool:
    return compare_digest(one.encode("utf-8", "replace"), other.encode())

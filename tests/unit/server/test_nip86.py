"""relay/server/nip86.py: the relay is managed over HTTP, and what that does at once.

N86, N98, N29-19, N42-09, N42-16.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from ipaddress import ip_address, ip_network
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from relay.access.management import METHODS, Blocklist, blocklist_of
from relay.errors import Invalid, Refused, StoreFault
from relay.files import replace_own_file
from relay.groups.actions import Flag
from relay.groups.group import Group
from relay.nostr.event import event_from_raw
from relay.nostr.nip98 import WINDOW_S
from relay.server import nip86, turns
from relay.server.http import may_connect
from relay.server.nip86 import UsedAuthorizations
from tests.cast import admin, alice, bob, carol, owner, person, robot, rover, stranger
from tests.harness.folders import loaded
from tests.unit.server.test_app import NOW, OPEN, RELAY, Relay, Visit, serving
from tests.unit.server.test_http import request_from

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey

RPC = "application/nostr+json+rpc"
BANNED_WRITE = (False, "blocked: this key is banned here")
BANNED_READ = "restricted: this key is banned here"
DEN = Group("den", flags=frozenset({Flag.PRIVATE})).with_users(
    {admin.pubkey: ("admin",), alice.pubkey: ()}
)
_numbers = count()


def signed(
    relay: Relay,
    body: bytes,
    who: SecretKey = owner,
    *,
    at: int = NOW,
    u: str | None = None,
    method: str = "POST",
    kind: int = 27235,
    payload: str | None = "",
) -> str:
    """The Authorization header of a call; each is another event."""
    tags = [
        ["u", f"http://{relay.at}/" if u is None else u],
        ["method", method],
        ["number", str(next(_numbers))],
    ]
    if payload is not None:
        tags.append(["payload", payload or sha256(body).hexdigest()])
    return header(who.sign(kind, tags, "", at))


def header(event: Event) -> str:
    return "Nostr " + b64encode(event.raw).decode()


def body_of(method: str, *params: object) -> bytes:
    return orjson.dumps({"method": method, "params": params})


async def post(
    relay: Relay, body: bytes, authorization: str | None, path: str = "/", **headers: str
) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("Content-Type", RPC)
    if authorization is not None:
        named["Authorization"] = authorization
    url = f"http://{relay.at}{path}"
    async with relay.browser.post(url, data=body, headers=named) as response:
        assert response.content_type == RPC
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        return response.status, orjson.loads(await response.read())


async def called(relay: Relay, method: str, *params: object, who: SecretKey = owner) -> Any:
    """What a call gives that nothing is wrong with."""
    body = body_of(method, *params)
    status, said = await post(relay, body, signed(relay, body, who))
    assert status == 200, said
    assert said.keys() == {"result"}, said
    return said["result"]


async def objected(relay: Relay, method: str, *params: object) -> str:
    """The error of a refused call."""
    body = body_of(method, *params)
    status, said = await post(relay, body, signed(relay, body))
    assert status == 200
    assert said.keys() == {"error"}
    assert isinstance(said["error"], str)
    return said["error"]


@asynccontextmanager
async def serving_the_den(policy: str = OPEN) -> AsyncIterator[Relay]:
    """With a private group, whose members are admin and alice."""
    async with serving(policy=policy) as relay:
        relay.state.adopt(relay.state.groups.with_group(DEN))
        yield relay


async def logged_in(relay: Relay, *who: SecretKey) -> Visit:
    visit = await relay.visit()
    for key in who:
        assert await visit.logs_in(key, f"ws://{relay.at}") == (True, "")
    return visit


def note(who: SecretKey = alice, text: str = "tea is ready", *tags: list[str]) -> Event:
    return who.sign(1, [list(tag) for tag in tags], text, NOW)


def found(frames: list[list[Any]]) -> list[str]:
    """Ids of the events of an answer."""
    return [frame[2]["id"] for frame in frames if frame[0] == "EVENT"]


# who may call ------------------------------------------------------------------------------------


async def test_who_is_an_owner_no_longer_when_the_call_is_noted_may_not_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The note of used calls waits for the disk; a reload may come meanwhile."""
    without_owners, was_used = loaded(tmp_path, b=OPEN), UsedAuthorizations.was_used
    async with serving_the_den() as relay:

        async def reloaded(*args: Any) -> bool:
            relay.state.enforce(without_owners)
            return await was_used(*args)

        monkeypatch.setattr(UsedAuthorizations, "was_used", reloaded)
        body = body_of("listbannedpubkeys")
        status, _ = await post(relay, body, signed(relay, body, owner))
        assert status == 403


@pytest.mark.proves("N98-04", "N86-02", "N42-06")
@pytest.mark.parametrize("path", ["", "/tea"])
async def test_u_and_relay_may_have_a_final_slash_or_not(path: str) -> None:
    """Flotilla signs `https://HOST/` for NIP-86 (src/app/core/commands.ts), and welshman, its
    engine, adds a slash to the `relay` of AUTH (packages/util/src/Relay.ts, normalizeRelayUrl)."""
    async with serving(f'[relay]\nurl = "wss://relay.example{path}"\n') as relay:
        body = body_of("supportedmethods")
        for slash in ("", "/"):
            u = f"https://relay.example{path}{slash}"
            status, reply = await post(relay, body, signed(relay, body, u=u), path=path + slash)
            assert (status, set(reply["result"])) == (200, set(METHODS))
            visit = await relay.visit(path + slash)
            assert await visit.logs_in(alice, f"wss://relay.example{path}{slash}") == (True, "")


@pytest.mark.proves("N86-01", "N86-02", "N86-10", "N98-01", "N98-02", "N98-05", "N98-06")
@pytest.mark.parametrize("who", [owner, RELAY], ids=["an owner", "the relay itself"])
async def test_owners_may_call(who: SecretKey) -> None:
    async with serving() as relay:
        assert set(await called(relay, "supportedmethods", who=who)) == set(METHODS)


@pytest.mark.proves("N86-02", "N86-03")
@pytest.mark.parametrize("who", [alice, robot, admin], ids=["a member", "an agent", "an admin"])
async def test_others_may_not_call(who: SecretKey) -> None:
    async with serving_the_den() as relay:
        body = body_of("banpubkey", bob.pubkey)
        status, said = await post(relay, body, signed(relay, body, who))
        assert status == 403
        assert said.keys() == {"error"}
        assert await called(relay, "listbannedpubkeys") == []


@pytest.mark.proves("N86-02", "N98-04")
@pytest.mark.parametrize(
    "u", ["http://{}", "http://{}/", "https://{}/", "ws://{}", "wss://{}/", "WS://{}"]
)
async def test_u_may_be_any_spelling_of_the_url(u: str) -> None:
    async with serving() as relay:
        body = body_of("supportedmethods")
        authorization = signed(relay, body, u=u.format(relay.at))
        assert (await post(relay, body, authorization))[0] == 200


@pytest.mark.proves("N98-04")
async def test_behind_a_proxy_the_public_address_counts() -> None:
    async with serving('[relay]\nurl = "wss://relay.example/tea"\n') as relay:
        body = body_of("supportedmethods")
        right = signed(relay, body, u="https://relay.example/tea/")
        assert (await post(relay, body, right, "/tea"))[0] == 200
        for wrong in ("https://relay.example/", f"http://{relay.at}/tea"):
            authorization = signed(relay, body, u=wrong)
            status, _ = await post(relay, body, authorization, "/tea", Host="relay.example")
            assert status == 401


@pytest.mark.proves("N86-02", "N98-02", "N98-03", "N98-04", "N98-05", "N98-06", "N98-07")
@pytest.mark.parametrize(
    "wrong",
    [
        {"at": NOW - 61},
        {"at": NOW + 61},
        {"u": "http://elsewhere.example/"},
        {"u": ""},
        {"method": "GET"},
        {"kind": 22242},
        {"payload": None},
        {"payload": "0" * 64},
    ],
    ids=str,
)
async def test_an_authorization_for_another_request_is_refused(wrong: dict[str, Any]) -> None:
    async with serving() as relay:
        body = body_of("banpubkey", alice.pubkey)
        status, said = await post(relay, body, signed(relay, body, **wrong))
        assert status == 401
        assert said.keys() == {"error"}
        assert await called(relay, "listbannedpubkeys") == []


@pytest.mark.proves("N86-02", "N98-07")
@pytest.mark.parametrize(
    "authorization", [None, "", "Basic b3duZXI=", "Nostr ", "Nostr !!", "Nostr e30="]
)
async def test_a_call_without_authorization_is_refused(authorization: str | None) -> None:
    async with serving() as relay:
        status, said = await post(relay, body_of("listbannedpubkeys"), authorization)
        assert status == 401
        assert said.keys() == {"error"}


@pytest.mark.proves("N98-02")
async def test_an_invalid_signature_is_refused() -> None:
    async with serving() as relay:
        body = body_of("supportedmethods")
        tags = [
            ["u", f"http://{relay.at}"],
            ["method", "POST"],
            ["payload", sha256(body).hexdigest()],
        ]
        event = orjson.loads(owner.sign(27235, tags, "", NOW).raw)
        event["sig"] = orjson.loads(alice.sign(27235, tags, "", NOW).raw)["sig"]
        authorization = "Nostr " + b64encode(orjson.dumps(event)).decode()
        assert (await post(relay, body, authorization))[0] == 401


@pytest.mark.proves("N98-08")
async def test_an_authorization_is_good_for_one_call() -> None:
    async with serving() as relay:
        body = body_of("banpubkey", alice.pubkey)
        authorization = signed(relay, body)
        assert (await post(relay, body, authorization))[0] == 200
        await called(relay, "unbanpubkey", alice.pubkey)
        assert (await post(relay, body, authorization))[0] == 401
        assert await called(relay, "listbannedpubkeys") == []


@pytest.mark.proves("N98-08")
async def test_used_authorizations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.server.nip86._MAX_CALLS", 2)
    async with serving() as relay:
        body = body_of("supportedmethods")
        first = signed(relay, body)
        statuses = [(await post(relay, body, first))[0], (await post(relay, body, first))[0]]
        for _ in range(2):
            statuses.append((await post(relay, body, signed(relay, body)))[0])
        assert statuses == [200, 401, 200, 429]


@pytest.mark.proves("N98-08")
async def test_an_authorization_is_good_for_one_call_across_a_restart(tmp_path: Path) -> None:
    path, start = tmp_path / "used_calls.json", NOW
    before, same, ahead = (
        owner.sign(27235, [["u", "x"]], "", at) for at in (NOW - 1, NOW, NOW + 50)
    )
    first = UsedAuthorizations(start - 100, path)
    for call in (before, same, ahead):
        assert not await first.was_used(call, NOW)
    again = UsedAuthorizations(start, path)  # after a kill: nothing was said to the first
    with pytest.raises(Invalid, match="before the start"):
        await again.was_used(before, NOW)
    for call in (same, ahead):
        assert await again.was_used(call, NOW + 1)
    later = owner.sign(27235, [["u", "y"]], "", NOW + 200)
    assert not await again.was_used(later, NOW + 200)
    assert set(orjson.loads(path.read_bytes())) == {later.id}
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.proves("N98-08")
async def test_a_clock_that_was_ahead_at_the_start_refuses_calls_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were refused for as long as it had been ahead."""
    uptime = 0.0
    monkeypatch.setattr(nip86, "monotonic", lambda: uptime)
    used = UsedAuthorizations(NOW + 5 * 3600)
    with pytest.raises(Invalid, match="before the start"):  # may have been used before a crash
        await used.was_used(owner.sign(27235, [["u", "x"]], "", NOW + WINDOW_S), NOW)
    uptime = WINDOW_S + 1
    later = NOW + WINDOW_S + 1
    call = owner.sign(27235, [["u", "x"]], "", later)
    assert [await used.was_used(call, later) for _ in range(2)] == [False, True]
    crashed = UsedAuthorizations(later + 5 * 3600)
    uptime += WINDOW_S + 2
    now = later + WINDOW_S + 2
    assert not await crashed.was_used(owner.sign(27235, [["u", "x"]], "", now), now)


@pytest.mark.parametrize("damaged", [b"", b"{torn", b'{"\xff": 1}', b"[]"])
@pytest.mark.proves("N98-08")
async def test_with_a_damaged_file_no_call_is_taken_that_may_have_been_used(
    tmp_path: Path,
    damaged: bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The relay did not start, and `serve --check` said that it would."""
    monkeypatch.setattr(nip86, "monotonic", lambda: 0.0)
    path = tmp_path / "used_calls.json"
    latest, later = (owner.sign(27235, [["u", "x"]], "", NOW + s) for s in (WINDOW_S, WINDOW_S + 1))
    await UsedAuthorizations(NOW - 100, path).was_used(latest, NOW)
    path.write_bytes(damaged)
    again = UsedAuthorizations(NOW, path)
    assert "used_calls.json cannot be read" in caplog.text
    with pytest.raises(Invalid, match="before the start"):
        await again.was_used(latest, NOW)
    assert not await again.was_used(later, NOW + 1)
    assert await UsedAuthorizations(NOW + 1, path).was_used(later, NOW + 2)


async def test_calls_of_one_key_or_address_leave_room_to_others() -> None:
    """2,047 requests for old versions, dated 55 s ahead, by one member kept all others out."""
    used, number = UsedAuthorizations(0), count()

    async def calls(who: SecretKey, at: str | None, most: int | None = 64) -> int:
        """How many of twenty are accepted."""
        accepted = 0
        for _ in range(20):
            call = who.sign(27235, [["u", f"{next(number)}"]], "", NOW)
            with suppress(Refused):
                accepted += not await used.was_used(call, NOW, most, at)
        return accepted

    assert await calls(alice, "192.0.2.1") == 16
    assert await calls(alice, "192.0.2.2") == 0
    assert await calls(bob, "192.0.2.1") == 0
    assert await calls(bob, "192.0.2.2") == 12
    assert await calls(robot, None) == 9
    assert await calls(stranger, None) == 7
    assert await calls(rover, "192.0.2.3") == 5
    assert await calls(owner, "192.0.2.1", None) == 20
    # Four addresses kept all others out; now nobody who has few waits for those who have many.
    assert await calls(rover, "192.0.2.4") == 0
    few = [await calls(person(f"{n}"), f"192.0.3.{n}") for n in range(10)]
    assert few == [4] * 6 + [3] + [0] * 3
    later = alice.sign(27235, [["u", "x"]], "", NOW + WINDOW_S + 1)
    assert not await used.was_used(later, NOW + WINDOW_S + 1, 64, "192.0.2.1")


async def test_calls_at_the_same_time_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 of made-up keys had an owner's call wait for 500 syncs."""
    written: list[int] = []

    def noting(path: Path, text: bytes) -> None:
        written.append(len(orjson.loads(text)))
        replace_own_file(path, text)

    monkeypatch.setattr("relay.server.nip86.replace_own_file", noting)
    used = UsedAuthorizations(0, tmp_path / "used_calls.json")
    calls = [owner.sign(27235, [["u", f"{n}"]], "", NOW) for n in range(100)]
    assert not any(await asyncio.gather(*[used.was_used(call, NOW) for call in calls]))
    assert len(written) <= 2
    assert written[-1] == 100
    assert await used.was_used(calls[50], NOW)


async def test_after_a_stop_no_authorization_is_refused_for_its_date(tmp_path: Path) -> None:
    """It waited while the relay restarted."""
    path = tmp_path / "used_calls.json"
    used, waiting, other = (owner.sign(27235, [["u", each]], "", NOW - 1) for each in "abc")
    first = UsedAuthorizations(NOW - 100, path)
    assert not await first.was_used(used, NOW)
    first.close()
    second = UsedAuthorizations(NOW, path)
    assert await second.was_used(used, NOW)
    assert not await second.was_used(waiting, NOW)
    assert await second.was_used(waiting, NOW)
    third = UsedAuthorizations(NOW, path)  # the second was killed
    with pytest.raises(Invalid, match="before the start"):
        await third.was_used(other, NOW)
    UsedAuthorizations(NOW, tmp_path / "none.json").close()
    assert not await UsedAuthorizations(NOW, tmp_path / "none.json").was_used(other, NOW)
    assert sorted(os.listdir(tmp_path)) == ["used_calls.json"]


@pytest.mark.proves("N98-09")
async def test_an_authorization_event_is_not_stored_or_sent() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        accepted, text = await visit.publishes(owner.sign(27235, [["u", "x"]], "", NOW))
        assert not accepted
        assert text.startswith("invalid: ")


async def test_names_of_banned_keys_are_read_from_so_many_bytes_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is banned may have written large profiles."""
    monkeypatch.setattr("relay.server.nip86._NAMED_BYTES", 30_000)
    async with serving(policy="") as relay:
        visit = await relay.visit()
        for who in (alice, bob, carol):
            await called(relay, "allowpubkey", who.pubkey)
            profile = who.sign(0, [], '{"name": "me", "about": "%s"}' % ("x" * 20_000), NOW)
            assert await visit.publishes(profile) == (True, "")
            await called(relay, "banpubkey", who.pubkey)
        listed = await called(relay, "listbannedpubkeys")
        assert {each["pubkey"] for each in listed} == {alice.pubkey, bob.pubkey, carol.pubkey}
        assert sum("name" in each for each in listed) == 1


async def test_half_a_surrogate_pair_in_the_name_of_a_banned_key_is_replaced() -> None:
    """JSON has none: one such name, and nobody could list the banned keys."""
    async with serving() as relay:
        visit = await relay.visit()
        assert await visit.publishes(alice.sign(0, [], r'{"name": "al\ud800ice"}', NOW)) == (
            True,
            "",
        )
        await called(relay, "banpubkey", alice.pubkey)
        (listed,) = await called(relay, "listbannedpubkeys")
        assert listed["name"] == "al\ufffdice"


async def test_members_are_listed_before_13534_is_signed() -> None:
    async with serving(policy="") as relay:
        both: list[dict[str, Any]] = [
            {"pubkey": key, "roles": [], "reason": None} for key in (owner.pubkey, robot.pubkey)
        ]
        assert await called(relay, "listmembers") == both
        await called(relay, "allowpubkey", bob.pubkey, "friend")
        await called(relay, "createrole", "cook")
        await called(relay, "assignrole", bob.pubkey, "cook")
        added = {"pubkey": bob.pubkey, "roles": ["cook"], "reason": "friend"}
        assert await called(relay, "listmembers") == [*both, added]
        await called(relay, "banpubkey", bob.pubkey)
        assert await called(relay, "listmembers") == both
        assert (await objected(relay, "listmembers", 1)).startswith("invalid: params: ")


# invites -----------------------------------------------------------------------------------------


@pytest.mark.proves("Z-14")
async def test_an_invite_is_made_listed_used_and_withdrawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    async with serving(policy="") as relay:
        once = await called(relay, "createinvite")
        reusable = await called(relay, "createinvite", 0, 0)
        assert (once["left"], once["until"], once["by"]) == (1, NOW + 7 * 86_400, owner.pubkey)
        assert (reusable["left"], reusable["until"]) == (None, None)
        assert await called(relay, "listinvites") == [once, reusable]
        visit = await relay.visit()
        for who, code in ((alice, once["code"]), (bob, reusable["code"])):
            join = who.sign(28934, [["claim", code]], "", NOW)
            assert await visit.publishes(join) == (True, "info: welcome to this relay")
        assert await called(relay, "listinvites") == [reusable]
        assert await called(relay, "revokeinvite", reusable["id"]) is True
        assert "no invite" in await objected(relay, "revokeinvite", reusable["code"])
        late = carol.sign(28934, [["claim", reusable["code"]]], "", NOW)
        assert await visit.publishes(late) == (False, "restricted: this invite code is not valid")
        assert {entry["pubkey"] for entry in await called(relay, "listallowedpubkeys")} == {
            alice.pubkey,
            bob.pubkey,
        }
        for secret in (once["code"], reusable["code"]):
            assert secret not in caplog.text
            assert secret not in relay.metrics.page().decode()


@pytest.mark.proves("N86-04")
@pytest.mark.parametrize(
    ("method", "params", "fault"),
    [
        ("createinvite", [-1], "uses"),
        ("createinvite", [1, "7"], "days"),
        ("createinvite", [True], "uses"),
        ("createinvite", [1, 1, 1], "params"),
        ("listinvites", [1], "params"),
        ("revokeinvite", [], "params"),
        ("revokeinvite", [7], "params"),
    ],
)
async def test_wrong_parameters_of_invites_are_named(
    method: str, params: list[object], fault: str
) -> None:
    async with serving() as relay:
        assert (await objected(relay, method, *params)).startswith(f"invalid: {fault}: ")


# what is said ------------------------------------------------------------------------------------


@pytest.mark.proves("N86-01")
async def test_an_unknown_method_is_an_error() -> None:
    async with serving() as relay:
        assert "unknown method" in await objected(relay, "makecoffee")


@pytest.mark.proves("N86-04")
async def test_wrong_parameters_change_nothing() -> None:
    async with serving() as relay:
        for params in ([], [alice.pubkey, 7], [alice.npub], [alice.pubkey, "a", "b"]):
            assert (await objected(relay, "banpubkey", *params)).startswith("invalid: ")
        assert await called(relay, "listbannedpubkeys") == []
        assert relay.disk.committed() == 0


@pytest.mark.proves("N86-01")
@pytest.mark.parametrize(
    "body", [b"", b"tea", b"[]", b'{"params":[]}', b'{"method":1}', b'{"method":"x","params":{}}']
)
async def test_a_malformed_body_is_refused(body: bytes) -> None:
    async with serving() as relay:
        status, said = await post(relay, body, signed(relay, body))
        assert status == 400
        assert said.keys() == {"error"}


@pytest.mark.proves("N86-01")
async def test_a_body_of_another_type_or_size_is_refused() -> None:
    async with serving() as relay:
        body = body_of("supportedmethods")
        authorization = signed(relay, body)
        assert (await post(relay, body, authorization, Content_Type="application/json"))[0] == 415
        large = body_of("banpubkey", alice.pubkey, "x" * 70_000)
        assert (await post(relay, large, signed(relay, large)))[0] == 413
        typed = f"{RPC}; charset=utf-8"
        assert (await post(relay, body, authorization, Content_Type=typed))[0] == 200


@pytest.mark.proves("N86-03")
async def test_each_call_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [entry.getMessage() for entry in caplog.records if entry.name.endswith("nip86")]

    async with serving() as relay:
        with caplog.at_level("INFO", "relay.server.nip86"):
            await called(relay, "banpubkey", alice.pubkey, "line\nline")
            await objected(relay, "banpubkey", owner.pubkey)
        banned, refused = lines()
        assert owner.pubkey in banned
        assert "banpubkey" in banned
        assert alice.pubkey in banned
        assert "\n" not in banned
        assert "refused" in refused


@pytest.mark.proves("N11-02", "N86-01")
async def test_browsers_may_call() -> None:
    """A browser asks before, and takes `*` for every header but this one."""
    async with serving() as relay:
        wants = {"Access-Control-Request-Headers": "authorization,content-type"}
        asked = await relay.browser.options(f"http://{relay.at}/", headers=wants)
        assert asked.status == 204
        assert "Authorization" in asked.headers["Access-Control-Allow-Headers"].split(", ")
        assert "POST" in asked.headers["Access-Control-Allow-Methods"]


@pytest.mark.proves("N11-09", "N86-01")
async def test_nip11_announces_nip86() -> None:
    async with serving() as relay:
        document = await relay.get(Accept="application/nostr+json")
        assert 86 in (await document.json(content_type=None))["supported_nips"]


async def test_a_full_disk_refuses_the_call_and_changes_nothing() -> None:
    async with serving() as relay:

        async def full(*_: object) -> int:
            raise StoreFault("disk full")

        relay.disk.append = full  # type: ignore[method-assign,assignment]
        assert (await objected(relay, "banpubkey", alice.pubkey)).startswith("error: ")
        assert await called(relay, "listbannedpubkeys") == []
        assert await (await relay.visit()).asks({}) == [["EOSE", "s"]]


# bans of keys ------------------------------------------------------------------------------------


@pytest.mark.proves("N86-11", "N29-19")
async def test_a_banned_key_writes_nothing_also_as_a_member() -> None:
    async with serving_the_den() as relay:
        visit = await relay.visit()
        chat = [alice.sign(9, [["h", "den"]], text, NOW) for text in ("before", "after")]
        assert await visit.publishes(chat[0]) == (True, "")
        assert await called(relay, "banpubkey", alice.pubkey, "spam") is True
        assert await visit.publishes(chat[1]) == BANNED_WRITE
        assert await visit.publishes(note()) == BANNED_WRITE
        assert await visit.publishes(alice.sign(20001, [], "", NOW)) == BANNED_WRITE
        assert await visit.publishes(note(bob)) == (True, "")
        assert await called(relay, "listbannedpubkeys") == [
            {"pubkey": alice.pubkey, "reason": "spam"}
        ]


@pytest.mark.proves("N86-11")
async def test_a_banned_admin_loses_the_role_and_the_group_stays() -> None:
    async with serving_the_den() as relay:
        await called(relay, "banpubkey", admin.pubkey)
        visit = await relay.visit()
        put = admin.sign(9000, [["h", "den"], ["p", carol.pubkey]], "", NOW)
        assert await visit.publishes(put) == BANNED_WRITE
        assert relay.state.groups.by_id["den"] == DEN


@pytest.mark.proves("N62-11")
async def test_a_banned_key_can_vanish() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        assert await visit.publishes(note()) == (True, "")
        await called(relay, "banpubkey", alice.pubkey)
        request = alice.sign(62, [["relay", "ALL_RELAYS"]], "", NOW)
        assert await visit.publishes(request) == (True, "")
        await called(relay, "unbanpubkey", alice.pubkey)
        assert found(await visit.asks({"authors": [alice.pubkey]})) == []


@pytest.mark.proves("N86-11", "N42-09")
async def test_a_banned_key_cannot_log_in_and_the_others_stay() -> None:
    async with serving_the_den() as relay:
        await called(relay, "banpubkey", alice.pubkey)
        visit = await logged_in(relay, admin)
        assert await visit.logs_in(alice, f"ws://{relay.at}") == (False, BANNED_READ)
        (refused,) = relay.metrics.refusals.after(0)
        assert (refused.rule, refused.kind, refused.author) == ("bans", 22242, alice.pubkey)
        assert await visit.asks({"kinds": [9], "#h": ["den"]}) == [["EOSE", "s"]]


@pytest.mark.proves("N86-11", "N42-16")
async def test_a_ban_closes_open_subscriptions_at_once() -> None:
    async with serving_the_den() as relay:
        reads = await logged_in(relay, bob, alice)
        assert await reads.asks({"kinds": [1]}) == [["EOSE", "s"]]
        await called(relay, "banpubkey", alice.pubkey)
        assert await reads.hears() == ["CLOSED", "s", BANNED_READ]
        assert await (await relay.visit()).publishes(note(bob)) == (True, "")
        # Nothing came in between: the next that is heard is the answer to this.
        for verb in ("REQ", "COUNT"):
            await reads.says(verb, "again", {"kinds": [1]})
            assert await reads.hears() == ["CLOSED", "again", BANNED_READ]
        await reads.says("NEG-OPEN", "again", {"kinds": [1]}, "6100000200")
        assert await reads.hears() == ["NEG-ERR", "again", BANNED_READ]


@pytest.mark.proves("N86-12", "N42-16")
async def test_an_unbanned_key_reads_and_writes_again() -> None:
    async with serving_the_den() as relay:
        visit = await logged_in(relay, alice)
        await called(relay, "banpubkey", alice.pubkey)
        await called(relay, "unbanpubkey", alice.pubkey)
        assert await visit.publishes(note()) == (True, "")
        assert found(await visit.asks({"kinds": [1]})) == [note().id]
        assert await called(relay, "listbannedpubkeys") == []


@pytest.mark.proves("N86-11", "N86-12")
async def test_what_a_banned_key_wrote_is_hidden_until_it_is_unbanned() -> None:
    async with serving() as relay:
        visit, owners = await relay.visit(), await logged_in(relay, owner)
        for event in (note(), note(bob)):
            assert await visit.publishes(event) == (True, "")
        await called(relay, "banpubkey", alice.pubkey)
        for reader in (visit, owners):
            assert found(await reader.asks({"kinds": [1]})) == [note(bob).id]
            assert found(await reader.asks({"ids": [note().id]})) == []
            await reader.says("COUNT", "c", {"kinds": [1]})
            assert await reader.hears() == ["COUNT", "c", {"count": 1}]
        await called(relay, "unbanpubkey", alice.pubkey)
        both = {note().id, note(bob).id}
        assert set(found(await visit.asks({"kinds": [1]}))) == both


@pytest.mark.proves("N86-11")
async def test_what_a_banned_key_wrote_is_deleted_when_the_policy_says_so() -> None:
    async with serving(policy=OPEN + '[bans]\nstored = "delete"\n') as relay:
        visit = await relay.visit()
        assert await visit.publishes(note()) == (True, "")
        await called(relay, "banpubkey", alice.pubkey)
        await called(relay, "unbanpubkey", alice.pubkey)
        assert found(await visit.asks({"kinds": [1]})) == []
        assert await visit.publishes(note()) == (False, "blocked: deleted")
        assert await visit.publishes(note(alice, "something new")) == (True, "")


@pytest.mark.proves("N86-11")
async def test_neither_an_owner_nor_the_relay_can_be_banned() -> None:
    async with serving() as relay:
        for key in (owner, RELAY):
            assert "cannot be banned" in await objected(relay, "banpubkey", key.pubkey)
        assert await called(relay, "listbannedpubkeys") == []


# who is known ------------------------------------------------------------------------------------


@pytest.mark.proves("N86-14", "N86-15", "N86-16")
async def test_an_allowed_key_is_known_and_a_member_of_no_group() -> None:
    async with serving_the_den(policy="") as relay:
        visit = await logged_in(relay, bob)
        assert not (await visit.publishes(note(bob)))[0]
        await called(relay, "allowpubkey", bob.pubkey, "a friend")
        assert await visit.publishes(note(bob)) == (True, "")
        chat = bob.sign(9, [["h", "den"]], "", NOW)
        assert await visit.publishes(chat) == (False, "restricted: not a member")
        assert (await visit.asks({"#h": ["den"]}))[0][0] == "CLOSED"
        assert await called(relay, "listallowedpubkeys") == [
            {"pubkey": bob.pubkey, "reason": "a friend"}
        ]
        await called(relay, "unallowpubkey", bob.pubkey)
        assert not (await visit.publishes(note(bob, "another")))[0]


# events ------------------------------------------------------------------------------------------


@pytest.mark.proves("N86-22", "N86-23", "N86-24")
async def test_a_banned_event_is_deleted_and_refused_until_it_is_allowed() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        assert await visit.publishes(note()) == (True, "")
        await called(relay, "banevent", note().id, "an advert")
        assert found(await visit.asks({"kinds": [1]})) == []
        accepted, text = await visit.publishes(note())
        assert not accepted
        assert text.startswith("blocked: ")
        assert await called(relay, "listbannedevents") == [{"id": note().id, "reason": "an advert"}]
        await called(relay, "allowevent", note().id)
        assert await called(relay, "listbannedevents") == []
        assert found(await visit.asks({"kinds": [1]}, sub="t")) == []
        assert await visit.publishes(note()) == (True, "")


@pytest.mark.proves("N86-23")
async def test_an_event_can_be_banned_before_it_arrives() -> None:
    async with serving() as relay:
        await called(relay, "banevent", note().id)
        assert (await (await relay.visit()).publishes(note()))[1].startswith("blocked: ")


@pytest.mark.proves("N86-23")
async def test_group_records_cannot_be_banned() -> None:
    async with serving() as relay:
        visit = await logged_in(relay, owner)
        made = owner.sign(9007, [["h", "tea"]], "", NOW)
        assert await visit.publishes(made) == (True, "")
        assert "use its moderation events" in await objected(relay, "banevent", made.id)
        assert found(await visit.asks({"ids": [made.id]})) == [made.id]
        assert await called(relay, "listbannedevents") == []


@pytest.mark.proves("N86-21")
async def test_reported_events_wait_for_a_decision() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        ads = [note(alice, f"advert {number}") for number in range(4)]
        for event in ads:
            assert await visit.publishes(event) == (True, "")
        report = bob.sign(
            1984,
            [
                *(["e", event.id, "spam"] for event in ads),
                ["e", "f" * 64, "spam"],
                ["e", "x"],
                ["p", alice.pubkey],
            ],
            "all of them",
            NOW,
        )
        assert await visit.publishes(report) == (True, "")
        assert await called(relay, "listeventsneedingmoderation") == [
            {"id": event.id, "reason": "spam: all of them"} for event in ads
        ]
        await called(relay, "banevent", ads[0].id)
        await called(relay, "allowevent", ads[1].id)
        assert await visit.publishes(alice.sign(5, [["e", ads[2].id]], "", NOW)) == (True, "")
        assert await called(relay, "listeventsneedingmoderation") == [
            {"id": ads[3].id, "reason": "spam: all of them"}
        ]
        assert await called(relay, "listallowedevents") == [{"id": ads[1].id}]


async def test_reports_of_events_that_are_not_stored_keep_out_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One event that named a thousand made-up ids had owners see no other report."""
    monkeypatch.setattr(nip86, "_PAGE", 100)
    async with serving() as relay:
        visit = await relay.visit()
        ads = [note(alice, f"advert {number}") for number in range(3)]
        for event in ads:
            assert await visit.publishes(event) == (True, "")
            assert await visit.publishes(bob.sign(1984, [["e", event.id]], "", NOW)) == (True, "")
        for number in range(10):
            made_up = [["e", sha256(f"{number} {n}".encode()).hexdigest()] for n in range(100)]
            report = stranger.sign(1984, [*made_up, ["e", ads[0].id, "mine"]], "", NOW + 5)
            assert await visit.publishes(report) == (True, "")
        listed = await called(relay, "listeventsneedingmoderation")
        assert {each["id"] for each in listed} == {event.id for event in ads}
        assert all("reason" not in each for each in listed), "of 64 that a report names"


async def test_older_reports_are_examined_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand reports of made-up ids had owners see no older one."""
    monkeypatch.setattr(nip86, "_PAGE", 20)
    read: list[Event] = []

    def parsed(raw: bytes) -> Event:
        read.append(event_from_raw(raw))
        return read[-1]

    monkeypatch.setattr(nip86, "event_from_raw", parsed)
    async with serving() as relay:
        visit = await relay.visit()
        ads = [note(alice, f"advert {number}") for number in range(30)]
        for event in ads:
            assert await visit.publishes(event) == (True, "")
            assert await visit.publishes(bob.sign(1984, [["e", event.id]], "", NOW)) == (True, "")
        for number in range(1000):
            made_up = sha256(f"{number}".encode()).hexdigest()
            report = stranger.sign(1984, [["e", made_up]], "", NOW + 5)
            assert await visit.publishes(report) == (True, "")

        async def listed() -> set[str]:
            read.clear()
            answered = await called(relay, "listeventsneedingmoderation")
            assert len({each["id"] for each in answered}) == len(answered)
            return {each["id"] for each in answered}

        def reports_read() -> int:
            return len([event for event in read if event.kind == 1984])

        assert await listed() == {event.id for event in ads}
        assert reports_read() == 1030
        monkeypatch.setattr(nip86, "_EXAMINED", 1010)
        assert len(await listed()) == 10
        assert reports_read() == 1010
        monkeypatch.setattr(nip86, "_EXAMINED", 20_000)
        monkeypatch.setattr(nip86, "_EXAMINED_BYTES", sum(len(each.raw) for each in read[:500]))
        assert await listed() == set()
        assert 500 <= reports_read() <= 502
        monkeypatch.setattr(nip86, "_EXAMINED_BYTES", 64 << 20)
        monkeypatch.setattr(nip86, "_LISTED", 25)
        assert len(await listed()) == 25


async def test_others_have_turns_while_reports_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of many tags takes 10 ms to parse, and anybody may send reports."""
    monkeypatch.setattr(turns, "SLICE_S", 0.0)
    turns_of_others = 0
    between: list[int] = []

    async def other() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    def parsed(raw: bytes) -> Event:
        between.append(turns_of_others)
        return event_from_raw(raw)

    monkeypatch.setattr(nip86, "event_from_raw", parsed)
    async with serving() as relay:
        visit = await relay.visit()
        for number in range(5):
            report = bob.sign(1984, [["e", "f" * 64, "spam"]], str(number), NOW)
            assert await visit.publishes(report) == (True, "")
        waiting = asyncio.create_task(other())
        assert await called(relay, "listeventsneedingmoderation") == []
        waiting.cancel()
    assert len({*between}) == len(between) == 5


# kinds -------------------------------------------------------------------------------------------


@pytest.mark.proves("N86-26")
async def test_a_disallowed_kind_is_refused() -> None:
    async with serving() as relay:
        visit = await relay.visit()
        await called(relay, "disallowkind", 1)
        accepted, text = await visit.publishes(note())
        assert not accepted
        assert text.startswith("blocked: ")
        assert 1 not in await called(relay, "listallowedkinds")
        assert await called(relay, "listdisallowedkinds") == [1]
        unsigned = orjson.loads(note().raw) | {"sig": "0" * 128}
        await visit.says("EVENT", unsigned)  # no work is done for it
        assert (await visit.hears())[3].startswith("blocked: ")
        await called(relay, "allowkind", 1)
        assert await visit.publishes(note()) == (True, "")
        assert 1 in await called(relay, "listallowedkinds")
        assert "kind: " in await objected(relay, "disallowkind", 9000)


# texts -------------------------------------------------------------------------------------------


@pytest.mark.proves("N86-25")
async def test_changed_texts_are_in_nip11_at_once() -> None:
    async with serving('[relay]\nname = "Tea"\n') as relay:

        async def document() -> dict[str, Any]:
            got = await relay.get(Accept="application/nostr+json")
            found: dict[str, Any] = orjson.loads(await got.read())
            return found

        assert await called(relay, "changerelayname", "Coffee") is True
        assert await called(relay, "changerelaydescription", "Black <b>only</b>") is True
        assert await called(relay, "changerelayicon", "https://tea.example/cup.png") is True
        told = await document()
        assert told["name"] == "Coffee"
        assert told["description"] == "Black <b>only</b>"
        assert told["icon"] == "https://tea.example/cup.png"
        page = await (await relay.get(Accept="text/html")).text()
        assert "Coffee" in page
        assert "Black &lt;b&gt;only&lt;/b&gt;" in page
        await called(relay, "changerelayname", "")
        assert (await document())["name"] == "Tea"
        assert "name: " in await objected(relay, "changerelayname", "x" * 31)


# addresses ---------------------------------------------------------------------------------------

PROXY = '[server]\ntrusted_proxies = ["127.0.0.1/32"]\n'


@pytest.mark.proves("N86-27")
async def test_a_blocked_address_is_disconnected_and_refused() -> None:
    async with serving(PROXY) as relay:
        crawler = await relay.visit(X_Forwarded_For="203.0.113.9")
        neighbour = await relay.visit(X_Forwarded_For="203.0.114.9")
        await called(relay, "blockip", "203.0.113.0/24", "a crawler")
        assert (await crawler.hears_all())[-1] == ["closed", 1008]
        for address in ("203.0.113.9", "203.0.113.77", "::ffff:203.0.113.77"):
            refused = await relay.get(Upgrade="websocket", X_Forwarded_For=address)
            assert refused.status == 403
        assert await neighbour.asks({}) == [["EOSE", "s"]]
        assert await called(relay, "listblockedips") == [
            {"ip": "203.0.113.0/24", "reason": "a crawler"}
        ]
        await called(relay, "unblockip", "203.0.113.0/24")
        assert await (await relay.visit(X_Forwarded_For="203.0.113.9")).asks({}) == [["EOSE", "s"]]


@pytest.mark.proves("N86-27")
async def test_a_caller_cannot_block_its_own_address() -> None:
    async with serving('[relay]\nurl = "ws://relay.example"\n' + PROXY) as relay:
        body = body_of("blockip", "203.0.113.0/24")
        call = signed(relay, body, u="http://relay.example/")
        status, said = await post(relay, body, call, X_Forwarded_For="203.0.113.9")
        assert (status, said.keys()) == (200, {"error"})
        assert not relay.state.blocked.has(ip_address("203.0.113.9"))
    async with serving(PROXY) as relay:
        assert "ip: " in await objected(relay, "blockip", "127.0.0.1")


@pytest.mark.proves("N86-27")
@pytest.mark.parametrize(
    ("peer", "forwarded", "may"),
    [
        ("203.0.113.9", None, False),
        ("203.0.113.9", "198.51.100.1", False),  # a header hides nobody
        ("198.51.100.1", "203.0.113.9", True),  # … and accuses nobody
        ("10.0.0.1", "203.0.113.9", False),
        ("10.0.0.1", "198.51.100.1", True),
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", True),  # before the last is hearsay
        ("10.0.0.1", "no address", True),
        ("::ffff:203.0.113.9", None, False),
        (None, None, True),
    ],
)
def test_a_forwarding_header_does_not_hide_a_blocked_peer(
    peer: str | None, forwarded: str | None, *, may: bool
) -> None:
    said = [] if forwarded is None else [("X-Forwarded-For", forwarded)]
    request = request_from(peer, *said)
    blocked, proxies = blocklist_of(["203.0.113.0/24"]), [ip_network("10.0.0.0/8")]
    assert may_connect(request, proxies, blocked) is may
    assert may_connect(request, proxies, Blocklist())


@pytest.mark.proves("N86-27")
def test_blocking_a_trusted_proxy_does_not_block_its_clients() -> None:
    proxies = [ip_network("10.0.0.0/8")]
    request = request_from("10.0.0.1", ("X-Forwarded-For", "198.51.100.1"))
    assert may_connect(request, proxies, blocklist_of(["10.0.0.0/8"]))

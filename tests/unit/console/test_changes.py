"""Changes by a form, deletion, invites of the relay: what a page gives to sign has its effect."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import orjson
import pytest

from tests.cast import alice, bob, carol, owner, robot
from tests.harness.folders import loaded
from tests.unit.console.browsing import PUBLIC, site
from tests.unit.server.test_app import NOW, OPEN

if TYPE_CHECKING:
    from pathlib import Path

    from relay.nostr.event import Event
    from relay.nostr.keys import SecretKey
    from tests.unit.console.browsing import Browser

GLOBAL = "snowclaw:config:global"
TEA = "snowclaw:config:group:tea"


def signed_by(who: SecretKey, given: dict[str, Any], at: int = NOW) -> Event:
    """As the script of the page has it signed."""
    moment = max(at, given.get("after", 0) + 1)
    return who.sign(given["kind"], given["tags"], given.get("content", ""), moment)


async def shown(browser: Browser, page: str, **query: str) -> Any:
    return await browser.json(f"/console/{page}.json?{urlencode(query)}")


async def test_settings_of_agents_are_told_with_their_source_and_changed_by_a_signature() -> None:
    async with site() as here:
        both = [["respond_mode", "mention"], ["context_history", "7"]]
        stored = '{"respond_mode":"mention","context_history":7,"own":1}'
        await here.publish(
            owner.sign(30078, [["d", GLOBAL], ["respond_mode", "all"]], "", NOW),
            owner.sign(30078, [["d", TEA], *both], stored, NOW),
        )
        browser = await here.browser_of(owner)
        page = await shown(browser, "config", group="tea")
        rows = {(row["scope"], row["name"]): row["value"] for row in page["table"]["rows"]}
        assert rows == {
            ("global", "respond_mode"): "all",
            ("group:tea", "respond_mode"): "mention",
            ("group:tea", "context_history"): "7",
        }
        assert [(each["value"], each["from"]) for each in page["effective"]] == [
            ("mention", "group"),
            ("7", "group"),
        ]
        asked = {"scope": "group:tea", "respond_mode": "unset", "context_history": "30"}
        form = (await shown(browser, "config", **asked))["form"]
        assert form["changes"] == [
            {"name": "respond_mode", "before": "mention", "after": "not set"},
            {"name": "context_history", "before": "7", "after": "30"},
        ]
        assert form["command"] == (
            "rookery config set group:tea context_history=30"
            " && rookery config unset group:tea respond_mode"
        )
        await here.publish(signed_by(owner, form["event"]))
        page = await shown(browser, "config", group="tea")
        assert [(each["value"], each["from"]) for each in page["effective"]] == [
            ("all", "global"),
            ("30", "group"),
        ]
        again = (await shown(browser, "config", scope="group:tea", context_history="30"))["form"]
        assert (again["event"], again["changes"]) == (None, [])
        (record,) = (await shown(browser, "events", filter=f'{{"kinds":[30078],"#d":["{TEA}"]}}'))[
            "table"
        ]["rows"]
        assert '"own":1' in record["content"]


async def test_a_wrong_setting_is_named_and_not_offered_for_signing() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        for scope, number in (("group:tea", "many"), ("kitchen", "3"), ("npub1qq", "3")):
            form = (await shown(browser, "config", scope=scope, context_history=number))["form"]
            assert form["error"]
            assert form["event"] is None


async def test_only_owners_get_the_form_of_settings() -> None:
    async with site() as here:
        await here.publish(owner.sign(30078, [["d", GLOBAL], ["respond_mode", "all"]], "", NOW))
        seen = {}
        for who in (owner, robot, alice):
            page = await shown(await here.browser_of(who), "config")
            seen[who.pubkey] = (len(page["table"]["rows"]), page["form"] is not None)
        assert seen == {owner.pubkey: (1, True), robot.pubkey: (1, False), alice.pubkey: (0, False)}


async def test_an_edit_of_a_group_keeps_what_it_does_not_name() -> None:
    async with site() as here:
        await here.make_group("tea", "private", members=[alice])
        tags = [["h", "tea"], ["name", "Tea"], ["about", "green"], ["private"], ["x-own", "1"]]
        await here.publish(owner.sign(9002, tags, "", NOW + 1))
        browser = await here.browser_of(owner)
        asked = {"id": "tea", "name": "Tea room", "private": "no"}
        form = (await shown(browser, "edit-group", **asked))["form"]
        assert form["changes"] == [
            {"name": "name", "before": "Tea", "after": "Tea room"},
            {"name": "private", "before": "yes", "after": "no"},
        ]
        assert form["command"] == "rookery group edit tea --name 'Tea room' --public"
        await here.publish(signed_by(owner, form["event"], NOW + 2))
        group = (await shown(browser, "group", id="tea"))["group"]
        assert (group["name"], group["about"]) == ("Tea room", "green")
        assert "private" not in group["flags"]
        listed = await shown(browser, "events", filter='{"kinds":[39000]}')
        event = await shown(browser, "event", id=listed["table"]["rows"][0]["id"])
        assert ["x-own", "1"] in event["tags"]


async def test_a_flag_that_no_edit_can_change_is_no_choice() -> None:
    """An edit without `private` had no effect here, and one with `hidden` was refused."""
    policy = OPEN + '[groups]\nnew = []\nalways = ["private"]\n'
    async with site(policy=policy) as here:
        await here.make_group("tea", members=[alice])
        await here.publish(owner.sign(9007, [["h", "pot"], ["parent", "tea"]], "", NOW))
        browser = await here.browser_of(owner)
        for group in ("tea", "pot"):
            asked = {"id": group, "name": "Tea room", "private": "no", "hidden": "yes"}
            form = (await shown(browser, "edit-group", **asked))["form"]
            told = {each["name"]: each["why_fixed"] for each in form["fields"]}
            assert [name for name, why in told.items() if why] == ["private", "hidden"]
            page = await browser.text(f"/console/edit-group?{urlencode(asked)}")
            assert "yes: required by the policies of this relay" in page
            assert "no: the same for a group and its subgroups" in page
            assert '<select name="private">' not in page
            assert '<select name="closed">' in page
            assert [each["name"] for each in form["changes"]] == ["name"]
            await here.publish(signed_by(owner, form["event"], NOW + 1))


async def test_a_flag_that_any_edit_adds_is_told_as_a_change(tmp_path: Path) -> None:
    """The policies required it later than the group was made."""
    required = f'[actors]\nowners = ["{owner.npub}"]\n[groups]\nalways = ["restricted"]\n'
    async with site() as here:
        await here.make_group("tea", members=[alice])
        here.relay.state.enforce(await asyncio.to_thread(loaded, tmp_path, a=required))
        browser = await here.browser_of(owner)
        form = (await shown(browser, "edit-group", id="tea"))["form"]
        assert form["changes"] == []
        form = (await shown(browser, "edit-group", id="tea", name="Tea room"))["form"]
        assert {"name": "restricted", "before": "no", "after": "yes"} in form["changes"]


async def test_a_moderator_is_offered_to_delete_what_a_moderator_may() -> None:
    async with site() as here:
        await here.make_group("tea", members=[alice])
        put = owner.sign(9000, [["h", "tea"], ["p", bob.pubkey, "moderator"]], "", NOW)
        said = [who.sign(9, [["h", "tea"]], "a message", NOW) for who in (owner, alice, bob)]
        invites = [
            who.sign(9009, [["h", "tea"], ["code", f"code-of-{name}"]], "", NOW)
            for name, who in (("owner", owner), ("bob", bob))
        ]
        await here.publish(put, *said, *invites)
        browser = await here.browser_of(bob)
        page = await shown(browser, "group", id="tea")
        offered = {each["id"]: each["may_delete"] for each in page["messages"]}
        offered |= {each["id"]: each["may_revoke"] for each in page["invites"]}
        assert offered == {each.id: each.pubkey != owner.pubkey for each in (*said, *invites)}
        text = await browser.text("/console/group?id=tea")
        assert text.count(">Delete</button>") == 2
        assert text.count(">Revoke</button>") == 1
        removals = (await shown(browser, "event", id=said[0].id))["removals"]
        assert removals == []
        visit = await here.relay.visit()
        for event_id, is_offered in offered.items():
            deletion = bob.sign(9005, [["h", "tea"], ["e", event_id]], "", NOW)
            accepted, _ = await visit.publishes(deletion)
            assert accepted is is_offered


async def test_owners_are_offered_only_bans_that_they_may_set_and_lift(tmp_path: Path) -> None:
    by_file = f'[actors]\nowners = ["{owner.npub}"]\n[bans]\nfiles = ["banned.txt"]\n'
    (tmp_path / "banned.txt").write_text(bob.npub)
    async with site() as here:
        here.relay.state.enforce(await asyncio.to_thread(loaded, tmp_path, a=by_file))
        await here.call("banpubkey", carol.pubkey)
        browser = await here.browser_of(owner)
        buttons = {}
        for key in (alice.pubkey, bob.pubkey, carol.pubkey, owner.pubkey):
            text = await browser.text(f"/console/person?key={key}")
            buttons[key] = ("Ban from the relay" in text, "Lift the ban" in text)
        assert buttons == {
            alice.pubkey: (True, False),
            bob.pubkey: (False, False),
            carol.pubkey: (False, True),
            owner.pubkey: (False, False),
        }
        assert "Banned by a policy file" in await browser.text(f"/console/person?key={bob.pubkey}")


@pytest.mark.parametrize(
    "limit",
    [
        'rate = { per = "address", burst = 2, per_minute = 1 }',
        'rate = { per = "connection", burst = 2, per_minute = 1 }',
        'quota = { per = "address", events = 2 }',
    ],
)
async def test_what_a_page_posts_counts_for_the_address_of_its_browser(limit: str) -> None:
    """Sessions stored events without any pace that counts who sends them."""
    rule = f'[[rule]]\nname = "paced"\nmatch = {{ kinds = [1] }}\n{limit}\n'
    async with site(policy=PUBLIC + rule) as here:
        answers = list[bool]()
        for who in (alice, bob, alice):
            browser = await here.browser_of(who)
            event = who.sign(1, [], f"note {len(answers)}", NOW + 5).raw.decode()
            posted = {"csrf": await browser.csrf(), "event": event}
            answers.append((await (await browser.post("/console/publish", posted)).json())["ok"])
        assert answers == [True, True, False]


async def test_a_pin_of_a_page_that_stayed_open_undoes_no_other_pin() -> None:
    async with site() as here:
        await here.make_group("tea", members=[alice])
        one, two = (owner.sign(9, [["h", "tea"]], text, NOW) for text in ("one", "two"))
        await here.publish(one, two)
        browser = await here.browser_of(owner)
        csrf = await browser.csrf()

        async def pinned_from(page: str, event: Event) -> Any:
            listed = map(
                orjson.loads, map(unescape, re.findall('data-kind="9010" data-tags="([^"]*)', page))
            )
            (tags,) = [tags for tags in listed if ["e", event.id] in tags]
            posted = {"csrf": csrf, "event": owner.sign(9010, tags, "", NOW + 5).raw.decode()}
            return await (await browser.post("/console/publish", posted)).json()

        open_page = await browser.text("/console/group?id=tea")
        assert (await pinned_from(open_page, one))["ok"]
        assert await pinned_from(open_page, two) == {
            "ok": False,
            "message": "duplicate: the group was changed meanwhile, look at it again",
        }
        assert (await pinned_from(await browser.text("/console/group?id=tea"), two))["ok"]
        pins = (await shown(browser, "group", id="tea"))["pins"]
        assert pins == [["e", one.id], ["e", two.id]]


async def test_a_form_that_was_made_before_another_change_does_not_undo_that() -> None:
    """The page stayed open while somebody else made the group private, and an agent silent."""
    async with site() as here:
        await here.make_group("tea", members=[alice])
        browser = await here.browser_of(owner)
        csrf = await browser.csrf()

        async def sent(form: dict[str, Any]) -> Any:
            event = signed_by(owner, form["event"], NOW + 5).raw.decode()
            posted = {"csrf": csrf, "event": event}
            return await (await browser.post("/console/publish", posted)).json()

        asked = {"id": "tea", "name": "Tea room"}
        open_page = (await shown(browser, "edit-group", **asked))["form"]
        private = [["h", "tea"], ["name", "Tea"], ["private"]]
        await here.publish(owner.sign(9002, private, "", NOW + 1))
        assert await sent(open_page) == {
            "ok": False,
            "message": "duplicate: the group was changed meanwhile, look at it again",
        }
        assert "private" in (await shown(browser, "group", id="tea"))["group"]["flags"]
        again = (await shown(browser, "edit-group", **asked))["form"]
        assert (await sent(again))["ok"]
        assert "private" in (await shown(browser, "group", id="tea"))["group"]["flags"]

        asked = {"scope": "group:tea", "context_history": "30"}
        open_page = (await shown(browser, "config", **asked))["form"]
        silent = [["d", TEA], ["h", "tea"], ["respond_mode", "none"]]
        await here.publish(owner.sign(30078, silent, "", NOW + 1))
        assert await sent(open_page) == {
            "ok": False,
            "message": "duplicate: another version is stored, look at it again",
        }
        again = (await shown(browser, "config", **asked))["form"]
        assert (await sent(again))["ok"]
        page = await shown(browser, "config", group="tea")
        assert [each["value"] for each in page["effective"]] == ["none", "30"]


async def test_who_is_no_admin_edits_no_group_and_does_not_learn_of_a_hidden_one() -> None:
    async with site() as here:
        await here.make_group("tea", members=[alice])
        await here.make_group("cellar", "hidden", "private", members=[alice])
        for who, group, status in (
            (alice, "tea", 403),
            (alice, "cellar", 403),
            (bob, "tea", 403),
            (bob, "cellar", 404),
            (bob, "nowhere", 404),
        ):
            browser = await here.browser_of(who)
            assert (await browser.get(f"/console/edit-group?id={group}")).status == status


async def test_an_owner_changes_what_the_relay_is_called() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        form = (await shown(browser, "edit-relay", name="The nest"))["form"]
        (call,) = form["calls"]
        assert (call["method"], call["params"]) == ("changerelayname", ["The nest"])
        await here.call(call["method"], *call["params"])
        assert "The nest" in await here.browser().text("/")
        page = await shown(browser, "edit-relay", name="The nest")
        assert (page["form"]["calls"], page["set_here"]) == ([], ["name"])
        assert (await (await here.browser_of(alice)).get("/console/edit-relay")).status == 403


async def test_an_event_is_deleted_by_who_may_with_what_its_page_gives_to_sign() -> None:
    async with site() as here:
        await here.make_group("tea", members=[alice, bob])
        said = [alice.sign(9, [["h", "tea"]], text, NOW) for text in ("one", "two", "three")]
        own = alice.sign(30023, [["d", "page"]], "text", NOW)
        await here.publish(*said, own)
        gives: dict[tuple[str, str], list[Any]] = {}
        for who in (alice, bob, owner):
            browser = await here.browser_of(who)
            for event in (*said, own):
                page = await shown(browser, "event", id=event.id)
                gives[who.pubkey, event.id] = page["removals"]
        assert gives[bob.pubkey, said[0].id] == []
        (ban,) = gives[owner.pubkey, own.id]
        assert (ban["method"], ban["command"]) == ("banevent", "")
        (by_author,) = gives[alice.pubkey, said[0].id]
        by_admin, _ = gives[owner.pubkey, said[1].id]
        assert by_author["command"] == f"rookery forget {said[0].id}"
        assert by_admin["command"] == f"rookery forget {said[1].id} --group tea"
        (of_page,) = gives[alice.pubkey, own.id]
        assert of_page["command"] == f"rookery forget {own.id} 30023:{alice.pubkey}:page"
        await here.publish(
            signed_by(alice, by_author), signed_by(owner, by_admin), signed_by(alice, of_page)
        )
        browser = await here.browser_of(owner)
        for event, status in zip((*said, own), (404, 404, 200, 404), strict=True):
            assert (await browser.get(f"/console/event?id={event.id}")).status == status


async def test_an_owner_asks_the_agent_to_forget_its_record() -> None:
    async with site() as here:
        d = f"snowclaw:memory:npub:{alice.pubkey}"
        record = robot.sign(30078, [["d", d]], '{"note":"tea"}', NOW)
        await here.publish(record)
        browser = await here.browser_of(owner)
        listed = await shown(browser, "memory", about=alice.npub)
        assert [row["id"] for row in listed["table"]["rows"]] == [record.id]
        assert (await shown(browser, "memory", about=bob.npub))["table"]["rows"] == []
        asks, _ = (await shown(browser, "event", id=record.id))["removals"]
        address = ["a", f"30078:{robot.pubkey}:{d}"]
        assert asks["tags"] == [["e", record.id], address, ["k", "30078"], ["p", robot.pubkey]]
        assert asks["command"] == f"rookery memory forget {alice.pubkey}"
        (own,) = (await shown(await here.browser_of(robot), "event", id=record.id))["removals"]
        assert own["label"] == "Delete for ever"


async def test_only_ones_own_page_offers_to_vanish_from_this_relay() -> None:
    async with site() as here:
        browser = await here.browser_of(alice)
        page = await browser.text(f"/console/person?key={alice.pubkey}")
        assert f"[[&#34;relay&#34;, &#34;ws://{here.relay.at}" in page
        other = await browser.text(f"/console/person?key={bob.pubkey}")
        assert "Vanish" not in other


INVITING = '[members]\njoin = "claim"\ninvite = ["owner", "known"]\n'


async def test_owners_see_who_let_whom_into_the_relay() -> None:
    async with site(policy=PUBLIC + INVITING) as here:
        await here.call("allowpubkey", alice.pubkey)
        inviting = alice
        for guest in (bob, carol):
            page = await shown(await here.browser_of(inviting), "people", invite="1")
            assert page["may_invite"]
            visit = await here.relay.visit()
            assert (await visit.logs_in(guest, f"ws://{here.relay.at}"))[0]
            joins = guest.sign(28934, [["-"], ["claim", page["invite"]]], "", NOW)
            assert await visit.publishes(joins) == (True, "info: welcome to this relay")
            inviting = guest
        page = await shown(await here.browser_of(owner), "people")
        (root,) = [node for node in page["tree"] if node["children"]]
        assert (root["pubkey"], root["by"]) == (bob.pubkey, alice.pubkey)
        assert [node["pubkey"] for node in root["children"]] == [carol.pubkey]
        assert {row["pubkey"] for row in page["table"]["rows"]} >= {bob.pubkey, carol.pubkey}
        for who in (alice, robot):
            page = await shown(await here.browser_of(who), "people")
            assert (page["tree"], page["owner"]) == ([], None)


async def test_who_may_not_invite_gets_no_code() -> None:
    async with site() as here:
        for browser in (here.browser(), await here.browser_of(alice)):
            page = await shown(browser, "people", invite="1")
            assert (page["may_invite"], page["invite"]) == (False, "")
            assert quote("invite=1") not in await browser.text("/console/people")

"""Editing a policy file in a page: who may, and with what signature."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from tests.cast import alice, owner
from tests.unit.console.browsing import header, site
from tests.unit.console.test_pages import check_harmless
from tests.unit.server.test_app import NOW

if TYPE_CHECKING:
    import pytest

    from relay.nostr.keys import SecretKey
    from tests.unit.console.browsing import Browser

FORM = "application/x-www-form-urlencoded"


async def sends(
    browser: Browser, body: str, who: SecretKey | None, signed: str | None = None
) -> int:
    """`signed`: the body that the signature names."""
    headers = {"Content_Type": FORM}
    if who is not None:
        hashed = sha256((body if signed is None else signed).encode()).hexdigest()
        tags = [["u", f"http://{browser.relay.at}/console/policy-save"], ["method", "POST"]]
        event = who.sign(27235, [*tags, ["payload", hashed], ["n", body]], "", NOW)
        headers["Authorization"] = header(event)
    return (await browser.post("/console/policy-save", body, **headers)).status


async def test_a_policy_is_saved_by_a_signature_of_its_owner_over_all_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        named = {"csrf": await browser.csrf(), "name": "50-own.toml", "before": "x"}
        body = urlencode({**named, "text": "# new\n"})
        other = urlencode({**named, "text": "# other\n"})
        assert await sends(browser, body, None) == 401
        assert await sends(browser, body, owner, signed=other) == 401
        assert await sends(browser, body, alice) == 403
        assert here.owner_view.saved == []
        with caplog.at_level(logging.INFO):
            assert await sends(browser, body, owner) == 200
        assert here.owner_view.saved == [("50-own.toml", "# new\n", "x", owner.pubkey)]
        assert f"{owner.pubkey} saved the policy file 50-own.toml" in caplog.text
        # Once.
        assert await sends(browser, body, owner) == 401
        assert len(here.owner_view.saved) == 1


async def test_nobody_else_checks_or_saves_one() -> None:
    async with site() as here:
        owners = await here.browser_of(owner)
        stolen = {"csrf": await owners.csrf(), "name": "50-own.toml", "text": "#", "before": ""}
        alices = await here.browser_of(alice)
        own = {**stolen, "csrf": await alices.csrf()}
        for browser, form, who in (
            (here.browser(), stolen, owner),
            (alices, own, alice),
            (alices, own, owner),
            (owners, own, owner),
        ):
            assert await sends(browser, urlencode(form), who) in (401, 403)
            assert (await browser.post("/console/policy-check", form)).status in (401, 403)
        elsewhere = await owners.post(
            "/console/policy-check", stolen, Origin="https://evil.example"
        )
        assert elsewhere.status == 403
        assert here.owner_view.saved == []


async def test_findings_are_shown_before_it_can_be_saved() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        here.owner_view.text = payload = '"><script>zqx</script></textarea>'
        form = {"csrf": await browser.csrf(), "name": payload, "text": payload}
        for faults in ([], [payload]):
            here.owner_view.faults = faults
            page = await (await browser.post("/console/policy-check", form)).text()
            check_harmless(page)
            assert page.count("zqx") >= 5
            assert ('class="save"' in page) is (not faults)
        file = await browser.text("/console/policy-file?name=" + here.owner_view.text)
        check_harmless(file)


async def test_policies_of_the_database_are_not_offered_for_editing() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        for may_edit in (True, False):
            here.owner_view.may_edit_policies = may_edit
            listed = await browser.text("/console/policies")
            file = await browser.text("/console/policy-file?name=a+text")
            assert ("/console/policy-check" in listed) is may_edit
            assert ("/console/policy-check" in file) is may_edit
            assert ("rookery policy push" in listed) is not may_edit

"""Verifying from a page: who may start it, and what it shows."""

from __future__ import annotations

from tests.cast import alice, owner
from tests.unit.console.browsing import site
from tests.unit.console.test_pages import check_harmless
from tests.unit.server.test_app import NOW


async def test_an_owner_starts_one_at_a_time() -> None:
    async with site() as here:
        owners, alices = await here.browser_of(owner), await here.browser_of(alice)
        of_owner, of_alice = {"csrf": await owners.csrf()}, {"csrf": await alices.csrf()}
        for browser, form in ((here.browser(), of_owner), (alices, of_alice), (owners, of_alice)):
            assert (await browser.post("/console/verify", form)).status in (401, 403)
        assert here.owner_view.verified == {}
        assert "Verify now" in await owners.text("/console/verify")
        response = await owners.post("/console/verify", of_owner)
        assert (response.status, response.headers["Location"]) == (303, "/console/verify")
        page = await owners.text("/console/verify")
        assert "1 of 3 rows" in page
        assert "Verify now" not in page
        assert (await owners.post("/console/verify", of_owner)).status == 429


async def test_of_a_relay_on_postgresql_nothing_is_offered_that_is_for_files() -> None:
    async with site() as here:
        browser = await here.browser_of(owner)
        for is_in_database in (False, True):
            here.owner_view.is_in_database = is_in_database
            health, verify, home = [
                await browser.text(path) for path in ("/console/health", "/console/verify", "/")
            ]
            assert ("rookery backup" in health) is not is_in_database
            assert ("pg_dump" in health) is is_in_database
            assert ("/console/verify" in health) is not is_in_database
            assert ("Verify now" in verify) is not is_in_database
            assert ("pg_amcheck" in verify) is is_in_database
            assert ("Last backup" in home) is not is_in_database


async def test_findings_are_shown_and_never_repaired() -> None:
    async with site() as here:
        text = "<script>zqx</script>"
        here.owner_view.verified = {
            "began_at": NOW,
            "ended_at": NOW,
            "report": {
                "events": 7,
                "counts": {"slot": 120},
                "findings": [{"check": "slot", "text": text}] * 100,
                "search_checked": True,
            },
        }
        browser = await here.browser_of(owner)
        page = await browser.text("/console/verify")
        check_harmless(page)
        assert "slot 120" in page
        assert page.count("zqx") == 50  # a page of the table
        assert page.count("--repair") == 2  # a command to copy, no button
        assert (await browser.json("/console/verify.json"))["table"]["total"] == 100
        here.owner_view.verified |= {"report": None, "failure": text}
        check_harmless(await browser.text("/console/verify"))

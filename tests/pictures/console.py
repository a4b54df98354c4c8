"""Pictures of the web console: `python -m tests.pictures.console [FOLDER]`, with Chromium.

Of a folder made by `rookery demo`: each page wide and on a phone, light and dark, and all pages on
one sheet for each, as in docs/console.md.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from relay.memory.anamnesis.checks import content_hash
from tests.harness.relay_program import Rookery, outputs

if TYPE_CHECKING:
    from playwright.async_api import Browser

CLAIM: Final = content_hash("Batches of 500 lines: 41 s. Larger ones gain nothing.")
DRAFT: Final = '{"kind":9,"tags":[["h","workshop"]]}'
PAGES: Final = {
    "home": "/",
    "groups": "/console/groups",
    "group": "/console/group?id=workshop",
    "people": "/console/people",
    "memory": "/console/memory",
    "aman": "/console/aman?hk=group:workshop",
    "session": "/console/session?id=7d1f6a52-demo-handbook",
    "nmem": "/console/nmem?session=5f0c2d9e-demo-deploy",
    "claim": f"/console/claim?hash={CLAIM}",
    "config": "/console/config?group=workshop&scope=group:workshop&respond_mode=all",
    "edit-group": "/console/edit-group?id=workshop&name=The+workshop",
    "edit-relay": "/console/edit-relay",
    "events": "/console/events",
    "policies": "/console/policies",
    "policy-file": "/console/policy-file?name=20-workshop.toml",
    "explain": f"/console/explain?event={DRAFT}",
    "live": "/console/live",
    "health": "/console/health",
    "verify": "/console/verify",
}
LINKED: Final = {
    "context": ("/console/context", "main ul.plain a >> nth=0"),
    "event": ("/console/group?id=workshop", ".chat a.dim >> nth=-1"),
    "person": ("/console/people", "main a.person >> nth=0"),
}
"""Pages whose paths are in links: where, and which."""
SIZES: Final = {"wide": (1280, 800), "phone": (390, 844)}


async def write(folder: Path) -> None:
    from playwright.async_api import async_playwright

    with TemporaryDirectory() as made:
        data = Path(made) / "demo"
        code, _, err = await outputs("demo", str(data))
        assert code == 0, err
        async with Rookery(data) as rookery, async_playwright() as playwright:
            await rookery.start()
            browser = await playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for scheme in ("light", "dark"):
                for size in SIZES:
                    await _pictures(folder, rookery, browser, scheme, size)
                await _sheet(folder, browser, scheme)
            await browser.close()


async def _pictures(
    folder: Path, rookery: Rookery, browser: Browser, scheme: str, size: str
) -> None:
    by = ("--relay", rookery.url, "--key-file", str(rookery.folder / "keys" / "ada.nsec"))
    code, out, err = await outputs("console", "--json", *by)
    assert code == 0, err
    width, height = SIZES[size]
    page = await browser.new_page(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    await page.goto(json.loads(out)["link"])
    await page.click("main button")
    base = rookery.url.replace("ws", "http", 1)
    paths = {**PAGES}
    for name, (path, link) in LINKED.items():
        await page.goto(f"{base}{path}")
        found = str(await page.locator(link).get_attribute("href"))
        paths[name] = f"{path}{found}" if found.startswith("?") else found
    for name, path in paths.items():
        await page.goto(f"{base}{path}")
        await page.screenshot(path=folder / f"{name}-{scheme}-{size}.png")
    await page.close()


async def _sheet(folder: Path, browser: Browser, scheme: str) -> None:
    images = [
        f'<img src="{name}-{scheme}-{size}.png" height="190">'
        for name in sorted(PAGES | LINKED)
        for size in SIZES
    ]
    file = folder / "sheet.html"
    file.write_text(f"<style>* {{ margin: 3px; background: #888 }}</style>{''.join(images)}")
    page = await browser.new_page(viewport={"width": 1220, "height": 800})
    await page.goto(file.absolute().as_uri())
    await page.screenshot(
        path=folder / f"all-{scheme}.jpg", type="jpeg", quality=50, full_page=True
    )
    await page.close()
    file.unlink()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "console-pictures")
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(write(target))
    print(f"wrote {len(PAGES | LINKED) * 4} pictures and two sheets to {target}")

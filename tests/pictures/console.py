"""Pictures of the web console: `python -m tests.pictures.console [FOLDER]`, with Chromium.

Of a folder made by `rookery demo`: each page wide and on a phone, light and dark.
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
    "context": "/console/context",
    "events": "/console/events",
    "policies": "/console/policies",
    "policy-file": "/console/policy-file?name=20-workshop.toml",
    "explain": f"/console/explain?event={DRAFT}",
    "live": "/console/live",
    "health": "/console/health",
    "verify": "/console/verify",
}
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
    for name, path in PAGES.items():
        await page.goto(f"{rookery.url.replace('ws', 'http', 1)}{path}")
        await page.screenshot(path=folder / f"{name}-{scheme}-{size}.png")
    await page.close()


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "console-pictures")
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(write(target))
    print(f"wrote {len(PAGES) * 4} pictures to {target}")

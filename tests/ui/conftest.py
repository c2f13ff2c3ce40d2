"""A headless browser that reaches this machine only, and pictures of what it saw."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# A busy machine shows a page late, not wrong.
expect.set_options(timeout=60_000)
LOCAL = re.compile(r"^(https?://(127\.0\.0\.1|localhost)[:/]|data:|blob:)")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; Playwright's own download is not needed."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert path, "no Chromium is installed: run scripts/install_browser.sh"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


def local_only(route: Route) -> None:
    if LOCAL.match(route.request.url):
        route.continue_()
    else:
        route.abort()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A first visit: nothing remembered, and errors of the page's own scripts fail the test."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.route("**/*", local_only)
    context.set_default_timeout(60_000)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert errors == []


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[Page, str], None]:
    """Keep what the page shows, in SEEDLOOM_SCREENS when that is set."""
    folder = Path(os.environ.get("SEEDLOOM_SCREENS", tmp_path))

    def take(shown: Page, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=folder / f"{name}.png")

    return take

"""The report as a reader sees it, in a real browser: every entry opens, every picture loads, nothing complains."""

import shutil

import pytest
from playwright.sync_api import Page, sync_playwright

from paper.plan import ITEMS
from tests.workflow.tree import Tree

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"),
]
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def entries(page: Page, category: str) -> dict[str, list[str]]:
    """Open each entry of a category; what its page says, and the sizes of its pictures."""
    page.get_by_text(category).first.click()
    rows = page.locator("tbody tr")
    rows.first.wait_for()
    found = {}
    for number in range(rows.count()):
        row = rows.nth(number)
        row.locator("a[iconname=eye]").click()
        frame = page.frame_locator("iframe")
        frame.locator("h1").wait_for()
        sizes = frame.locator("img").evaluate_all("all => all.map(i => i.complete ? i.naturalWidth : 0)")
        found[row.locator("td").nth(-2).inner_text()] = [frame.locator("body").inner_text(), sizes]
    return found


def test_report_in_a_browser(tree: Tree):
    done = tree.snakemake("--report", "report.html")
    assert done.returncode == 0, done.stdout[-5000:]
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"not found: {request.url[:200]}"))
        page.goto((tree.folder / "report.html").as_uri())
        items = entries(page, "Figures and tables")
        page.reload()
        others = entries(page, "Claims, settings, time")
        browser.close()
    assert wrong == []
    assert set(items) == set(ITEMS)
    for item, (text, sizes) in items.items():
        assert len(sizes) == 1, item
        assert sizes[0] > 300, item
        assert ITEMS[item].title in text
        assert "What we see" in text
        assert "not run at this scale" in text
    assert set(others) == {"claims", "configuration", "runtimes"}
    assert all(item in others["claims"][0] for item in ITEMS)

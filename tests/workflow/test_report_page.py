"""The report as a reader sees it, in a real browser: the menu in the paper's order, every file opens, pictures load.

And its size, without a browser.
"""

import re

import pytest
from playwright.sync_api import Page, sync_playwright

from paper.experiments import EXPERIMENTS
from tests.site.test_site import BROWSER, open_page
from tests.workflow.tree import FEW, Tree


def page_of(page: Page, category: str) -> tuple[str, list[int], list[str]]:
    """Open the page of an experiment: what it says, the sizes of its pictures, and the files beside it."""
    page.get_by_text(category).first.click()
    rows = page.locator("tbody tr")
    rows.first.wait_for()
    files = [rows.nth(number).locator("td").nth(-2).inner_text() for number in range(rows.count())]
    rows.nth(files.index("page")).locator("a[iconname=eye]").click()
    frame = page.frame_locator("iframe")
    frame.locator("h1").wait_for()
    sizes = frame.locator("img").evaluate_all("all => all.map(i => i.complete ? i.naturalWidth : 0)")
    return frame.locator("body").inner_text(), sizes, files


def test_the_report_holds_short_tables_alone_and_opens_in_a_browser(tree: Tree):
    done = tree.snakemake("--report", "report.html")
    assert done.returncode == 0, done.stdout[-5000:]
    text = (tree.folder / "report.html").read_text("utf-8")
    for name in FEW:
        assert f'"results/tiny/pages/{name}.csv": {{' in text
        assert f'"results/tiny/aggregate/{name}.csv": {{' not in text
    embedded = sum(map(len, re.findall(r'"data:[^"]*"', text)))  # the rest is Snakemake's
    assert 100_000 < embedded < 900_000
    if BROWSER is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    wrong: list[str] = []
    categories = [f"({EXPERIMENTS[name].where})" for name in EXPERIMENTS if name in FEW]
    with sync_playwright() as playwright:
        page = open_page(playwright)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("requestfailed", lambda request: wrong.append(f"not found: {request.url[:200]}"))
        page.goto((tree.folder / "report.html").as_uri())
        cards = page.frame_locator(".dashboard iframe").locator(".card")
        cards.first.wait_for()
        assert cards.count() == len(FEW)
        page.locator(".dashboard button").click()
        menu = page.locator("body").inner_text()
        places = [menu.index(EXPERIMENTS[name].title) for name in EXPERIMENTS if name in FEW]
        assert places == sorted(places), "the paper's order"
        assert all(text in menu for text in categories)
        for name in FEW:
            text, sizes, files = page_of(page, EXPERIMENTS[name].title)
            assert sorted(files) == ["figure (PDF)", "page", "table (CSV)"]
            assert len(sizes) == 1
            assert sizes[0] > 300
            assert "Not judged at this preset" in text
            page.goto((tree.folder / "report.html").as_uri())
            page.locator(".dashboard button").click()
    assert wrong == []

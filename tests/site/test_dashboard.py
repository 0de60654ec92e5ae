"""The dashboard in a browser, on a desktop and a phone, light and dark: tiles, filters, sorting, figures, and runs."""

import pytest

from tests.site.test_site import BROWSER, ROOT, SCREENS, open_page

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)"),
]


@pytest.fixture
def playwright():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_dashboard(playwright, screen, scheme):
    page = open_page(playwright, viewport=SCREENS[screen], color_scheme=scheme)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url[:200]))
    page.goto((ROOT / "docs/dashboard.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["width"]
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (shade == "rgb(21, 24, 28)") == (scheme == "dark")

    # A tile shows its claims, and a second click shows all again.
    shown = page.locator(".claims tbody tr:visible")
    everything = shown.count()
    tile = page.locator(".tile").nth(1)
    count = int(tile.locator("b").inner_text())
    tile.click()
    assert shown.count() == count < everything
    assert page.locator("[role=status]").inner_text() == f"{count} of {everything} claims"
    assert tile.get_attribute("aria-pressed") == "true"
    tile.click()
    assert shown.count() == everything
    page.get_by_label("search").fill("no claim has these words")
    assert shown.count() == 0
    page.get_by_label("search").fill("")
    names = page.locator(".claims tbody tr td:last-child")
    page.locator(".claims th button").last.click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts())
    page.locator(".claims th button").last.click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), reverse=True)

    # Every figure is one click away.
    pictures = page.locator(".card img")
    assert pictures.count() == len(list((ROOT / "docs/figures").glob("*.csv")))
    page.locator(".card button").first.click()
    large = page.locator("dialog img")
    assert large.evaluate("i => i.complete && i.naturalWidth") > 300
    page.locator("dialog button").click()
    assert not large.is_visible()

    # A point names its method, learning rate, seed and value; a method can be left out.
    chosen = {name: page.locator(f"[data-choice='{name}']") for name in ("experiment", "show", "learning rate")}
    chosen["experiment"].select_option("tuned")
    rates = chosen["learning rate"].locator("option").all_inner_texts()
    assert rates[0] == "all"
    before = page.locator("svg circle").count()
    chosen["learning rate"].select_option(rates[2])
    assert 0 < page.locator("svg circle").count() < before
    page.locator("svg circle").first.hover(force=True)
    assert f"lr {rates[2]}, seed " in page.locator(".tip").inner_text()
    before = page.locator("svg circle").count()
    page.get_by_label("PathCond", exact=True).uncheck()
    assert page.locator("svg circle").count() < before
    chosen["experiment"].select_option("mlp_depth")
    chosen["show"].select_option("mean by epoch")
    assert page.locator("svg polyline").count() == 2
    page.locator("svg circle").nth(5).hover(force=True)
    assert ", epoch " in page.locator(".tip").inner_text()
    assert wrong == []

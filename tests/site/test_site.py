"""The documentation site: built without warnings, no broken link, and readable in a browser on desktop and phone."""

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import pathcond

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "build/docs"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SCROLLS = {"zoo.html"}  # pages with a table that scrolls on a desktop too
SCREENS = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
pytestmark = [
    pytest.mark.site,
    pytest.mark.xdist_group("site"),
    pytest.mark.skipif(not TOOLS.exists(), reason="needs the site's tools (make test-site installs them)"),
]


def open_page(playwright, **options):
    """A page of a new browser, which waits long: a slow machine is no fault."""
    page = playwright.chromium.launch(executable_path=BROWSER, args=QUIET, timeout=300_000).new_page(**options)
    page.set_default_timeout(300_000)
    return page


class Reader(HTMLParser):
    """Links, loaded files, anchors and paragraphs of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors, self.paragraphs = [], [], set(), []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loaded.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon"):
            self.loaded.append(found["href"])
        if tag == "p":
            self.inside = True
            self.paragraphs.append("")
        if tag == "code":
            self.inside = False

    def handle_endtag(self, tag):
        self.inside = tag == "code" and bool(self.paragraphs)

    def handle_data(self, data):
        if self.inside:
            self.paragraphs[-1] += data


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(TOOLS), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    assert built.stdout + built.stderr == ""
    return folder


@pytest.fixture(scope="session")
def pages(site):
    found = {path: Reader(path.read_text("utf-8")) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    assert len(found) > 12
    return found


def test_links_and_anchors_lead_somewhere(site, pages):
    for path, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto"):
                assert link not in page.loaded, f"{path.name} loads {link} from the network"
                continue
            target = path.parent.joinpath(unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_relative_to(site.resolve()), f"{path.name}: {link}"
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and parts.fragment != "__skip" and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_the_page_for_missing_pages_links_from_the_root_of_the_site(site):
    """It is shown at any address."""
    text = (site / "404.html").read_text("utf-8")
    assert '<a href="/index.html">start page</a>' in text
    page = Reader(text)
    found = [urlsplit(link).path for link in page.links + page.loaded if not urlsplit(link).scheme]
    assert all(link.startswith("/") for link in found if link)
    assert [link for link in found if not (site / unquote(link).lstrip("/")).exists()] == []


def test_markdown_is_rendered(pages):
    """A table or list that a code host shows but Python-Markdown does not would end up inside a paragraph."""
    for path, page in pages.items():
        for line in (line for paragraph in page.paragraphs for line in paragraph.splitlines()):
            assert not line.startswith(("- ", "* ", "| ", "1. ", "```", "$", ">>>", ":::")), f"{path.name}: {line}"
            assert ":func:" not in line, f"{path.name}: {line}"
            assert ":class:" not in line, f"{path.name}: {line}"


def test_every_public_name_is_in_the_reference(site, pages):
    anchors = set().union(*(page.anchors for path, page in pages.items() if path.parent == site / "api"))
    assert [name for name in pathcond.__all__ if f"pathcond.{name}" not in anchors] == []


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)")
@pytest.mark.parametrize("screen", SCREENS)
def test_pages_in_a_browser(site, pages, screen):
    from playwright.sync_api import sync_playwright

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}"
    wrong, at = [], ""
    with server, sync_playwright() as playwright:
        page = open_page(playwright, viewport=SCREENS[screen])
        page.on("pageerror", lambda error: wrong.append(f"{at}: {error}"))
        page.on("console", lambda message: wrong.append(f"{at}: {message.text}") if message.type == "error" else None)
        # A request that the next page cuts short is aborted: no fault of the page.
        page.on("requestfailed", lambda r: None if "ERR_ABORTED" in r.failure else wrong.append(f"{at}: {r.url}"))
        page.on("request", lambda r: None if r.url.startswith((home, "data:", "blob:")) else wrong.append(r.url))
        for path in pages:
            at = path.relative_to(site).as_posix()
            page.goto(f"{home}/{at}")
            assert page.locator("article h1").count() == 1, at
            assert page.evaluate("document.documentElement.scrollWidth") <= SCREENS[screen]["width"], at
            pictures = page.locator("article img:not(.dash img)")
            assert all(pictures.evaluate_all("all => all.map(i => i.complete ? i.naturalWidth : 0)")), at
            boxes = page.locator(".md-typeset__scrollwrap")
            scroll = boxes.evaluate_all("all => all.filter(box => box.scrollWidth > box.clientWidth).length")
            assert scroll == 0 or screen == "phone" or at in SCROLLS, f"{at}: a table is wider than the page"
        at = "formulas"
        page.goto(f"{home}/how-it-works.html")
        boxes = page.locator("article math").evaluate_all("all => all.map(m => m.getBoundingClientRect().height)")
        assert len(boxes) > 10
        assert min(boxes) > 5
        at = "filter"
        page.goto(f"{home}/claims.html")
        shown = page.locator("article h3:visible")
        everything = shown.count()
        page.get_by_label("verdict").select_option("mixed")
        assert 0 < shown.count() < everything
        assert page.locator(".filter [role=status]").inner_text() == f"{shown.count()} of {everything} claims"
        at = "search"
        page.goto(f"{home}/index.html?q=Teleport")
        page.locator(".md-search-result__link").first.wait_for(state="attached")
        server.shutdown()
    assert wrong == []


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium (Debian: apt install chromium)")
def test_search_in_a_page_opened_as_a_file(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        page = open_page(playwright, viewport=SCREENS["desktop"])
        page.goto((site / "tutorials/rescale.html").as_uri())
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("Teleport")
        page.locator(".md-search-result__link").first.click()
        page.wait_for_url("**/related-tools.html*")
        assert page.locator("article h1").inner_text().startswith("Related tools")

"""Hooks of mkdocs.yml: the site shows the Markdown files as a code host does, with links, notebooks and formulas.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages, notebooks become Markdown, the dashboard becomes a page, files
outside of docs/ that a page links to are copied into the site, and formulas become MathML, which browsers draw without
scripts.
"""

import base64
import html
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DASHBOARD = "results.md"  # the page that docs/dashboard.html is part of
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)")
# Verdicts, after their colored mark or alone in a cell or link: docs/site.css has their colors.
_WORDS = (
    "(?:not )?reproduced|holds|does not hold|(?:not )?confirmed|mixed|undecided(?: in some cases)?|not comparable|"
    "a (?:gain|loss) is shown|neither is shown"
)
MARKED = re.compile(f"[🟢🟡🔴⚪] ({_WORDS})")
VERDICT = re.compile(rf"<(em|td|a)((?: href=[^>]*)?)>({_WORDS})</\1>")
WIDE = ("claims.md", "zoo.md")  # pages whose tables or filters take the place of the table of contents
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)

# Hides the claims that are not asked for; without scripts the page shows them all.
FILTER = """<div class="filter"><label>verdict <select><option value="">all</option></select></label>
<label>figure <select><option value="">all</option></select></label>
<input type="search" aria-label="search the claims" placeholder="search"> <span role="status"></span></div>
<script>addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector(".filter"), [verdict, figure] = box.querySelectorAll("select"), words = box.querySelector("input");
  const claims = [...document.querySelectorAll("article h3")].map(head => {
    const part = [head]; for (let e = head.nextElementSibling; e && !/^H[23]$/.test(e.tagName); e = e.nextElementSibling) part.push(e);
    const links = part.flatMap(e => [...e.querySelectorAll('a[href*="gallery"]')]);
    return { part, verdict: part[1].querySelector(".verdict")?.textContent ?? "", figure: links.at(-1)?.textContent ?? "", text: part.map(e => e.textContent).join(" ").toLowerCase() };
  });
  for (const [select, key] of [[verdict, "verdict"], [figure, "figure"]]) new Set(claims.map(c => c[key])).forEach(v => select.add(new Option(v, v)));
  const show = () => {
    let shown = 0;
    for (const c of claims) { const on = (!verdict.value || c.verdict === verdict.value) && (!figure.value || c.figure === figure.value) && c.text.includes(words.value.toLowerCase()); shown += on; c.part.forEach(e => e.hidden = !on); }
    box.querySelector("[role=status]").textContent = `${shown} of ${claims.length} claims`;
  };
  [verdict, figure, words].forEach(e => e.oninput = show); show();
});</script>
"""  # noqa: E501


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that are not Markdown under docs/."""
    for source, uri in TOP.items():
        files.append(File.generated(config, uri, content=_without_badges((ROOT / source).read_text("utf-8"))))
    files.append(File.generated(config, DASHBOARD, content="---\ntitle: Results\nhide: [toc]\n---\n"))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        name = notebook.src_uri.removesuffix(".ipynb")
        for uri, content in _notebook(name, notebook.content_string):
            files.append(File.generated(config, uri, content=content))
    for page in files.documentation_pages():
        for _, target, _ in LINK.findall(page.content_string):
            path = ROOT / _in_repository(page.src_uri, target)
            uri = _in_site(path)
            if uri.startswith("files/") and path.is_file() and files.get_file_from_path(uri) is None:
                files.append(File.generated(config, uri, content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links of the site; folders are named without a link."""
    here = page.file.src_uri
    if here in WIDE:
        page.meta["hide"] = ["toc"]

    def link(found: re.Match[str]) -> str:
        uri = _in_site(ROOT / _in_repository(here, found[2]))
        return f"{found[1]}{posixpath.relpath(uri, posixpath.dirname(here) or '.')}{found[3] or ''})"

    def folder(found: re.Match[str]) -> str:
        return found[1] if (ROOT / _in_repository(here, found[2])).is_dir() else found[0]

    markdown = re.sub(r"(?<!!)\[([^\[\]]+)\]\((?![a-z]+:|#)([^)#\s]+)\)", folder, markdown)
    return LINK.sub(link, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, and names in tables that may break after a dot, a slash or an underscore."""
    if page.file.src_uri == DASHBOARD:
        (main,) = re.findall(r"<main.*</main>", (ROOT / "docs/dashboard.html").read_text("utf-8"), re.DOTALL)
        return main.replace("<main", "<div", 1).removesuffix("</main>") + "</div>"

    def formula(found: re.Match[str]) -> str:
        kind = "block" if found[1] == "div" else "inline"
        return f'<{found[1]} class="formula">{convert(html.unescape(found[2]).strip(), display=kind)}</{found[1]}>'

    def names(cell: re.Match[str]) -> str:
        return re.sub(r"<code>[^<]+", lambda name: re.sub(r"([./_])", r"\1<wbr>", name[0]), cell[0])

    content = re.sub(r"<td.*?</td>", names, FORMULA.sub(formula, content), flags=re.DOTALL)
    content = MARKED.sub(r'<span class="verdict" data-verdict="\1">\1</span>', content)
    content = VERDICT.sub(r'<\1\2 class="verdict" data-verdict="\3">\3</\1>', content)
    return content.replace("<h2", f"{FILTER}<h2", 1) if page.file.src_uri == "claims.md" else content


def _without_badges(text: str) -> str:
    """A page without the pictures that a code host loads from the network."""
    return re.sub(r"^\[!\[.*\n", "", text, flags=re.MULTILINE)


def _in_repository(uri: str, target: str) -> str:
    """The path in the repository that a link on a page leads to."""
    source = next((source for source, page in TOP.items() if page == uri), f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def on_post_template(output: str, /, *, template_name: str, config: MkDocsConfig) -> str:
    """Name ways out on the page for missing pages, whose menu is closed on a phone."""
    if template_name != "404.html":
        return output
    home = f"{urlsplit(config.site_url or '').path.rstrip('/')}/index.html"
    words = f'<p>This page does not exist. Go to the <a href="{home}">start page</a>, or search at the top.</p>'
    return output.replace("</h1>", f"</h1>\n{words}", 1)


def _in_site(path: Path) -> str:
    """Where a file of the repository is in the site."""
    name = path.relative_to(ROOT).as_posix()
    inside = name.removeprefix("docs/")
    if name in TOP:
        return TOP[name]
    return inside.removesuffix(".ipynb") + ".md" * inside.endswith(".ipynb") if inside != name else f"files/{name}"


def _notebook(name: str, text: str) -> Iterator[tuple[str, str | bytes]]:
    """A notebook as a page of Markdown, and its pictures."""
    parts, pictures = [], 0
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                pictures += 1
                uri = f"{name}-{pictures}.png"
                yield uri, base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![{cell['metadata']['alt']}]({posixpath.basename(uri)})")
    yield f"{name}.md", "\n\n".join(parts) + "\n"

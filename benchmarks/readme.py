"""Fill the tables of README.md and docs/library.md from what they are about: python -m benchmarks.readme"""

import json
import re
from pathlib import Path

from paper.plan import ITEMS

ROOT = Path(__file__).parents[1]


def zoo_counts() -> str:
    """The first table of docs/zoo.md: counts by family."""
    lines = (ROOT / "docs" / "zoo.md").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    return "\n".join(lines[first : lines.index("", first)])


def speed() -> str:
    """Times of the paper's three networks, on the CPU against the literal algorithm and on a GPU by step."""
    cpu, gpu = (
        json.loads((ROOT / "benchmarks" / "records" / f"rescale_{d}.json").read_text()) for d in ("cpu", "cuda")
    )
    lines = [
        f"CPU ({cpu['hardware']}), everything included:",
        "",
        "| network | parameters | units | ours | literal | ratio |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for r in cpu["nets"]:
        lines.append(
            f"| {r['net']} | {r['parameters']:,} | {r['units']:,} | {1000 * r['everything']:.0f} ms "
            f"| {r['literal']:.1f} s | {r['speed_up']:.0f} |"
        )
    lines += [
        "",
        f"GPU ({gpu['hardware']}), after warm-up:",
        "",
        "| network | graph, once | diag(G) | solve | apply | sum |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for r in gpu["nets"]:
        steps = " | ".join(f"{1000 * r[k]:.1f} ms" for k in ("graph", "diag_g", "solve", "apply", "after_graph"))
        lines.append(f"| {r['net']} | {steps} |")
    return "\n".join(lines)


def items() -> str:
    """Every item of the paper: where it stands there, its target, its file."""
    lines = ["| in the paper | what | target | figure |", "| --- | --- | --- | --- |"]
    for name, item in ITEMS.items():
        lines.append(f"| {item.where} | {item.title} | `{name}` | `figures/SCALE/{name}.pdf` |")
    return "\n".join(lines)


PAGES = {
    "README.md": {"items": items},
    "docs/library.md": {"zoo": zoo_counts, "speed": speed},
}


def fill(page: str, text: str) -> str:
    """A page with what stands between its markers made anew."""
    for name, content in PAGES[page].items():
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- end -->", re.DOTALL)
        text, count = pattern.subn(lambda _, n=name, c=content: f"<!-- {n} -->\n\n{c()}\n\n<!-- end -->", text)
        if count != 1:
            raise SystemExit(f"expected one pair of markers <!-- {name} --> and <!-- end --> in {page}, found {count}.")
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(fill(page, path.read_text()))

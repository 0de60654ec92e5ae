"""Fill README.md and the pages under docs/ with what is recorded, and draw their figures: python -m paper.tell.

Text between a marker <!-- NAME --> and the next <!-- end --> is made by the function of that name.
"""

import argparse
import importlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from paper import cli, config, speeds, store
from paper.claims.rules import NOT_YET, counted, markdown
from paper.differences import DIFFERENCES
from paper.errors import PaperError
from paper.figures.__main__ import picture
from paper.outcome import Outcome, Record, cost, outcomes, plain_loop, recorded
from paper.plan import ITEMS

DPI = 200
SHOWN = ("mlp_depth", "cifar_nv", "autoencoder", "controls")  # in README.md
# Claims that sum the paper up.
MAIN = (
    "mlp_speedup", "cifar_best_test", "autoencoder_loss", "timing_one_epoch", "relu_exact", "batchnorm_training",
    "mlp_lrs_tuned", "controls_rows",
)  # fmt: skip
LONG = 120  # letters of a finding there
IN_README = ("claim", "paper", "ours", "interval", "verdict")
IN_DOCS = ("claim", "paper", "ours", "interval", "rule", "verdict")


@dataclass(frozen=True)
class Teller:
    """Texts made from the recorded runs of the paper's scale, for the repository in the folder `root`."""

    root: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The configuration at the paper's scale."""
        given = config.load(self.root / "config.yaml")
        return config.check({**given, "scale": "paper"}, self.root / "workflow/schemas/config.schema.yaml")

    @cached_property
    def found(self) -> dict[str, Outcome]:
        """What every item came to."""
        return outcomes(self.config, self.root / "results/paper")

    @cached_property
    def records(self) -> dict[str, Record]:
        """Records of all runs that are there."""
        return recorded(self.config, self.root / "results/paper")

    def items(self) -> str:
        """Every item of the paper: where it stands there, its target, its file."""
        lines = ["| in the paper | what | target | figure |", "| --- | --- | --- | --- |"]
        for name, item in ITEMS.items():
            lines.append(f"| {item.where} | {item.title} | `{name}` | `figures/SCALE/{name}.pdf` |")
        return "\n".join(lines)

    def figures(self) -> str:
        """The most telling figures, those that are recorded."""
        return "\n\n".join(
            _figure(self.found[item], "docs/figures") for item in SHOWN if self.found[item].table is not None
        )

    def main(self) -> str:
        """The claims that sum the paper up."""
        rows = {claim["id"]: claim for claim in self._short()}
        return markdown([rows[name] for name in MAIN], [name for name in IN_README if name != "interval"]).rstrip()

    def claims(self) -> str:
        """Every claim in short."""
        return f"{self.verdicts()}\n\n{markdown(self._short(), IN_README).rstrip()}"

    def _short(self) -> list[dict[str, Any]]:
        return [{**claim, "ours": short(claim["ours"])} for o in self.found.values() for claim in o.claims]

    def verdicts(self) -> str:
        """How many claims have which verdict."""
        return counted([claim for o in self.found.values() for claim in o.claims])

    def cost(self) -> str:
        """What everything took, added up from the records."""
        lines = ["| hardware | stage | runs | minutes |", "| --- | --- | --- | --- |"]
        table = cost(self.records)
        for row in table.itertuples():
            lines.append(f"| {row.hardware} | {row.stage} | {row.runs} | {row.seconds / 60:.1f} |")
        total = table.groupby("hardware")["seconds"].sum() / 60
        lines += ["", "Together: " + ", ".join(f"{m:.1f} minutes on {name}" for name, m in total.items()) + "."]
        missing = {key for o in self.found.values() for key in o.lacking}
        if missing:
            are = "run is" if len(missing) == 1 else "runs are"
            lines.append(f"{len(missing)} {are} {NOT_YET}, and not in these sums.")
        if compared := plain_loop(self.found, self.records):
            plain, ours = compared
            lines.append(
                f"The MLPs and CIFAR-NV among them took {ours / 60:.1f} minutes, with evaluation every epoch; one "
                "by one in a plain PyTorch loop, at the epoch times that `timing` and `timing_depth` measured on the "
                f"same hardware, they would take {plain / 3600:.1f} hours for training alone, {plain / ours:.0f} times "
                "as long."
            )
        return "\n".join(lines)

    def summary(self) -> str:
        """Verdicts, and which items are recorded."""
        open_items = [f"`{item}`" for item, o in self.found.items() if o.lacking]
        done = len(ITEMS) - len(open_items)
        rest = f" Not yet, or not all of it: {', '.join(open_items)}." if open_items else ""
        return f"{self.verdicts()} {done} of {len(ITEMS)} items are recorded.{rest}"

    def reproduced(self) -> str:
        """Item by item: what the paper shows, what we see, what differs and why, what it took."""
        return "\n\n".join(_section(outcome) for outcome in self.found.values())

    def zoo(self) -> str:
        """The first table of docs/zoo.md: counts by family."""
        lines = (self.root / "docs/zoo.md").read_text("utf-8").splitlines()
        first = next(i for i, line in enumerate(lines) if line.startswith("|"))
        return "\n".join(lines[first : lines.index("", first)])

    def speed(self) -> str:
        """Times of the rescaling, from the records of benchmarks/rescale.py."""
        records = self.root / "benchmarks/records"
        return speeds.rescaling(*(store.read_json(records / f"rescale_{d}.json") for d in ("cpu", "cuda")))

    def dag(self) -> str:
        """Snakemake's time and memory by the number of jobs, from the record of benchmarks/scaling.py."""
        return speeds.jobs(store.read_json(self.root / "benchmarks/records/scaling_cpu.json"))

    def solver(self) -> str:
        """The rescaling's time and memory by the number of parameters, from the same record."""
        return speeds.models(store.read_json(self.root / "benchmarks/records/scaling_cpu.json"))

    def training(self) -> str:
        """Times of the training engine, from the records of benchmarks/train.py."""
        records = self.root / "benchmarks/records"
        return speeds.training(*(store.read_json(records / f"train_{d}.json") for d in ("cuda", "cpu")))


# Markers by page.
PAGES: dict[str, tuple[str, ...]] = {
    "README.md": ("figures", "main", "items", "claims"),
    "docs/library.md": ("zoo", "speed"),
    "docs/reproduction.md": ("summary", "cost", "reproduced"),
    "docs/scaling.md": ("training", "dag", "solver"),
}


def fill(teller: Teller, page: str) -> str:
    """A page with what stands between its markers made anew.

    Raises:
        PaperError: a pair of markers is missing or there twice.
    """
    text = store.read_bytes(teller.root / page).decode("utf-8")
    for name in PAGES[page]:
        make: Callable[[], str] = getattr(teller, name)
        pattern = re.compile(rf"<!-- {name} -->.*?<!-- end -->", re.DOTALL)
        text, count = pattern.subn(lambda _, n=name, m=make: f"<!-- {n} -->\n\n{m()}\n\n<!-- end -->", text)
        if count != 1:
            raise PaperError(f"{page}: expected one pair of markers <!-- {name} --> and <!-- end -->, found {count}.")
    return text


def draw(teller: Teller) -> dict[str, bytes]:
    """Figures of the recorded items by file name; each says what it was drawn from."""
    size = teller.config["figures"]["font_size"]
    return {
        f"{item}.png": _small(picture(item, o.table, o.stamp, "png", DPI, size), o.digest)
        for item, o in teller.found.items()
        if o.table is not None
    }


def _small(png: bytes, source: str) -> bytes:
    """A figure in 64 colours, which takes a third of the space, with a note of what it was drawn from."""
    note, small = PngInfo(), io.BytesIO()
    note.add_text("Source", source)
    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True, pnginfo=note)
    return small.getvalue()


def source(png: Path) -> str:
    """What a figure says it was drawn from."""
    with Image.open(png) as image:
        return image.info.get("Source", "")


def short(text: str) -> str:
    """A finding without remarks in brackets, cut at a semicolon where it grows long."""
    first, *more = re.sub(r" \([^()]*\)", "", text).split("; ")
    while more and len(f"{first}; {more[0]}") <= LONG:
        first = f"{first}; {more.pop(0)}"
    return first


def _figure(outcome: Outcome, folder: str) -> str:
    entry = ITEMS[outcome.item]
    return f"![{entry.title}]({folder}/{outcome.item}.png)\n\n*{entry.where}: {entry.title}.*"


def _section(outcome: Outcome) -> str:
    item, entry = outcome.item, ITEMS[outcome.item]
    shows = importlib.import_module(f"paper.figures.{item}").PAPER
    parts = [f"### {entry.title} (`{item}`)", f"**What is drawn** ({entry.place}): {shows}"]
    asked = len(outcome.lacking) + len(outcome.records)
    if outcome.table is None:
        parts.append(f"**What we see**: {NOT_YET}; {len(outcome.records)} of {asked} runs are recorded.")
    else:
        some = f", {outcome.without}, which is {NOT_YET}: {len(outcome.records)} of {asked} runs are recorded"
        parts += [
            f"![{entry.title}](figures/{item}.png)",
            f"**What we see**{some if outcome.without else ''}",
            markdown(outcome.claims, IN_DOCS).rstrip(),
        ]
    parts.append(f"**What differs, and why**: {DIFFERENCES[item]}")
    if outcome.records:
        parts.append(f"**Time**: {_times(outcome.records)}")
    return "\n\n".join(parts)


def _times(records: Mapping[str, Record]) -> str:
    rows = cost(records).groupby("hardware")[["runs", "seconds"]].sum()
    parts = [
        f"{row.runs:.0f} {'run' if row.runs == 1 else 'runs'} in {_duration(row.seconds)} on {name}"
        for name, row in rows.iterrows()
    ]
    precisions = sorted({record["precision"] for record in records.values() if "precision" in record})
    return "; ".join(parts) + (f" ({', '.join(precisions)})" if precisions else "") + "."


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def main() -> None:
    """Read the command line, write pages and figures."""
    parser = argparse.ArgumentParser(
        prog="python -m paper.tell", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the repository")
    teller = Teller(parser.parse_args().root)
    texts, pictures = {page: fill(teller, page) for page in PAGES}, draw(teller)
    for page, text in texts.items():
        store.write_text(teller.root / page, text)
    folder = teller.root / "docs/figures"
    for name, content in pictures.items():
        store.write_bytes(folder / name, content)
    for path in folder.glob("*.png"):
        if path.name not in pictures:
            path.unlink()
    cli.say(teller.summary())
    cli.say(teller.cost())


if __name__ == "__main__":
    cli.run(main)

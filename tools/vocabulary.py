"""Check that the project's text uses the field's words: python tools/vocabulary.py (part of `make lint`).

Each entry has a pattern that has no other meaning in this project, and what to write instead.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

WORDS = {
    r"\bway back\b": "backward pass",
    r"\bin turns\b": "interleaved",
    r"\bmade again\b": "recomputed",
    r"\bmend(s|ed|ing)?\b": "repair",
    r"\bwhole numbers?\b": "integer",
    r"what the gain is made of": "ablation study",
    r"of both minds": "say which modes differ",
    r"whatever the clock": "say when results are reused",
    r"\bgoes on (from|where)\b": "resumes",
    r"\bproduct (up|down)\b": "matrix product",
    r"\bits kin\b": "similar operators",
    r"\b(is|are) told of\b": "reported",
    r"\bmass(es)? of\b": "path sum of",
    r"\bunit ids?\b": "scale group",
    r"contains? values of both answers": "say that the runs do not decide",
    r"at an end of (the|those)( rates)?( tried)?\b": "the smallest or largest learning rate tried",
    r"words in italics are": "the verdict on the claim",
    r"the factor by which .* is [^.]* times the factor by which": "two sentences, one per factor",
    r"\bchanges? by (-\d|[<>]=)": "is ... points lower",
    r"are one of two candidates": "say which, and why it was chosen",
    r"\bTen seeds have\b": "... have ten seeds",
    r"\bWays on:": "Next:",
    r"\b1 batches\b": "1 batch",
    r"\bis told the\b": "receives, is given",
    r"at the end of the rates\b": "the smallest or largest learning rate tried",
    r"\b(loses?|gains?) -\d": "is ... points lower",
}
# American spelling in pages, templates, comments, docstrings and messages. Names, also those of recorded settings, keep
# theirs: a word next to a quote, a backtick, a dot or an underscore is a name.
_STEMS = "optim|initial|normal|equal|quant|regular|general|minim|maxim|synchron|summar|organ|recogn|parametr|character"
BRITISH = re.compile(
    rf"(?<![\w.'\"`/=-])(?:(?:un|re)?(?:{_STEMS})is(?:e[drs]?|ers|ing|ations?)|(?:colour|behaviour|neighbour|favour)\w*|"
    r"licences?|grey|learnt)(?![\w'\"`/=(]|\.\w|: )",
    re.IGNORECASE,
)
FILLED = re.compile(r"<!-- (?!end)\w+ -->.*?<!-- end -->", re.DOTALL)  # between markers, where templates fill a page
NO_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\]\([^)]*\)|https?:\S+|"
    r"\{\{.*?\}\}|\{[^{}\n]*\}|\{[%#].*?[%#]\}|<[^<>]*>",
    re.DOTALL,
)
PLACES = ("src", "workflow", "docs", "tests", "tools", "benchmarks", "config.yaml", "config", "Makefile", "Snakefile",
          "README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # fmt: skip
ENDINGS = {".py", ".smk", ".md", ".yaml", ".yml", ".rst", ".jinja", ".j2", ".html", ""}


def prose(path: Path, text: str) -> str:
    """The parts of a file that people read, each on its line: all but code and names."""
    if path.suffix != ".py":
        return _blank(NO_PROSE, text) if path.suffix in (".md", ".j2", ".rst") else ""
    lines = [""] * (text.count("\n") + 1)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            for number, line in enumerate(
                _blank(NO_PROSE, re.sub(r"^\w*[\"']+|[\"']+$", "", token.string)).splitlines(), token.start[0]
            ):
                lines[number - 1] += f" {line}"
    return "\n".join(lines)


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Text without what a pattern matches; the numbers of its lines stay."""
    return pattern.sub(lambda match: "\n" * match.group(0).count("\n"), text)


def main() -> int:
    """Print every place that uses a phrase of the list, or British spelling; exit with 1 if there is one."""
    made = {f"docs/{template.stem}" for template in Path("workflow/templates").glob("*.j2")}  # checked as templates
    listed = subprocess.run(["git", "ls-files", *PLACES], capture_output=True, text=True, check=True)  # noqa: S603, S607
    found = 0
    for name in listed.stdout.splitlines():
        path = Path(name)
        if name in made or path.suffix not in ENDINGS or path.name == Path(__file__).name or not path.exists():
            continue
        text = _blank(FILLED, path.read_text("utf-8", errors="ignore"))
        # A phrase may be broken over two lines.
        hits = [(match, f"write {better!r} instead of") for pattern, better in WORDS.items()
                for match in re.finditer(pattern.replace(" ", r"\s+"), text, re.IGNORECASE)]  # fmt: skip
        hits += [(match, "use American spelling for") for match in BRITISH.finditer(prose(path, text))]
        for match, advice in hits:
            number = match.string.count("\n", 0, match.start()) + 1
            print(f"{name}:{number}: {advice} {match.group(0)!r}")
        found += len(hits)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

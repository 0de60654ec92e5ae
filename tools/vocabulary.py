"""Check that the project's text uses the field's words: python tools/vocabulary.py (part of `make lint`).

Each entry has a pattern that has no other meaning in this project, and what to write instead.
"""

import re
import subprocess
import sys
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
    r"at an end of the rates tried": "the smallest or largest learning rate tried",
    r"words in italics are": "the verdict on the claim",
    r"the factor by which .* is [^.]* times the factor by which": "two sentences, one per factor",
    r"\bchanges? by -\d": "is ... points lower",
    r"are one of two candidates": "say which, and why it was chosen",
    r"\bTen seeds have\b": "... have ten seeds",
    r"\bWays on:": "Next:",
    r"\b1 batches\b": "1 batch",
}
# American spelling in pages that are written by hand. Code, names and links keep the spelling of recorded settings.
BRITISH = re.compile(
    r"\b\w*(?:(?:optim|initial|normal|equal|quant|regular|general|minim|synchron|summar|organ|recogn)is(?:e|ing|ation)|"
    r"colour|behaviour|neighbour|licence)\w*", re.IGNORECASE,
)  # fmt: skip
NO_PROSE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!-- (?!end)\w+ -->.*?<!-- end -->|https?:\S+", re.DOTALL)
_PAGES = ("api", "how-it-works", "library", "pipeline", "related-tools", "scale-groups", "scaling")
BY_HAND = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{name}.md" for name in _PAGES))
PLACES = ("src", "workflow", "docs", "tests", "tools", "benchmarks", "config.yaml", "config", "Makefile", "Snakefile",
          "README.md", "CONTRIBUTING.md", "CHANGELOG.md")  # fmt: skip
ENDINGS = {".py", ".smk", ".md", ".yaml", ".yml", ".rst", ".jinja", ".j2", ".html", ""}


def main() -> int:
    """Print every line that uses a word of the list, or British spelling; exit with 1 if there is one."""
    listed = subprocess.run(["git", "ls-files", *PLACES], capture_output=True, text=True, check=True)  # noqa: S603, S607
    found = 0
    for name in listed.stdout.splitlines():
        path = Path(name)
        if path.suffix not in ENDINGS or path.name == Path(__file__).name or not path.exists():
            continue
        for number, line in enumerate(path.read_text("utf-8", errors="ignore").splitlines(), start=1):
            for pattern, better in WORDS.items():
                if match := re.search(pattern, line, re.IGNORECASE):
                    print(f"{name}:{number}: write {better!r} instead of {match.group(0)!r}")
                    found += 1
    for name in BY_HAND:
        # The lines of what is left out stay, so that numbers of lines are right.
        text = NO_PROSE.sub(lambda match: "\n" * match.group(0).count("\n"), Path(name).read_text("utf-8"))
        for number, line in enumerate(text.splitlines(), start=1):
            for match in BRITISH.finditer(line):
                print(f"{name}:{number}: write {match.group(0)!r} in American spelling")
                found += 1
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())

"""README: its example runs, and its tables are the records'."""

import re
from pathlib import Path

from benchmarks.readme import fill

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own text


def test_tables_are_the_records():
    assert fill(README) == README


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target

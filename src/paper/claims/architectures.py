"""Claims of Table 1: parameters, hidden units and paths."""

from collections.abc import Callable

import pandas as pd

from paper.claims.rules import Claim, Finding, NotMeasured, of_all
from paper.table_1 import TABLE_1


def _rows(table: pd.DataFrame) -> list[tuple[pd.Series, tuple[int, int, str]]]:
    return [(row, TABLE_1[row["network"]]) for _, row in table.iterrows()]


def _compare(matches: list[bool], differ: list[str]) -> Finding:
    text = f"{sum(matches)} of {len(matches)} rows equal" + (f"; {', '.join(differ)}" if differ else "")
    if not matches:
        raise NotMeasured("no networks")
    missing = [False] * (len(TABLE_1) - len(matches))  # rows that the settings leave out
    return Finding(text, of_all([*matches, *missing]), sum(matches))


def _count(column: str, place: int) -> Callable[[pd.DataFrame], Finding]:
    def judge(table: pd.DataFrame) -> Finding:
        rows = _rows(table)
        differ = [f"{row['network']} {row[column]:,}" for row, printed in rows if row[column] != printed[place]]
        return _compare([row[column] == printed[place] for row, printed in rows], differ)

    return judge


def as_printed(number: str) -> str:
    """Digits of a path count as the paper prints them: 3.84e+12."""
    return f"{float(number):.2e}"


def _paths(column: str) -> Callable[[pd.DataFrame], Finding]:
    def judge(table: pd.DataFrame) -> Finding:
        rows = _rows(table)
        matches = [as_printed(row[column]) == as_printed(printed[2]) for row, printed in rows]
        differ = [
            f"{row['network']} {as_printed(row[column])}"
            for (row, _), equal in zip(rows, matches, strict=True)
            if not equal
        ]
        return _compare(matches, differ)

    return judge


_RULE = "equal to every printed digit; all rows: reproduced, some: partly"
CLAIMS = (
    Claim("table1_parameters", "Table 1: numbers of parameters", "six rows", _RULE, _count("parameters", 0)),
    Claim("table1_units", "Table 1: numbers of hidden units", "six rows", _RULE, _count("units_table", 1)),
    Claim(
        "table1_paths",
        "Table 1: numbers of paths, with max-pool kept as a maximum and average pool as an average",
        "six rows",
        _RULE,
        _paths("paths_paper"),
    ),
    Claim(
        "table1_paths_exact",
        "These are exactly the numbers of paths",
        "six rows",
        f"with pools that count their inputs, {_RULE}",
        _paths("paths_all"),
    ),
)

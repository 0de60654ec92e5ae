"""Ordinates of losses, linear or logarithmic."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator


def wide(values: pd.Series) -> bool:
    """Whether losses span a factor of three or more."""
    finite = _finite(values)
    return len(finite) > 0 and bool(finite.max() >= 3 * finite.min())


def losses(axes: Axes, values: pd.Series, room: float = 0.0, log: bool = False) -> None:
    """Limits of an ordinate of losses, logarithmic where they span a factor of three or more.

    Args:
        axes: where.
        values: the losses that are drawn; others than finite positive ones do not count.
        room: share of the height left free at the top.
        log: logarithmic however little they span.
    """
    finite = _finite(values)
    if finite.empty:
        return
    low, high = float(finite.min()), float(finite.max())
    if log or wide(values):
        axes.set_yscale("log")
        ticks = (
            LogLocator(subs=_steps(high / low), numticks=20) if wide(values) else MaxNLocator(6, steps=[1, 2, 5, 10])
        )
        axes.yaxis.set_major_locator(ticks)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
        ratio = high / low if high > low else 1.1
        axes.set_ylim(low * ratio**-0.06, high * ratio ** (0.06 + room))
    else:
        span = (high - low) or 0.1 * high
        axes.set_ylim(low - 0.08 * span, high + (0.08 + room) * span)


def _finite(values: pd.Series) -> pd.Series:
    """Those that have a place on a logarithmic axis."""
    return values[np.isfinite(values) & (values > 0)]


def _steps(ratio: float) -> tuple[float, ...]:
    """First digits of the ticks of a logarithmic axis that spans this factor."""
    return (1.0,) if ratio > 200 else (1.0, 2.0, 5.0) if ratio > 10 else (1.0, 2.0, 3.0, 5.0, 7.0)

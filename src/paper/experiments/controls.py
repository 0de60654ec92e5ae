"""Our ablation study: epochs to the target and final loss against the learning rate, one curve per method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd, plotting
from paper.settings import Block, CompressionGrid, DepthGrid, grids
from paper.verdicts import (
    LEVELS,
    LR,
    OURS,
    Claim,
    Estimate,
    Finding,
    NotMeasured,
    accuracy_gain,
    at_most,
    by,
    decide,
    known,
    listed,
    of,
    over_cases,
    ratios,
    runs,
)


class Settings(Block):
    """MLPs and autoencoders, each with its training grid."""

    mlp: DepthGrid
    autoencoder: CompressionGrid


def all_grids(settings: Settings) -> Iterator[dict[str, Any]]:
    """The grids of both kinds of networks."""
    yield from grids(settings.mlp)
    yield from grids(settings.autoencoder)


def plot(table: pd.DataFrame) -> plotting.Figure:
    """One panel per network, two side by side, a page wide."""
    names = table.drop_duplicates("network")["network"].tolist()
    rows = -(-len(names) // 2)
    figure, axes = plotting.panels(rows, 2, plotting.PAGE, 0.4 + 2.5 * rows)
    for place, name in zip(axes, names, strict=False):
        one = table[table["network"] == name]
        plotting.rates_axis(place, one)
        if one["compression"].isna().all():
            plotting.reach(place, one, "lr")
            plotting.epochs_axis(place, one, log=True)
            place.set_title(f"MLP, {plotting.network_label(one)}")
        else:
            plotting.settled(place, one, "lr", "final_train_loss")
            place.set(title=f"Autoencoder, compression {one['compression'].iloc[0]:g}", ylabel="final train loss")
    plotting.letters(axes[: len(names)])
    plotting.legend(figure, table, axes[-1] if len(axes) > len(names) else None)
    return figure


def _mlps(table: pd.DataFrame, lr: float | None = None) -> pd.DataFrame:
    rows = runs(table, "hidden_layers")
    if lr is None:
        return rows
    rows = rows[rows["lr"] == lr]
    if rows.empty:
        raise NotMeasured(f"no MLP at lr {lr:g}")
    return rows


def _share(rows: pd.DataFrame, method: str) -> Estimate | None:
    """The epochs that a method saves as a fraction of those that PathCond saves, by seed; None if that is open.

    A baseline that misses the target counts with the epochs it had, which can only understate the fraction.
    """
    names = ("baseline", "pathcond", method)
    if any(of(rows, name).empty for name in names) or of(rows, "pathcond")["reached"].isna().any():
        return None
    if of(rows, "baseline")["reached"].isna().any() and of(rows, method)["reached"].isna().any():
        return None
    counted = rows.assign(reached=rows["reached"].fillna(rows["epochs"]))
    base, ours, other = (of(counted, name).set_index("seed")["reached"] for name in names)
    shares = ((base - other) / (base - ours)).dropna()
    return None if shares.empty or (base <= ours).any() else Estimate.of(shares)


def _rows(table: pd.DataFrame) -> Finding:
    found, parts = {}, []
    for depth, rows in by(_mlps(table, LR), "hidden_layers"):
        share, columns = _share(rows, "rows"), _share(rows, "columns")
        if share is not None:
            found[depth] = share
            parts.append(f"{depth:g} hidden layers: rows {share.words}, columns {columns.words if columns else 'open'}")
    if not found:
        raise NotMeasured("no gain to split, or targets missed")
    answers = [decide(share, LEVELS["controls_rows"]) for share in found.values()]
    return Finding("; ".join(parts), over_cases(answers), cases=found)


def _exact(table: pd.DataFrame) -> Finding:
    rows = _mlps(table, LR)
    found = ratios(rows, "hidden_layers", fast="exact")
    answers = []
    for depth, part in by(rows, "hidden_layers"):
        ratio = found[depth]
        if of(part, "exact").empty or of(part, "baseline").empty:
            continue
        if ratio is None:
            answers.append(decide(accuracy_gain(part, "exact", "baseline", "final_train_accuracy"), at_most(0.5)))
        else:
            answers.append(decide(ratio, LEVELS["controls_exact"]))
    return Finding(f"baseline over exact: {listed(found, 'hidden layers', intervals=True)}", over_cases(answers))


def _optimum(table: pd.DataFrame) -> Finding:
    rows = _mlps(table, LR)
    found = ratios(rows, "hidden_layers", slow="pathcond", fast="optimum")
    values = known(found)
    scales = [_scales(part) for depth, part in by(rows, "hidden_layers") if depth in values]
    words = f"ten sweeps over optimum: {listed(found, 'hidden layers', intervals=True)}"
    words += f"; largest |log lambda| of both: {', '.join(scales)}"
    return Finding(words, over_cases(decide(ratio, LEVELS["controls_optimum"]) for ratio in values.values()))


def _scales(rows: pd.DataFrame) -> str:
    """Largest log-rescaling of ten sweeps and of the optimum, means over seeds."""
    return " and ".join(f"{of(rows, name)['max_log_scale'].mean():.1f}" for name in ("pathcond", "optimum"))


_CLAIMS = (
    Claim(
        "controls_rows",
        "Rescaling the incoming weights alone, which keeps the function in train mode and enlarges the effective "
        "steps, gives most of the gain on MLPs at lr 1e-3",
        "not studied",
        "share of the epochs saved by PathCond that rescaling the incoming weights alone (rows) saves too; a baseline "
        "that misses the target counts with the epochs it had",
        _rows,
        OURS,
        cases="depth",
    ),
    Claim(
        "controls_exact",
        "The form that keeps the function of BatchNorm networks in train mode too (exact) is no faster than the "
        "baseline at lr 1e-3",
        "not studied",
        "ratio of epochs, baseline over exact; where both miss the target, final train accuracy at most 0.5 points "
        "higher",
        _exact,
        OURS,
        cases="depth",
    ),
    Claim(
        "controls_optimum",
        "Ten sweeps train MLPs as fast as the true optimum at lr 1e-3",
        "not studied (the paper calls the objective near-optimal)",
        "ratio of epochs, ten sweeps over optimum",
        _optimum,
        OURS,
        cases="depth",
    ),
)


EXPERIMENT = Experiment(
    name="controls",
    title="Ablation study",
    where="ours",
    caption=(
        "Epochs until {mlp[target]:.0%} of the training images are classified correctly, against the learning rate. "
        "There is one panel per MLP and one curve per method: PathCond, its incoming or outgoing scales only, the form "
        "that keeps the function of networks with BatchNorm, and the optimum in place of ten sweeps. Last panel: final "
        "loss of the autoencoder against the learning rate. Means over seeds; bars are one standard deviation. Open "
        "markers above the end of training: runs that did not reach the target."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    keys=("epoch",),
    grids=all_grids,
    table=trained,
)

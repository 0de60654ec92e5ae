"""Our ablation study: epochs to the target and final loss against the learning rate, one curve per method."""

from __future__ import annotations

from paper import plotting
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import Block, CompressionGrid, DepthGrid, grids_of_blocks
from paper.verdicts import (
    AT_LEAST,
    AT_MOST,
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
    epochs_ratio,
    known,
    listed,
    of,
    over_cases,
    ratios,
    runs,
)

WITHOUT_BATCHNORM, SILU = "_no_bn", "_silu"  # ends of the names of networks
ENDS = {WITHOUT_BATCHNORM: "no BN", SILU: "SiLU"}


class Settings(Block):
    """Training grids: MLPs, MLPs without BatchNorm, MLPs with SiLU in place of ReLU, autoencoders."""

    mlp: DepthGrid
    no_batchnorm: DepthGrid
    silu: DepthGrid
    autoencoder: CompressionGrid


def plot(table: pd.DataFrame) -> plotting.Figure:
    """One panel per network, three side by side, a page wide."""
    names = table.drop_duplicates("network")["network"].tolist()
    rows = -(-(len(names) + 1) // 3)
    figure, axes = plotting.panels(rows, 3, plotting.PAGE, 0.4 + 2.2 * rows)
    for place, name in zip(axes, names, strict=False):
        one = table[table["network"] == name]
        plotting.rates_axis(place, one)
        if one["compression"].isna().all():
            plotting.reach(place, one, "lr")
            plotting.epochs_axis(place, one, log=True)
            special = [text for end, text in ENDS.items() if name.endswith(end)]
            place.set_title(", ".join([f"{plotting.network_label(one)}", *special]))
        else:
            plotting.settled(place, one, "lr", "final_train_loss")
            place.set(title=f"Autoencoder, compression {one['compression'].iloc[0]:g}", ylabel="final train loss")
    plotting.letters(axes[: len(names)])
    for place in axes[len(names) :]:
        place.set_axis_off()
    plotting.legend(figure, table, axes[len(names)])
    return figure


def _mlps(table: pd.DataFrame, lr: float | None = None, end: str = "") -> pd.DataFrame:
    """The MLPs whose names end so, or with none of the ends; at one learning rate or at all."""
    rows = runs(table, "hidden_layers")
    rows = rows[rows["network"].str.endswith(end if end else tuple(ENDS)) == bool(end)]
    rows = rows if lr is None else rows[rows["lr"] == lr]
    if rows.empty:
        raise NotMeasured("no such MLP" + ("" if lr is None else f" at lr {lr:g}"))
    return rows


def _share(rows: pd.DataFrame, method: str) -> Estimate | None:
    """The epochs that a method saves as a fraction of those that PathCond saves, by seed; None if that is open.

    A run that misses the target counts with the epochs it had, so the fraction is a bound. A method that misses it
    saves at most so much. More epochs of the baseline would bring the fraction closer to one: it is at least what is
    found, and at least one if that is more than one.
    """
    names = ("baseline", "pathcond", method)
    if any(of(rows, name).empty for name in names) or of(rows, "pathcond")["reached"].isna().any():
        return None
    missed = of(rows, "baseline")["reached"].isna().any()
    missed_too = of(rows, method)["reached"].isna().any()
    counted = rows.assign(reached=rows["reached"].fillna(rows["epochs"]))
    base, ours, other = (of(counted, name).set_index("seed")["reached"] for name in names)
    shares = ((base - other) / (base - ours)).dropna()
    if shares.empty or (base <= ours).any() or (missed and missed_too):
        return None
    if missed:
        return Estimate.of(shares.clip(upper=1.0), AT_LEAST)
    return Estimate.of(shares, AT_MOST if missed_too else "")


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


def _faster(claim: str, rows: pd.DataFrame, slow: str = "baseline", fast: str = "pathcond") -> Finding:
    """Ratios of the epochs of two methods, by depth and learning rate; open where both miss the target."""
    found = {
        f"{depth:g} hidden layers, lr {lr:g}": epochs_ratio(of(at, slow), of(at, fast))
        for depth, part in by(rows, "hidden_layers")
        for lr, at in by(part, "lr")
    }
    cases = {name: ratio for name, ratio in found.items() if ratio is not None}
    if not cases:
        raise NotMeasured("targets missed or runs left out")
    words = "; ".join(f"{name}: {'open' if ratio is None else ratio.words}" for name, ratio in found.items())
    return Finding(words, over_cases(decide(ratio, LEVELS[claim]) for ratio in cases.values()), cases=cases)


def _scales(rows: pd.DataFrame) -> str:
    """Largest log-rescaling of ten sweeps and of the optimum, means over seeds."""
    return " and ".join(f"{of(rows, name)['max_log_scale'].mean():.1f}" for name in ("pathcond", "optimum"))


_CLAIMS = (
    Claim(
        "controls_rows",
        "Rescaling the incoming weights alone, which keeps the function in train mode and enlarges the effective "
        "steps, gives most of the gain on MLPs at lr 1e-3",
        "not studied",
        "share of the epochs saved by PathCond that rescaling the incoming weights alone (rows) saves too; a run "
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
    Claim(
        "controls_layer_lrs",
        "At lr 1e-3, MLPs that keep their weights but have learning rates by layer that imitate the rescaling train as "
        "fast as with PathCond",
        "not studied",
        "ratio of epochs, learning rates by layer over PathCond",
        lambda table: _faster("controls_layer_lrs", _mlps(table, LR), slow="layer_lrs"),
        OURS,
        cases="depth",
    ),
    Claim(
        "controls_no_batchnorm",
        "MLPs without BatchNorm need fewer epochs with PathCond too, at every learning rate",
        "not studied",
        "ratio of epochs, baseline over PathCond, where one of them meets the target",
        lambda table: _faster("controls_no_batchnorm", _mlps(table, end=WITHOUT_BATCHNORM)),
        OURS,
        cases="depth and rate",
    ),
    Claim(
        "controls_no_batchnorm_layer_lrs",
        "In MLPs without BatchNorm, learning rates by layer that imitate the rescaling train as fast as PathCond",
        "not studied",
        "ratio of epochs, learning rates by layer over PathCond, where one of them meets the target",
        lambda table: _faster("controls_no_batchnorm_layer_lrs", _mlps(table, end=WITHOUT_BATCHNORM), slow="layer_lrs"),
        OURS,
        cases="depth and rate",
    ),
    Claim(
        "controls_silu",
        "At lr 1e-3, MLPs with SiLU in place of ReLU need fewer epochs with PathCond too",
        "not studied",
        "ratio of epochs, baseline over PathCond",
        lambda table: _faster("controls_silu", _mlps(table, LR, SILU)),
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
        "that keeps the function of networks with BatchNorm, the optimum in place of ten sweeps, and learning rates by "
        "layer that imitate the rescaling. MLPs without BatchNorm (no BN) and with SiLU have panels of their own. Last "
        "panel: final loss of the autoencoder against the learning rate. Means over seeds; bars are one standard "
        "deviation. Open markers above the end of training: runs that did not reach the target."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=trained,
)

"""Our ablation study: epochs to the target and final loss against the learning rate, one curve per method."""

from __future__ import annotations

from collections.abc import Callable

from paper import plotting, verdicts
from paper.aggregate import trained
from paper.experiments.base import Experiment
from paper.lazy import pd
from paper.settings import Block, CompressionGrid, DepthGrid, grids_of_blocks
from paper.verdicts import AT_LEAST, AT_MOST, BASELINE, LR, PATHCOND, Claim, Estimate, Estimates, NotMeasured

WITHOUT_BATCHNORM, SILU = "_no_bn", "_silu"  # ends of the names of networks
ENDS = {WITHOUT_BATCHNORM: "no BN", SILU: "SiLU"}


class Settings(Block):
    """Training grids: MLPs, MLPs without BatchNorm, MLPs with SiLU in place of ReLU, autoencoders."""

    mlp: DepthGrid
    no_batchnorm: DepthGrid
    no_batchnorm_seeds: DepthGrid | None = None
    silu: DepthGrid
    autoencoder: CompressionGrid


def plot(table: pd.DataFrame) -> plotting.Figure:
    """What each method gives at the paper's learning rate: a panel per network, three side by side, a page wide."""
    table = plotting.at_paper_lr(table)
    names = table.drop_duplicates("network")["network"].tolist()
    rows = -(-len(names) // 3)
    figure, axes = plotting.panels(rows, 3, plotting.PAGE, 0.5 + 1.75 * rows)
    for place, name in zip(axes, names, strict=False):
        _means(place, table[(table["network"] == name) & (table["panel"] == "run")])
        special = [text for end, text in ENDS.items() if name.endswith(end)]
        place.set_title(", ".join([_title(table[table["network"] == name]), *special]))
    plotting.letters(axes[: len(names)])
    for place in axes[len(names) :]:
        place.set_axis_off()
    plotting.note(figure, "learning rate 1e-3; means over seeds with one standard deviation; open: target not reached")
    return figure


def _title(rows: pd.DataFrame) -> str:
    if rows["compression"].isna().all():
        return f"{rows['hidden_layers'].iloc[0]:.0f} layers"
    return f"Autoencoder, c = {rows['compression'].iloc[0]:g}"


def _means(axes: plotting.Axes, rows: pd.DataFrame) -> None:
    """Epochs to the target; where baseline and PathCond miss it, final train accuracy; final loss of autoencoders."""
    both = rows[rows["method"].isin([BASELINE, PATHCOND])]
    value, factor, label = "reached", 1.0, "epochs to target"
    if rows["compression"].notna().any():
        value, label = "final_train_loss", "final train loss"
    elif both["reached"].isna().all():
        value, factor, label = "final_train_accuracy", 100.0, "train accuracy (%)"
    names = plotting.methods(rows)
    for number, name in enumerate(names):
        one, method = verdicts.of(rows, name), plotting.METHODS[name]
        missed = value == "reached" and one["reached"].isna().any()
        values = factor * (one[value].fillna(one["epochs"]) if value == "reached" else one[value])
        error = values.std() if len(values) > 1 else 0.0
        if value == "reached":
            look = {"color": "white" if missed else method.colour, "edgecolor": method.colour, "linewidth": 0.8}
            axes.barh(number, values.mean(), 0.7, xerr=error, **look)
        else:  # the axis does not start at zero, so the length of a bar would mislead
            axes.errorbar(values.mean(), number, xerr=error, color=method.colour, marker=method.marker)
    axes.set_yticks(range(len(names)), [plotting.METHODS[name].label for name in names], fontsize="x-small")
    axes.set(xlabel=label, ylim=(len(names) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")


def _mlps(table: pd.DataFrame, lr: float | None = None, end: str = "") -> pd.DataFrame:
    """The MLPs whose names end so, or with none of the ends; at one learning rate or at all."""
    rows = verdicts.runs(table, "hidden_layers")
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
    if any(verdicts.of(rows, name).empty for name in names) or verdicts.of(rows, "pathcond")["reached"].isna().any():
        return None
    missed = verdicts.of(rows, "baseline")["reached"].isna().any()
    missed_too = verdicts.of(rows, method)["reached"].isna().any()
    counted = rows.assign(reached=rows["reached"].fillna(rows["epochs"]))
    base, ours, other = (verdicts.of(counted, name).set_index("seed")["reached"] for name in names)
    shares = ((base - other) / (base - ours)).dropna()
    if shares.empty or (base <= ours).any() or (missed and missed_too):
        return None
    if missed:
        return Estimate.of(shares.clip(upper=1.0), AT_LEAST)
    return Estimate.of(shares, AT_MOST if missed_too else "")


def _ratios(slow: str, fast: str, end: str = "") -> Callable[[pd.DataFrame], Estimates]:
    """Ratios of the epochs of two methods at lr 1e-3, by depth."""
    return lambda table: verdicts.epochs_ratios(_mlps(table, LR, end), "hidden_layers", fast, slow)


def _at_every_rate(table: pd.DataFrame) -> Estimates:
    rows = _mlps(table, end=WITHOUT_BATCHNORM)
    return {
        f"{depth:g} hidden layers, lr {lr:g}": verdicts.epochs_ratio(at)
        for depth, part in verdicts.by(rows, "hidden_layers")
        for lr, at in verdicts.by(part, "lr")
    }


def _final_accuracy(table: pd.DataFrame) -> Estimates:
    rows = verdicts.by(_mlps(table, LR, WITHOUT_BATCHNORM), "hidden_layers")
    return {depth: verdicts.accuracy_gain(part, value="final_train_accuracy") for depth, part in rows}


_EPOCHS = "ratio of epochs to 99% train accuracy, {}, paired by seed"
_CLAIMS = (
    Claim.ours(
        "controls_rows",
        "Rescaling the incoming weights alone, which keeps the function in train mode and enlarges the effective "
        "steps, gives most of the gain on MLPs at lr 1e-3",
        "share of the epochs saved by PathCond that rescaling the incoming weights alone (rows) saves too; a run "
        "that misses the target counts with the epochs it had",
        lambda table: {depth: _share(rows, "rows") for depth, rows in verdicts.by(_mlps(table, LR), "hidden_layers")},
        verdicts.at_least(0.5),
        unit="of the epochs saved",
        cases="depth",
    ),
    Claim.ours(
        "controls_exact",
        "The form that keeps the function of BatchNorm networks in train mode too (exact) is no faster than the "
        "baseline at lr 1e-3",
        _EPOCHS.format("baseline over exact"),
        _ratios(BASELINE, "exact"),
        verdicts.at_most(1.05),
        unit="times",
        cases="depth",
    ),
    Claim(
        "controls_optimum",
        "PathCond has no hyperparameter: the one choice that it leaves, the number of sweeps, does not change the "
        "training of MLPs",
        "parameter-free",
        _EPOCHS.format("ten sweeps over the optimum, at lr 1e-3"),
        _ratios(PATHCOND, "optimum"),
        (0.95, 1.05),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "controls_layer_lrs",
        "At lr 1e-3, MLPs that keep their weights but have learning rates by layer that imitate the rescaling train as "
        "fast as with PathCond",
        _EPOCHS.format("learning rates by layer over PathCond"),
        _ratios("layer_lrs", PATHCOND),
        (0.95, 1.05),
        unit="times",
        cases="depth",
    ),
    Claim.ours(
        "controls_no_batchnorm",
        "MLPs without BatchNorm need fewer epochs with PathCond too, at every learning rate",
        _EPOCHS.format("baseline over PathCond"),
        _at_every_rate,
        verdicts.at_least(1.05),
        unit="times",
        cases="depth and rate",
    ),
    Claim.ours(
        "controls_no_batchnorm_accuracy",
        "At lr 1e-3, MLPs without BatchNorm end with a higher train accuracy after PathCond",
        "train accuracy after the last epoch, PathCond minus baseline, paired by seed",
        _final_accuracy,
        verdicts.at_least(0.5),
        unit="points",
        cases="depth",
    ),
)


EXPERIMENT = Experiment(
    name="controls",
    title="Ablation study",
    where="ours",
    caption=(
        "What each method gives at learning rate 1e-3, one panel per network: epochs until {mlp[target]:.0%} of the "
        "training images are classified correctly; for MLPs without BatchNorm (no BN), which miss this target, train "
        "accuracy after the last epoch; for the autoencoder, final train loss. Methods: PathCond, its incoming or "
        "outgoing scales only, the form that keeps the function of networks with BatchNorm, the optimum in place of "
        "ten sweeps, and learning rates by layer that imitate the rescaling. Means over seeds; bars are one standard "
        "deviation. Open bars: some seed did not reach the target and counts with all its epochs."
    ),
    settings=Settings,
    plot=plot,
    claims=_CLAIMS,
    grids=grids_of_blocks,
    table=trained,
)

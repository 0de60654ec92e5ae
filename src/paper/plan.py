"""What there is to do: every item of the paper, and the runs the configuration asks for.

A run, which is a measurement or a cell of training, is described by its spec: what it is, its version and every setting
it depends on. Its results are named by readable fields and a digest of the spec, so a result that is there is the right
one, whatever the clock says, and a changed setting makes a new one. No torch here: the workflow reads this often.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paper.cells import Spec, cells_of
from paper.errors import PaperError


@dataclass(frozen=True)
class Item:
    """A figure or table of the paper.

    Attributes:
        title: its heading.
        where: where the paper has it.
        version: of the measurement; raised by hand when its results change (tests/paper/test_golden.py watches).
        by_network: one job a network instead of one for all.
        exclusive: measures time, so it has the machine to itself.
        trained: made of training runs instead of a measurement.
        also: items whose measurements its table holds too.
        spare: methods that its claims do not need, so that it is drawn where these alone lack a run.
    """

    title: str
    where: str
    version: int = 1
    by_network: bool = False
    exclusive: bool = False
    trained: bool = False
    also: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where the paper has it, in words that stand alone."""
        return self.where if self.where == "ours" else f"{self.where} of the paper"


SCALES = ("paper", "preview", "tiny")

# Settings added since the first results were kept, with the value that leaves old names as they are.
LATER: dict[str, Any] = {}

ITEMS: dict[str, Item] = {
    "toy": Item("Gradient descent on one neuron", "Figure 1"),
    "mlp_depth": Item("Faster training of fully connected networks", "Figure 2", trained=True),
    "cifar_nv": Item("Training and test curves of CIFAR-NV", "Figure 3", trained=True),
    "regimes": Item("When PathCond has something to do", "Figure 4", version=2),
    "autoencoder": Item("Autoencoders by compression", "Figure 5", trained=True),
    "timing": Item("Cost of the rescaling", "Figure 6", by_network=True, exclusive=True),
    "timing_depth": Item("Cost by depth and by step", "appendix", exclusive=True, also=("timing",)),
    "bcd": Item("Convergence of the sweeps", "appendix", version=2, by_network=True),
    "architectures": Item("Parameters, hidden units and paths", "Table 1"),
    "theory": Item("Expected diagonal of G", "Proposition 5.1 and appendix", version=2),
    "criteria": Item("Criteria on toy examples", "appendix C"),
    "mlp_depth_lrs": Item("Fully connected networks by learning rate", "appendix", trained=True),
    "cifar_nv_lrs": Item("CIFAR-NV by learning rate", "appendix", trained=True, spare=("enorm",)),
    "autoencoder_lrs": Item("Autoencoders by learning rate", "appendix", trained=True),
    "smooth": Item("Smooth activations", "appendix", version=2),
    "mlp_depth_gelu": Item("Fully connected networks with GELU", "appendix", trained=True),
    "controls": Item("What the gain is made of", "ours", trained=True),
}


def settings(config: Mapping[str, Any], block: str) -> dict[str, Any]:
    """A block of the scale that the configuration picks."""
    try:
        return config["scales"][config["scale"]][block]
    except (KeyError, TypeError) as error:
        where = f"scales.SCALE.{block}"
        raise PaperError(f"configuration: expected a scale and the block {where}, got no {error}.") from error


def slice_of(config: Mapping[str, Any], item: str) -> dict[str, Any]:
    """The part of the configuration that an item's table depends on; a configuration itself."""
    names = (item, *ITEMS[item].also)
    blocks = {name: settings(config, name) for name in names}
    if used := [network for name in names if ITEMS[name].by_network for network in blocks[name]["networks"]]:
        blocks["networks"] = {name: settings(config, "networks")[name] for name in used}
    return {"scale": config["scale"], "scales": {config["scale"]: blocks}}


class Runs(dict[str, Spec]):
    """Specs by key; asking for another is an error to act on."""

    def __missing__(self, name: str) -> Spec:
        """Say what is wrong with the name."""
        raise PaperError(f"{name}: expected one of the {len(self)} runs that the configuration asks for, got another.")


def runs(config: Mapping[str, Any], items: Iterable[str] | None = None) -> dict[str, Spec]:
    """Every run of the configuration's scale, or of some of its items, by key: measurements and cells."""
    return Runs({key(spec): spec for item in (ITEMS if items is None else items) for spec in runs_of(config, item)})


def runs_of(config: Mapping[str, Any], item: str) -> Iterator[Spec]:
    """The runs of one item, in the order of its settings."""
    try:
        yield from _expanded(config, item)
    except (KeyError, TypeError) as error:
        raise PaperError(f"configuration: expected whole settings of {item}, got some without {error}.") from error


def _expanded(config: Mapping[str, Any], item: str) -> Iterator[Spec]:
    chosen, entry, scale = settings(config, item), ITEMS[item], config["scale"]
    if entry.trained:
        yield from cells_of(item, chosen, scale)
        return
    spec = {"stage": "measure", "scale": scale, "item": item, "version": entry.version}
    if not entry.by_network:
        yield {**spec, "part": "all", "settings": chosen}
        return
    models = settings(config, "networks")
    common = {name: value for name, value in chosen.items() if name != "networks"}
    for network in chosen["networks"]:
        yield {**spec, "part": network, "settings": {**common, "network": network, "model": models[network]}}


def sources(config: Mapping[str, Any], item: str) -> list[str]:
    """Keys of the runs that an item's table is made of, each once."""
    return list(dict.fromkeys(key(spec) for name in (item, *ITEMS[item].also) for spec in runs_of(config, name)))


def key(spec: Spec) -> str:
    """The spec's name, and its path: stage, readable fields, and a digest of everything its results depend on."""
    if spec["stage"] == "measure":
        return f"measure/{spec['item']}/{spec['part']}-{digest(spec)}"
    return f"train/{spec['task']}/{spec['network']}/{spec['method']}-lr{float(spec['lr']):g}-{digest(spec)}"


def digest(spec: Spec) -> str:
    """Twelve hexadecimal digits of the spec without its scale; 1 and 1.0 are the same number."""
    content = {name: value for name, value in spec.items() if name != "scale"}
    text = json.dumps(_canonical(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def pattern(chosen: Collection[str], keys: Collection[str]) -> str:
    """A regular expression that picks the chosen of these keys, as short as telling them from the others allows.

    Snakemake copies it into every path of every job, so a list of the keys would take time quadratic in their number.
    """
    return f"(?=measure/|train/){_apart(list(chosen), list(set(keys).difference(chosen)))}"


def stamp(config: Mapping[str, Any], item: str) -> str:
    """The line printed on a figure: scale and how much of everything."""
    chosen, more = settings(config, item), []
    if item == "controls":
        chosen, coder = chosen["mlp"], chosen["autoencoder"]
        more.append(f"autoencoder: {coder['images']:,} images, {coder['epochs']:,} epochs")
    parts, given = [f"scale: {config['scale']}"], chosen.get("longer", ())
    longer = "".join(f" ({one['epochs']:,} at lr {one['lr']:g})" for one in given if one["lr"] in chosen["lrs"])
    for name, text in (
        ("images", "images"), ("epochs", f"epochs{longer}"), ("batches", "batches timed"), ("draws", "draws"),
        ("samples", "inputs"), ("repeats", "repeats"),
    ):  # fmt: skip
        if name in chosen:
            parts.append(f"{chosen[name]:,} {text}")
    if "target" in chosen and "epochs" in chosen:
        parts.append(f"target {100 * chosen['target']:g}% train accuracy")
    if "seeds" in chosen:
        count = len(chosen["seeds"])
        parts.append(f"{count} seed{'s' * (count > 1)}")
    return "  ·  ".join([*parts, *more, *filter(None, [without(config, item)])])


def without(config: Mapping[str, Any], item: str) -> str:
    """What an item is made without, in words, where `recorded.narrowed` left something out."""
    left_out = config.get("left_out", {}).get(item, ())
    return f"without {', '.join(left_out)}" if left_out else ""


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {name: _canonical(v) for name, v in value.items()}
        return {name: v for name, v in kept.items() if name not in LATER or v != _canonical(LATER[name])}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return value


def _apart(chosen: list[str], others: list[str]) -> str:
    """What the chosen texts begin with, up to where no other begins so."""
    if not chosen:
        return "(?!)"
    if not others:
        return ".*"
    ends = []
    for first in sorted({text[:1] for text in chosen}):
        rest = ([text[1:] for text in part if text[:1] == first] for part in (chosen, others))
        ends.append(re.escape(first) + _apart(*rest) if first else "")
    return ends[0] if len(ends) == 1 else f"(?:{'|'.join(ends)})"

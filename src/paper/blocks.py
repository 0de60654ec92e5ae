"""What the blocks of a run's spec hold: their keys, and what each value may be.

The schema says the same of config.yaml; its checker is not there on machines that only read specs, nor is torch here.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Mistake = tuple[str, str]  # where, and what was expected and what came


@dataclass(frozen=True)
class Value:
    """A value: what it may be, in words and as a test."""

    what: str
    right: Callable[[Any], bool]


@dataclass(frozen=True)
class Block:
    """An object with keys that it must have, and keys that it may have; no others."""

    needed: Mapping[str, "Rule"]
    may: Mapping[str, "Rule"] = field(default_factory=dict)


@dataclass(frozen=True)
class Kinds:
    """An object whose other keys depend on the value of one; a default is that value where it is left out."""

    by: str
    blocks: Mapping[Any, Block]
    default: Any = None


@dataclass(frozen=True)
class Each:
    """An object of one or more names, with one rule for all values."""

    rule: "Rule"


Rule = Value | Block | Kinds | Each


def mistakes(value: Any, rule: Rule, where: str = "", of: str = "") -> Iterator[Mistake]:
    """Where a value breaks a rule.

    Args:
        value: as JSON gave it.
        rule: what it should be.
        where: its dotted path.
        of: what kind of block it is, for the message.
    """
    if isinstance(rule, Value):
        if not rule.right(value):
            yield where, f"expected {rule.what}, got {value!r:.60}."
    elif not isinstance(value, Mapping):
        yield where, f"expected an object, got {value!r:.60}."
    elif isinstance(rule, Kinds):
        given = value.get(rule.by, rule.default)
        found = [name for name in rule.blocks if type(name) is type(given) and name == given]
        if found:
            yield from mistakes(value, rule.blocks[given], where, f" of {given}" if isinstance(given, str) else "")
        else:
            yield _at(where, rule.by), f"expected one of {', '.join(map(str, rule.blocks))}, got {given!r:.60}."
    elif isinstance(rule, Each):
        if not value:
            yield where, "expected one or more entries, got none."
        for name, part in value.items():
            yield from mistakes(part, rule.rule, _at(where, name))
    else:
        known = {**rule.needed, **rule.may}
        if lacking := [name for name in rule.needed if name not in value]:
            yield where, f"expected {', '.join(lacking)}, got none."
        if others := [name for name in value if name not in known]:
            yield where, f"expected keys among {', '.join(known)}{of}, got {', '.join(others):.60}."
        for name in (name for name in known if name in value):
            yield from mistakes(value[name], known[name], _at(where, name))


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(least: int) -> Value:
    return Value(f"a whole number above {least - 1}" if least else "a whole number", lambda v: _is_whole(v, least))


def _one_of(*names: str) -> Value:
    return Value(f"one of {', '.join(names)}", lambda v: isinstance(v, str) and v in names)


def _list(what: str, entry: Value, least: int = 1, once: bool = True) -> Value:
    def right(value: Any) -> bool:
        fits = isinstance(value, list) and len(value) >= least and all(map(entry.right, value))
        return fits and not (once and len({tuple(v) if isinstance(v, list) else v for v in value}) < len(value))

    return Value(what, right)


ANY = Value("anything", lambda _: True)
# A run's name is a path, so what it is made of may not lead elsewhere.
NAME = Value("a name such as mlp_2x16", lambda v: isinstance(v, str) and bool(re.fullmatch(r"[a-z0-9][a-z0-9_]*", v)))
COUNT, SOME = _whole(1), _whole(0)
NUMBER = Value("a number", _is_number)
POSITIVE = Value("a positive number", lambda v: _is_number(v) and v > 0)
FLAG = Value("true or false", lambda v: isinstance(v, bool))
COUNTS = _list("whole numbers above 0, each once", COUNT)
WIDTHS = _list("a list of whole numbers above 0", COUNT, once=False)
SIZES = _list("positive numbers, each once", POSITIVE)
SEEDS = _list("whole numbers, each once", SOME)
DATASET = _one_of("cifar10", "mnist", "generated")
START = Value("three numbers", lambda v: isinstance(v, list) and len(v) == 3 and all(map(_is_number, v)))

PARTS = ("both", "rows", "columns")
_ACTIVATION, _POOLING = _one_of("relu", "gelu", "silu"), _one_of("plain", "exact")
_SHARE = Value("a number from 0 to below 1", lambda v: _is_number(v) and 0 <= v < 1)
_DECAY = Value("a number of at least 0", lambda v: _is_number(v) and v >= 0)
_POOLINGS = _list("plain and exact, each once", _POOLING)
_BIAS = Value("true, false or null", lambda v: v is None or isinstance(v, bool))

_CONV = {"kind": ANY, "width": POSITIVE, "image": _whole(8)}
_CHOICES = {"activation": _ACTIVATION, "batchnorm": FLAG, "bias": _BIAS}
NETWORKS = {
    "mlp": Block({"kind": ANY, "inputs": COUNT, "hidden": WIDTHS, "outputs": COUNT}, _CHOICES),
    "cifar_nv": Block(_CONV, {**_CHOICES, "bias": FLAG, "bn": _one_of("blocks", "last")}),
    "resnet18_c": Block(_CONV, {"activation": _ACTIVATION, "held": FLAG}),
}
_AUTOENCODER = Block({"kind": ANY, "inputs": COUNT, "compression": COUNT}, {"activation": _ACTIVATION})
_MODEL = Kinds("kind", {**NETWORKS, "autoencoder": _AUTOENCODER})
_WITH_MOMENTUM = Block({"name": ANY}, {"momentum": _SHARE, "weight_decay": _DECAY})
_OPTIMISER = Kinds(
    "name", {"sgd": _WITH_MOMENTUM, "adam": Block({"name": ANY}, {"weight_decay": _DECAY}), "muon": _WITH_MOMENTUM}
)
_RESCALED = Block(
    {
        "rescale": ANY,
        "part": _one_of(*PARTS),
        "batchnorm": _one_of("exclude", "affine"),
        "solver": _one_of("sweeps", "optimum"),
        "sweeps": COUNT,
        "pooling": _POOLING,
    },
    {"teleport": SOME, "clamp": POSITIVE, "enorm": FLAG},
)
_RESCALING = Kinds("rescale", {True: _RESCALED, False: Block({"enorm": FLAG}, {"rescale": ANY})}, default=False)

_RUN = {"stage": ANY, "scale": NAME, "version": ANY}
TRAINED = Block(
    {
        **_RUN,
        "task": _one_of("classify", "rebuild"),
        "network": NAME,
        "model": _MODEL,
        "method": NAME,
        "rescaling": _RESCALING,
        "optimiser": _OPTIMISER,
        "lr": POSITIVE,
        "dataset": DATASET,
        "validation": SOME,
        "seeds": SEEDS,
        **dict.fromkeys(("epochs", "images", "test_images", "batch"), COUNT),
    }
)

_NETWORK = {"network": NAME, "model": Kinds("kind", NETWORKS), "poolings": _POOLINGS}
_TIMED = {
    "dataset": DATASET, "batch": COUNT, "batches": COUNT, "sweeps": COUNT, "warmup": SOME, "repeats": _whole(2)
}  # fmt: skip
_LAYERS = {"hidden_layers": COUNTS, "inputs": COUNT, "width": COUNT, "outputs": COUNT}
_CASE = Block({"widths": _list("three or more whole numbers above 0", COUNT, 3, once=False), "biases": FLAG},
              {"a": SIZES, "variances": _list("a list of positive numbers", POSITIVE, once=False)})  # fmt: skip
_LENGTH = Value("", lambda v: _is_whole(v, 2) and v <= 8)
# Settings of the items that are measured.
SETTINGS: dict[str, Block] = {
    "toy": Block({
        "draws": COUNT, "lr": POSITIVE, "steps": COUNT, "every": COUNT, "slower_start": START, "seeds": SEEDS,
        "starts": _list("lists of three numbers, each once", START),
    }),
    "criteria": Block({
        "target": NUMBER, "lengths": _list("whole numbers from 2 to 8, each once", _LENGTH), "grid": _whole(3),
        "log_range": POSITIVE, "seeds": SEEDS,
    }),
    "theory": Block({"draws": _whole(2), "seeds": SEEDS, "cases": Each(_CASE)}),
    "regimes": Block({
        "hidden_layers": COUNT, "neurons": COUNT, "inputs": COUNT, "outputs": COUNT, "variances": SIZES,
        "log10_alpha": Block({"first": NUMBER, "last": NUMBER, "count": _whole(2)}), "sweeps": COUNT, "seeds": SEEDS,
    }),
    "smooth": Block({
        **_LAYERS, "activations": _list("activations among relu, gelu, silu, each once", _ACTIVATION),
        "initialisations": _list("default and he, each once", _one_of("default", "he")),
        "samples": COUNT, "sweeps": COUNT, "clamp": POSITIVE, "seeds": SEEDS,
    }),
    "architectures": Block({"networks": _list("names of networks, each once", NAME), "image": _whole(32)}),
    "bcd": Block({**_NETWORK, "sweeps": COUNT, "seeds": SEEDS}),
    "timing": Block({**_NETWORK, **_TIMED}),
    "timing_depth": Block({**_LAYERS, **_TIMED}),
}  # fmt: skip


def measured(item: str) -> Block:
    """The rule of a measurement's spec."""
    return Block({**_RUN, "item": ANY, "part": NAME, "settings": SETTINGS[item]})

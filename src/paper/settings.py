"""Field types and models that the settings of all experiments share, with checks across their fields.

A model is closed (an unknown key is an error) and frozen. Numbers may be written as 0.001, 1e-3 or "1e-3". A machine
that only computes needs no pydantic: specs arrive there validated, as plain dictionaries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from paper.cli import PaperError
from paper.methods import METHODS

if TYPE_CHECKING or find_spec("pydantic"):
    from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
else:  # without pydantic, models can be declared but not validated

    class BaseModel:
        """Stands in for pydantic's class."""

        @classmethod
        def model_validate(cls, value: object) -> None:
            """Raise an error that names the missing package."""
            raise PaperError("settings: expected pydantic to validate them, got no such package. Install pydantic.")

    def _inert(*_: object, **__: object) -> Any:
        return lambda function: function

    AfterValidator = BeforeValidator = ConfigDict = Field = model_validator = _inert

T = TypeVar("T")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _number(value: object) -> object:
    """Text such as "1e-3" as a number; true and false are refused."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return float(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _integer(value: object) -> object:
    """Text such as "1e3" as an integer; 3.0 is refused, because it is no integer in a path or a loop."""
    number = _number(value)
    return int(number) if isinstance(value, str) and isinstance(number, float) and number.is_integer() else number


def _flag(value: object) -> object:
    return value.lower() == "true" if isinstance(value, str) and value.lower() in ("true", "false") else value


def _each_once(values: list[T]) -> list[T]:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise ValueError(f"expected no entry twice, got {value!r} again; keep one")
    return values


def _known(name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        raise ValueError(f"expected one of {', '.join(names)}, got {name!r}")
    return name


Number = Annotated[float, BeforeValidator(_number), Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(gt=0, le=1)]
Momentum = Annotated[Number, Field(ge=0, lt=1)]
LearningRate = Positive
Integer = Annotated[int, BeforeValidator(_integer), Field(strict=True)]
PositiveInt = Annotated[Integer, Field(ge=1)]
NonNegativeInt = Annotated[Integer, Field(ge=0)]
AtLeast2 = Annotated[Integer, Field(ge=2)]
GridSize = Annotated[Integer, Field(ge=2, le=10_000)]
AtLeast3 = Annotated[Integer, Field(ge=3)]
ImageSide = Annotated[Integer, Field(ge=8)]
Flag = Annotated[bool, BeforeValidator(_flag), Field(strict=True)]
# Names are parts of paths, so they may not contain separators.
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_]*$")]
MethodName = Annotated[str, AfterValidator(lambda name: _known(name, METHODS))]
Activation = Literal["relu", "gelu", "silu"]
Initialisation = Literal["default", "he"]
Pooling = Literal["plain", "exact"]
DatasetName = Annotated[str, AfterValidator(lambda name: _known(name, DATASETS))]
# `eval`: loss and accuracy after the epoch; `running`: mean loss of the epoch's steps, in train mode; or both.
TrainMetrics = Literal["eval", "running", "both"]
Augmentation = Literal["flip_crop"]  # of every image: a flip or none, a crop after padding by 4 pixels
Some = Annotated[list[T], Field(min_length=1)]
Distinct = Annotated[list[T], Field(min_length=1), AfterValidator(_each_once)]
SeedList = Distinct[NonNegativeInt]
LearningRates = Distinct[LearningRate]
MethodNames = Distinct[MethodName]


class Block(BaseModel):
    """A closed, frozen block of settings."""

    # Built at first use: most jobs import these models and check no settings.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def plain(settings: BaseModel) -> dict[str, Any]:
    """Settings as a plain dictionary of what was given, without defaults: what specs and digests are made of."""
    return settings.model_dump(mode="json", exclude_unset=True)


class Dataset(NamedTuple):
    """Number of train and test images of a data set, their channels and side, and the classes.

    A text has windows in place of images, of `window` characters; its classes are the characters of its alphabet.
    """

    train: int
    test: int
    channels: int
    side: int
    classes: int = 10
    window: int = 0


DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset(50_000, 10_000, 3, 32),
    "mnist": Dataset(60_000, 10_000, 1, 28),
    "generated": Dataset(640, 160, 3, 8),
    "kjv": Dataset(29_099, 3_233, 0, 0, classes=63, window=128),
    "generated_text": Dataset(720, 80, 0, 0, classes=16, window=32),
}


class MLP(Block):
    """A fully connected network. `hidden` has the widths; where depths are swept, `width` is that of every layer."""

    kind: Literal["mlp"]
    inputs: PositiveInt
    hidden: Some[PositiveInt] | None = None
    width: PositiveInt | None = None
    outputs: PositiveInt
    activation: Activation = "relu"
    batchnorm: Flag = True
    bias: Flag | None = None

    @model_validator(mode="after")
    def _one_width(self) -> MLP:
        if (self.hidden is None) == (self.width is None):
            got = "neither" if self.hidden is None else "both"
            raise ValueError(f"expected either hidden (a list of widths) or width (of every layer), got {got}")
        return self


class CifarNV(Block):
    """The all-convolutional network CIFAR-NV; `width` multiplies its channels."""

    kind: Literal["cifar_nv"]
    width: Positive
    image: ImageSide
    activation: Activation = "relu"
    batchnorm: Flag = True
    bias: Flag = True
    bn: Literal["blocks", "last"] = "blocks"


class ResNet18C(Block):
    """ResNet-18 type C; `held`: the channels before the last layer keep their scale, as in the paper's solver."""

    kind: Literal["resnet18_c"]
    width: Positive
    image: ImageSide
    activation: Activation = "relu"
    held: Flag = False


class Autoencoder(Block):
    """A fully connected autoencoder; where compressions are swept, `compression` is left out."""

    kind: Literal["autoencoder"]
    inputs: PositiveInt
    compression: PositiveInt | None = None
    activation: Activation = "relu"


class VGG(Block):
    """VGG-11, VGG-16 or five convolutions, with one linear layer; `width` multiplies its channels."""

    kind: Literal["vgg11", "vgg16", "plain5"]
    width: Positive = 1.0
    image: ImageSide
    batchnorm: Flag = True


class ResNet18(Block):
    """ResNet-18 with a stem for small images; `width` multiplies its channels."""

    kind: Literal["resnet18"]
    width: Positive = 1.0
    image: ImageSide


class ImageNetwork(Block):
    """Another common network, of one size."""

    kind: Literal["mobilenetv1", "densenet", "vit_tiny"]
    image: ImageSide


class MobileNetV2(Block):
    """MobileNetV2; `width` multiplies its channels."""

    kind: Literal["mobilenetv2"]
    width: Positive = 0.5
    image: ImageSide


class GPT(Block):
    """A small GPT: `context` is the number of tokens it sees at once, `vocabulary` the number of different ones."""

    kind: Literal["gpt"]
    vocabulary: AtLeast2
    context: AtLeast2
    width: PositiveInt
    layers: PositiveInt
    heads: PositiveInt

    @model_validator(mode="after")
    def _heads_fit(self) -> GPT:
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of the {self.heads} heads, got {self.width}")
        return self


Network = Annotated[
    MLP | CifarNV | ResNet18C | Autoencoder | VGG | ResNet18 | MobileNetV2 | ImageNetwork | GPT,
    Field(discriminator="kind"),
]


class SGD(Block):
    """SGD."""

    name: Literal["sgd"]
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0
    nesterov: Flag = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> SGD:
        if self.nesterov and not self.momentum:
            raise ValueError("expected momentum above 0 with nesterov, got 0; set momentum, or drop nesterov")
        return self


class Adam(Block):
    """Adam, or AdamW, whose weight decay is decoupled."""

    name: Literal["adam", "adamw"]
    weight_decay: NonNegative = 0.0
    decay_vectors: Flag = True  # false: biases and gains of normalizations have no weight decay, as usual


class Muon(Block):
    """Muon for matrices and kernels of convolutions, AdamW for the rest."""

    name: Literal["muon"]
    momentum: Momentum = 0.95
    weight_decay: NonNegative = 0.0


Optimiser = Annotated[SGD | Adam | Muon, Field(discriminator="name")]


class Longer(Block):
    """A learning rate with more epochs."""

    lr: LearningRate
    epochs: PositiveInt


class Schedule(Block):
    """The learning rate over the steps: a linear warm-up from 0, then a decay to 0, linear or as a cosine."""

    name: Literal["one_cycle", "cosine"]
    warmup: Momentum = 0.0  # fraction of the steps


class Protocol(Block):
    """What runs of several networks may share.

    Without the optional settings, images are as they are, and on a GPU training is in bfloat16 for CIFAR-NV and in TF32
    for other networks, as for the paper.
    """

    dataset: DatasetName
    images: AtLeast2
    validation: NonNegativeInt
    test_images: PositiveInt
    batch: AtLeast2
    epochs: PositiveInt
    augmentation: Augmentation | None = None
    precision: Literal["float32", "tf32", "bfloat16"] | None = None  # on a GPU


class TrainingSetup(Protocol):
    """What runs of one network share; by default the learning rate is constant and gradients are not clipped."""

    model: Network
    optimiser: Optimiser
    schedule: Schedule | None = None
    clip: Positive | None = None  # largest norm of the gradient
    train_metrics: TrainMetrics | None = None
    seeding: Literal["torch"] | None = None  # start weights drawn after torch.manual_seed(seed), as by the authors
    gain: Positive | None = None  # factor of all start weights and biases, for a start of another variance
    unequal: Positive | None = None  # deviation of log-scales drawn for the units of the start, which keep its function

    @model_validator(mode="after")
    def _fits(self) -> TrainingSetup:
        model, data = plain(self.model), DATASETS[self.dataset]
        wrong = list(misfits(model, self.dataset))
        if self.augmentation is not None and data.window:
            text = f"expected none for the text of {self.dataset}, got {self.augmentation}; set it to null"
            wrong.append(("augmentation", text))
        for name, asked, there in (
            ("images and validation", self.images + self.validation, data.train),
            ("test_images", self.test_images, data.test),
        ):
            if asked > there:
                wrong.append((name, f"expected at most {there} of {self.dataset}, got {asked}"))
        refuse([*wrong, *odd_batch(model, self.images, self.batch)])
        return self


class MoreSeeds(Block):
    """Seeds that some methods have besides those of all, at some learning rates and depths or at all."""

    methods: MethodNames
    seeds: SeedList
    lrs: LearningRates | None = None
    hidden_layers: Distinct[PositiveInt] | None = None


class TrainingGrid(TrainingSetup):
    """Every method at every learning rate from every seed; `clamp` bounds every abs(u) of the rescaling."""

    methods: MethodNames
    lrs: LearningRates
    longer: list[Longer] = Field(default=[])
    seeds: SeedList
    more_seeds: list[MoreSeeds] = Field(default=[])
    clamp: Positive | None = None

    @model_validator(mode="after")
    def _more_seeds_are_more(self) -> TrainingGrid:
        for more in self.more_seeds:
            for name in ("methods", "lrs"):
                there: list[Any] = getattr(self, name)
                if unknown := [value for value in getattr(more, name) or () if value not in there]:
                    text = f"expected some of {name} {there}, got {unknown}"
                    raise ValueError(f"more_seeds.{name}: {text}; give others, or more_seeds: [] for none")
            if more.hidden_layers and not getattr(self, "hidden_layers", []):
                raise ValueError(f"more_seeds.hidden_layers: expected none without a sweep, got {more.hidden_layers}")
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> TrainingGrid:
        model = self.model
        coder = isinstance(model, Autoencoder) and model.compression is None
        for axis, swept, expected in (
            ("hidden_layers", isinstance(model, MLP) and model.width is not None, "an mlp with a width"),
            ("compressions", coder, "an autoencoder without one"),
        ):
            if swept != bool(got := getattr(self, axis, [])):
                text = f"expected a list if, and only if, model is {expected}, got {got} for {plain(model)}"
                raise ValueError(f"{axis}: {text}; give both or neither")
        for longer in self.longer:
            if longer.lr not in self.lrs:
                raise ValueError(f"longer: expected learning rates of lrs {self.lrs}, got {longer.lr}; add it to lrs")
        for name in self.methods:
            if METHODS[name].enorm and plain(self.optimiser) != {"name": "sgd"}:
                why = "it does not rescale the averages of an optimizer"
                raise ValueError(f"optimiser: expected plain sgd with enorm, got another: {why}; drop {name}")
            if METHODS[name].teleport and self.optimiser.name == "muon":
                why = "it leaves what is no matrix to adamw, and we rescale the averages of one optimizer"
                raise ValueError(f"optimiser.name: expected sgd or adam with teleport, got muon: {why}; drop {name}")
        return self


class DepthGrid(TrainingGrid):
    """MLPs by depth: `hidden_layers` of `model.width` each; other networks have no depths to sweep."""

    hidden_layers: Distinct[PositiveInt] = Field(default=[])
    target: Fraction


class ShownDepthGrid(DepthGrid):
    """MLPs by depth, one of which, `shown`, has its curves drawn."""

    shown: PositiveInt | None = None

    @model_validator(mode="after")
    def _shown_is_there(self) -> ShownDepthGrid:
        if self.shown is not None and self.shown not in self.hidden_layers:
            raise ValueError(f"shown: expected one of hidden_layers {self.hidden_layers}, got {self.shown}")
        return self


class CompressionGrid(TrainingGrid):
    """Autoencoders by compression."""

    compressions: Distinct[PositiveInt] = Field(default=[])

    @model_validator(mode="after")
    def _compressions_fit(self) -> CompressionGrid:
        for compression in self.compressions:
            model = {**plain(self.model), "compression": compression}
            refuse(("compressions", text) for _, text in misfits(model, self.dataset))
        return self


def grids(settings: TrainingGrid) -> Iterator[dict[str, Any]]:
    """One training grid per network: `network` (its name), `model`, and the other settings of the grid."""
    block = plain(settings)
    axes = ("hidden_layers", "compressions", "target", "shown", "smoothing", "more_seeds")
    common = {name: value for name, value in block.items() if name not in ("model", *axes)}
    for network, model in networks(block):
        start, depth = f"_gain{block['gain']:g}" if "gain" in block else "", len(model.get("hidden", ()))
        more = [one for one in block.get("more_seeds", ()) if depth in one.get("hidden_layers", [depth])]
        yield {"network": f"{network}{start}", "model": model, **common, "more_seeds": more}


def grids_of_blocks(settings: Block) -> Iterator[dict[str, Any]]:
    """The training grids of every block of the settings that is there."""
    for name in type(settings).model_fields:
        if (block := getattr(settings, name)) is not None:
            yield from grids(block)


def named_by_optimiser(grid: Mapping[str, Any]) -> dict[str, Any]:
    """A training grid with its optimizer in the network's name, unless that is plain SGD."""
    name = grid["optimiser"]["name"]
    if name == "sgd":
        name = "momentum" if grid["optimiser"].get("momentum") else ""
    return {**grid, "network": f"{grid['network']}_{name}" if name else grid["network"]}


def networks(block: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and models of a training grid's networks: one per depth or compression, or the one there is."""
    model = dict(block["model"])
    activation = model.get("activation", "relu")
    kind = "" if activation == "relu" else f"_{activation}"
    if model["kind"] == "mlp":
        width, hidden = model.pop("width", None), model.pop("hidden", None)
        for widths in [[width] * layers for layers in block["hidden_layers"]] if hidden is None else [hidden]:
            same = len(set(widths)) == 1
            name = f"{len(widths)}x{widths[0]}" if same else "_".join(map(str, widths))
            norm = "" if model.get("batchnorm", True) else "_no_bn"
            yield f"mlp_{name}{norm}{kind}", {**model, "hidden": widths}
    elif model["kind"] == "autoencoder":
        for factor in block.get("compressions") or [model["compression"]]:
            yield f"autoencoder_c{factor}{kind}", {**model, "compression": factor}
    else:
        yield f"{model['kind']}{kind}", model


Misfit = tuple[str, str]  # key, and what was expected and got


def misfits(model: Mapping[str, Any], dataset: str) -> Iterator[Misfit]:
    """Settings with which a network cannot take the images or windows of a data set, or separate its classes."""
    data = DATASETS[dataset]
    if data.window or model["kind"] == "gpt":
        yield from _text_misfits(model, dataset)
        return
    if "inputs" in model:
        side = math.isqrt(model["inputs"] // data.channels)
        if side > data.side or data.channels * side**2 != model["inputs"]:
            expected = f"{data.channels} x s x s, where s is at most {data.side}, the side of the images of {dataset}"
            yield "model.inputs", f"expected {expected}, got {model['inputs']}"
    elif data.channels != 3:
        yield "model.kind", f"expected mlp or autoencoder for the gray images of {dataset}, got {model['kind']}"
    elif model["image"] > data.side:
        yield "model.image", f"expected at most {data.side}, the side of the images of {dataset}, got {model['image']}"
    if model.get("outputs", data.classes) != data.classes:
        yield "model.outputs", f"expected {data.classes}, the classes of {dataset}, got {model['outputs']}"
    if model.get("compression") and model["inputs"] < model["compression"] ** 2:
        expected = f"{math.isqrt(model['inputs'])}, which leaves one of {model['inputs']} // compression^2 units"
        yield "model.compression", f"expected at most {expected}, got {model['compression']}"


def _text_misfits(model: Mapping[str, Any], dataset: str) -> Iterator[Misfit]:
    data = DATASETS[dataset]
    if not data.window:
        yield "dataset", f"expected a text for a network of kind gpt, got the images of {dataset}"
    elif model["kind"] != "gpt":
        yield "model.kind", f"expected gpt for the text of {dataset}, got {model['kind']}"
    else:
        if (context := model["context"]) > data.window:
            yield "model.context", f"expected at most {data.window}, the windows of {dataset}, got {context}"
        if (vocabulary := model["vocabulary"]) != data.classes:
            yield "model.vocabulary", f"expected {data.classes}, the characters of {dataset}, got {vocabulary}"


def odd_batch(model: Mapping[str, Any], images: int, batch: int) -> Iterator[Misfit]:
    """Settings that give BatchNorm a last batch of one image."""
    without = ("autoencoder", "vit_tiny", "gpt")
    normed = model["kind"] not in without and model.get("batchnorm", True)
    if normed and (images % batch or batch) == 1:
        expected = "expected no last batch of one image, which BatchNorm cannot take"
        way_out = "take one image more or fewer, or another batch size"
        yield "batch", f"{expected}, got {images} images in batches of {batch}; {way_out}"


def check_timed(model: Mapping[str, Any], dataset: str, batch: int, prefix: str = "") -> None:
    """Refuse a network that cannot be trained on all images of a data set."""
    found = [*misfits(model, dataset), *odd_batch(model, DATASETS[dataset].train, batch)]
    refuse([(f"{prefix}{key}" if prefix else key.removeprefix("model."), text) for key, text in found])


def refuse(found: Iterator[Misfit] | Sequence[Misfit]) -> None:
    """Raise a ValueError that lists the misfits, if there are any."""
    if texts := [f"{key}: {text}" for key, text in found]:
        raise ValueError("; ".join(texts))

"""Transformers: rescale tiny random models of Hugging Face's classes, a DiT and nn.Transformer, and compare outputs.

For each model the table states how many symmetries exist, counted from the configuration by the list of exact scales
(values to output projection, queries against keys, gains of norms to the layers that read them, hidden channels of ReLU
and gated MLPs), how many of them ``extract_graph`` finds, and by how much outputs change

1. in float64, under random scales (log-scales normal, standard deviation 1), in eval and in training mode;
2. in float32, under ``pathcond.rescale_`` with the whole solution (``damping=1``).

Some models compute parts of their forward pass in float32 whatever the dtype of their weights; there the change in
float64 is bounded by float32's rounding. Run ``python -m tests.transformers_zoo --table docs/transformers.md``.

``--large meta`` measures the graphs of models of 1e9 parameters and more without their weights; ``--large cuda`` (or
``cpu``) the whole of ``rescale_``. The rows go to ``benchmarks/records/large.json``, from where the table takes them.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.func import functional_call

import pathcond
from pathcond.isolation import untouched, without_cache
from pathcond.tracing import as_arguments, map_leaves, outputs_in

hf: Any = transformers  # its configuration classes take more than their signatures tell
D, HEADS, KV, LAYERS, FF, VOCAB, EXPERTS = 32, 4, 2, 2, 48, 64, 4
HEAD = D // HEADS
VALUES = KV * HEAD  # channels of values where query heads share them
EXACT = {torch.float64: 1.0e-9, torch.float32: 1.0e-5}  # largest change, by the narrowest format of the pass
CLOSE = 1.0e-4  # largest change under rescale_ in float32
ENOUGH = 0.8  # share of the existing symmetries that must be free
SMALL: dict[str, Any] = {
    "hidden_size": D, "intermediate_size": FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
}  # fmt: skip
TEXT: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
SHORT: dict[str, Any] = {"max_position_embeddings": 16}
GROUPED: dict[str, Any] = {"num_key_value_heads": KV}


def _draws() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _tokens(length: int = 7) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, VOCAB, (2, length), generator=_draws())}


def _decoder() -> dict[str, Tensor]:
    return {"decoder_input_ids": _tokens(5)["input_ids"]}


def _images(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, size, size, generator=_draws())}


def _whisper() -> tuple[nn.Module, Any]:
    sizes = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in
             (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", FF))}  # fmt: skip
    config = hf.WhisperConfig(
        d_model=D, num_mel_bins=8, max_source_positions=10, max_target_positions=16, decoder_start_token_id=0, **sizes,
        **TEXT,
    )  # fmt: skip
    sound = torch.randn(2, 8, 20, generator=_draws())
    return hf.WhisperForConditionalGeneration(config), {"input_features": sound, **_decoder()}


def _clip() -> tuple[nn.Module, Any]:
    config = hf.CLIPConfig(
        text_config={**SMALL, "projection_dim": 16, **SHORT, **TEXT},
        vision_config={**SMALL, "projection_dim": 16, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    return hf.CLIPModel(config), {**_tokens(), **_images(16)}


def _wav2vec2() -> tuple[nn.Module, Any]:
    config = hf.Wav2Vec2Config(
        **SMALL, conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, mask_time_length=2, **TEXT,
    )  # fmt: skip
    return hf.Wav2Vec2ForCTC(config), {"input_values": torch.randn(2, 400, generator=_draws())}


class _DiTBlock(nn.Module):
    """Attention and an MLP, both shifted, scaled and gated by the condition (AdaLN)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(D, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, FF), nn.Linear(FF, D)
        self.modulation = nn.Linear(D, 6 * D)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).reshape(*y.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y)))


class DiT(nn.Module):
    """A diffusion transformer on 8x8 latents in patches of 2x2."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, D, 2, 2)
        self.time = nn.Sequential(nn.Linear(8, D), nn.SiLU(), nn.Linear(D, D))
        self.position = nn.Parameter(torch.randn(1, 16, D))
        self.blocks = nn.ModuleList(_DiTBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 16)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        condition = self.time(t)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(self.norm(x))


def _pair(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape, generator=_draws()) for shape in shapes)


@dataclass(frozen=True)
class Case:
    """A model with an input, and the number of symmetries that exist in it."""

    make: Callable[[], tuple[nn.Module, Any]]
    symmetries: int


_ATTENTION = 2 * D  # values and queries against keys, one scale for each channel
_ROTARY = VALUES + VALUES // 2  # the same with shared heads, and one scale for each rotary pair
_GATED = LAYERS * (2 * D + _ROTARY + FF) + D  # two norms, attention, gated MLP; the last norm
_PRE_NORM = LAYERS * (_ATTENTION + 2 * D)
SEGFORMER = (8, 16, 24, 32)

CASES: dict[str, Case] = {
    "gpt2": Case(lambda: (hf.GPT2LMHeadModel(hf.GPT2Config(
        n_embd=D, n_layer=LAYERS, n_head=HEADS, n_inner=FF, n_positions=16, **TEXT)), _tokens()), _PRE_NORM),
    "opt": Case(lambda: (hf.OPTForCausalLM(hf.OPTConfig(
        hidden_size=D, ffn_dim=FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS, word_embed_proj_dim=D, **SHORT,
        **TEXT)), _tokens()), _PRE_NORM + LAYERS * FF),
    "llama": Case(lambda: (hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **GROUPED, **TEXT)), _tokens()), _GATED),
    "mistral": Case(lambda: (hf.MistralForCausalLM(hf.MistralConfig(**SMALL, **GROUPED, **TEXT)), _tokens()), _GATED),
    "qwen2": Case(lambda: (hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, **GROUPED, **TEXT)), _tokens()), _GATED),
    "qwen3": Case(lambda: (hf.Qwen3ForCausalLM(hf.Qwen3Config(**SMALL, **GROUPED, head_dim=HEAD, **TEXT)), _tokens()),
                  LAYERS * (2 * D + VALUES + HEAD // 2 + FF) + D),  # gains of the QK-norm, shared by all heads
    "gemma2": Case(lambda: (hf.Gemma2ForCausalLM(hf.Gemma2Config(
        **SMALL, **GROUPED, head_dim=HEAD, **TEXT)), _tokens()), _GATED - D),  # the last norm feeds tied weights
    "mixtral": Case(lambda: (hf.MixtralForCausalLM(hf.MixtralConfig(
        **SMALL, **GROUPED, num_local_experts=EXPERTS, **TEXT)), _tokens()), _GATED + LAYERS * (EXPERTS - 1) * FF),
    "cohere": Case(lambda: (hf.CohereForCausalLM(hf.CohereConfig(
        **SMALL, num_key_value_heads=HEADS, **TEXT)), _tokens()), LAYERS * (D + D + D // 2 + FF)),
    "phi": Case(lambda: (hf.PhiForCausalLM(hf.PhiConfig(**SMALL, **TEXT)), _tokens()),
                LAYERS * (D + D + HEADS * (HEAD // 4 + HEAD // 2)) + D),  # half of each head is rotary
    "phi3": Case(lambda: (hf.Phi3ForCausalLM(hf.Phi3Config(**SMALL, **GROUPED, **TEXT)), _tokens()), _GATED),
    "bloom": Case(lambda: (hf.BloomForCausalLM(hf.BloomConfig(
        hidden_size=D, n_layer=LAYERS, n_head=HEADS, **TEXT)), _tokens()), _PRE_NORM),
    "falcon": Case(lambda: (hf.FalconForCausalLM(hf.FalconConfig(
        hidden_size=D, num_hidden_layers=LAYERS, num_attention_heads=HEADS, **TEXT)), _tokens()),
        LAYERS * (D + HEAD + HEAD // 2)),  # one head of keys and values, one norm for attention and MLP
    "gpt_neox": Case(lambda: (hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, **TEXT)), _tokens()),
                     LAYERS * (3 * D + HEADS * (HEAD // 8 + 3 * HEAD // 4)) + D),  # a quarter of each head is rotary
    "bert": Case(lambda: (hf.BertForSequenceClassification(hf.BertConfig(**SMALL, **SHORT, **TEXT)), _tokens()),
                 LAYERS * _ATTENTION + D),
    "distilbert": Case(lambda: (hf.DistilBertForSequenceClassification(hf.DistilBertConfig(
        dim=D, hidden_dim=FF, n_layers=LAYERS, n_heads=HEADS, **SHORT, **TEXT)), _tokens()),
        LAYERS * _ATTENTION + 2 * D),  # and a hidden ReLU layer of the head
    "roberta": Case(lambda: (hf.RobertaForSequenceClassification(hf.RobertaConfig(**SMALL, **SHORT, **TEXT)),
                             _tokens()), LAYERS * _ATTENTION + D),
    "t5": Case(lambda: (hf.T5ForConditionalGeneration(hf.T5Config(
        d_model=D, d_kv=HEAD, d_ff=FF, num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0, **TEXT)),
        {**_tokens(), **_decoder()}), 2 * _PRE_NORM + LAYERS * (_ATTENTION + D) + 2 * LAYERS * FF),
    "whisper": Case(_whisper, 2 * _PRE_NORM + LAYERS * (_ATTENTION + D)),
    "clip": Case(_clip, 2 * _PRE_NORM + D),
    "vit": Case(lambda: (hf.ViTForImageClassification(hf.ViTConfig(**SMALL, image_size=16, patch_size=8)),
                         _images(16)), _PRE_NORM + D),
    "swin": Case(lambda: (hf.SwinForImageClassification(hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)), _images(32)),
        2 * 4 * 16 + 4 * 16 + 2 * 4 * 32 + 32),  # two blocks of 16 channels, the merged patches, two of 32, last norm
    "segformer": Case(lambda: (hf.SegformerForSemanticSegmentation(hf.SegformerConfig(
        depths=[1] * 4, hidden_sizes=list(SEGFORMER), num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16,
        num_labels=3)), _images(64)),
        9 * sum(SEGFORMER) + sum(SEGFORMER[:3]) + 5 * 16),  # MLPs with a depthwise layer, reduced keys, decoder
    "wav2vec2": Case(_wav2vec2, LAYERS * _ATTENTION + D + 16),
    "mamba": Case(lambda: (hf.MambaForCausalLM(hf.MambaConfig(
        hidden_size=D, state_size=4, num_hidden_layers=LAYERS, expand=2, **TEXT)), _tokens()),
        LAYERS * (D + 2 * D + 2 + 4)),  # norm, input to depthwise convolution, step sizes, B against C
    "dit": Case(lambda: (DiT(), _pair((2, 4, 8, 8), (2, 8))), LAYERS * _ATTENTION + D),
    "nn_transformer": Case(lambda: (nn.Transformer(D, HEADS, LAYERS, LAYERS, FF, batch_first=True),
                                    _pair((2, 6, D), (2, 5, D))), LAYERS * (3 * _ATTENTION + 2 * FF) + D),
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, Any]:
    """A model in eval mode, every parameter away from zero, one and each other; and an input for it."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, example_input = CASES[name].make()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model.eval(), example_input


def outputs(model: nn.Module, example_input: Any, training: bool) -> list[Tensor]:
    """Outputs in a mode, with the same random draws each time; the model is left as it was."""
    config = getattr(model, "config", None)
    experts = getattr(config, "_experts_implementation", None)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    args, kwargs = as_arguments(example_input)
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    try:
        model.train(training)
        if experts is not None and config is not None:
            config._experts_implementation = "eager"  # grouped products know no float64
        with torch.no_grad(), untouched(model), without_cache(model):
            found = outputs_in(functional_call(model, buffers, args, kwargs))
    finally:
        model.eval()
        if experts is not None and config is not None:
            config._experts_implementation = experts
    return [t for t in found if t.is_floating_point()]


def change(before: list[Tensor], after: list[Tensor]) -> float:
    """Largest change of an output relative to its largest entry."""
    return max(float((b - a).abs().amax() / b.abs().amax()) for b, a in zip(before, after, strict=True))


@dataclass(frozen=True)
class Row:
    """The results of one model."""

    model: str
    symmetries: int
    free: int
    eval_error: float
    train_error: float
    moved: int
    float32_error: float
    seconds: float
    frozen: dict[str, int]
    notes: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """What is wrong with the model, if anything."""
        limit = EXACT[torch.float32 if self.model in ROUNDED else torch.float64]
        found = (
            [f"{self.free} of {self.symmetries} symmetries are free"] if self.free < ENOUGH * self.symmetries else []
        )
        for mode, error in (("eval", self.eval_error), ("training", self.train_error)):
            found += [f"outputs in {mode} mode changed by {error:.1e}"] if not error <= limit else []
        return found + ([f"rescale_ changed outputs by {self.float32_error:.1e}"] if self.float32_error > CLOSE else [])

    def cells(self) -> list[str]:
        """The row's text, in the order of :data:`COLUMNS`."""
        return [
            self.model, f"{self.free} of {self.symmetries}", str(self.moved),
            f"{max(self.eval_error, self.train_error):.0e}", f"{self.float32_error:.0e}", f"{self.seconds:.1f}",
        ]  # fmt: skip


ROUNDED = {"gemma2", "mamba", "cohere"}  # their norms or scans compute in float32 behind the scaled parameters
COLUMNS = ("model", "free scales", "moved", "float64", "float32", "seconds")


def check(name: str) -> Row:
    """Rescale one model at random and by the whole solution, and compare outputs."""
    model, example_input = build(name)
    model = model.double()
    wide = map_leaves(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, example_input)
    graph = pathcond.extract_graph(model, wide)
    before = [outputs(model, wide, training) for training in (False, True)]
    u = torch.randn(graph.units, dtype=torch.float64, generator=_draws())
    pathcond.apply_scales_(model, graph, u)
    errors = [change(b, outputs(model, wide, training)) for b, training in zip(before, (False, True), strict=True)]
    model, example_input = build(name)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pathcond.PathCondWarning)
        report = pathcond.rescale_(model, example_input, damping=1.0)
    seconds = time.perf_counter() - start
    counts: dict[str, int] = {}
    for entry in graph.frozen:
        counts[entry.reason] = counts.get(entry.reason, 0) + entry.units
    frozen = dict(sorted(counts.items(), key=lambda item: -item[1])[:3])
    return Row(
        name, CASES[name].symmetries, graph.units, errors[0], errors[1], report.moved, report.output_change or 0.0,
        seconds, frozen, graph.notes,
    )  # fmt: skip


# ---- models of 1e9 parameters and more

RECORD = Path(__file__).parents[1] / "benchmarks/records/large.json"
LARGE: dict[str, Callable[[], nn.Module]] = {
    "gpt2_xl": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
    "llama_1b": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4)),
    "llama_8b": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8)),
}  # fmt: skip


def measure_large(name: str, device: str) -> dict[str, Any]:
    """Time and peak extra memory of the graph on the meta device, or of ``rescale_`` in float32 on a device.

    Times are seconds of the processor on ``meta`` and ``cpu``, wall time on ``cuda``.
    """
    from benchmarks.rescale import hardware, peak_memory

    clock = time.perf_counter if device == "cuda" else time.process_time
    inputs = torch.randint(3, 1000, (2, 32), generator=_draws())
    pathcond.rescale_(build("llama")[0], _tokens())  # loads modules that are imported on first use
    torch.manual_seed(0)
    with torch.device(device):
        model = LARGE[name]().eval()
    row: dict[str, Any] = {"model": name, "device": device, "parameters": sum(p.numel() for p in model.parameters())}
    example_input = {"input_ids": inputs if device == "meta" else inputs.to(device)}
    report: list[pathcond.Rescaling] = []
    start = clock()
    if device == "meta":
        extra = peak_memory(lambda: row.update(_counts(pathcond.extract_graph(model, example_input))), "cpu")
    else:
        extra = peak_memory(lambda: report.append(pathcond.rescale_(model, example_input, damping=1.0)), device)
        row |= _counts(report[0].graph) | {"moved": report[0].moved, "change": report[0].output_change}
    row |= {"seconds": clock() - start, "extra_gib": extra / 2**30}
    return row | {"hardware": hardware("cuda" if device == "cuda" else "cpu")}


def _counts(graph: pathcond.ScaleGraph) -> dict[str, int]:
    return {"free": graph.units, "frozen": graph.frozen_units}


def large_table() -> str:
    """The recorded rows of large models; nothing without a record."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    heads = ("model", "parameters", "measured", "free", "frozen", "moved", "change", "seconds", "extra memory")
    cells = [
        (row["model"], f"{row['parameters'] / 1e9:.2f}e9",
         "graph, no weights" if row["device"] == "meta" else f"`rescale_` ({row['hardware'].partition(';')[0]})",
         str(row["free"]), str(row["frozen"]), str(row.get("moved", "")),
         f"{row['change']:.0e}" if "change" in row else "", f"{row['seconds']:.1f}", f"{row['extra_gib']:.1f} GiB")
        for row in rows
    ]  # fmt: skip
    if not rows:
        return ""
    # A column that no row fills is left out.
    used = [i for i in range(len(heads)) if any(line[i] for line in cells)]
    lines = [[line[i] for i in used] for line in (heads, ["---"] * len(heads), *cells)]
    text = (
        "## Large models\n\nRandom weights in float32, two sequences of 32 tokens; made by "
        "`python -m tests.transformers_zoo --large DEVICE`. `graph, no weights`: `extract_graph` on the meta device. "
        "`seconds`: CPU time, or wall time on a GPU. `extra memory`: peak above the memory of the weights.\n\n"
    )
    return text + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record_large(pattern: str, device: str) -> None:
    """Measure large models and put their rows into the record."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    for name in fnmatch.filter(LARGE, pattern):
        row = measure_large(name, device)
        print(row, flush=True)
        rows = [old for old in rows if (old["model"], old["device"]) != (name, device)] + [row]
        rows.sort(key=lambda r: (list(LARGE).index(r["model"]), r["device"] != "meta", r["device"]))
        RECORD.write_text(json.dumps(rows, indent=1) + "\n")


def markdown(rows: list[Row]) -> str:
    """The table, the notes of the graphs, and the large models."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    notes = [f"- `{row.model}`: {note.partition(' Expected')[0]}" for row in rows for note in row.notes]
    models: dict[str, list[str]] = {}
    for row in rows:
        for reason, units in row.frozen.items():
            models.setdefault(re.sub(r" '[^']*'", "", reason), []).append(f"{row.model} {units}")
    frozen = [f"- {reason}: {', '.join(found)}" for reason, found in models.items()]
    head = (
        f"Tiny models with random weights, torch {torch.__version__.partition('+')[0]}, transformers {hf.__version__}; "
        "made by `python -m tests.transformers_zoo --table docs/transformers.md`.\n\n"
        "`free scales`: those that the library finds, of the exact scales that exist by the configuration. `moved`: "
        "units that `rescale_` with `damping=1` moved. `float64`: change of the output under random scales, the larger "
        "of eval and training mode. `float32`: change of the output after that call, which took `seconds`. "
        + ", ".join(f"`{name}`" for name in sorted(ROUNDED))
        + " compute parts of their forward pass in float32 for weights of any dtype."
    )
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    reasons = "\n".join(["Hidden units that are frozen, by their reason (at most three for each model):", "", *frozen])
    remarks = "\n".join(["Notes:", "", *notes]) if notes else ""
    parts = ["# Transformers", head, table, reasons, remarks, large_table()]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Go through the models; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="*", metavar="PATTERN", help="shell pattern of model names")
    parser.add_argument("--table", type=Path, metavar="PATH", help="write the table there, as markdown")
    parser.add_argument("--large", choices=("meta", "cpu", "cuda"), help="measure large models there instead")
    options = parser.parse_args(arguments)
    if options.large:
        record_large(options.only, options.large)
        return 0
    rows = []
    for name in fnmatch.filter(CASES, options.only):
        row = check(name)
        rows.append(row)
        print("  ".join(row.cells()), *row.faults, sep="  ", flush=True)
    if options.table:
        options.table.write_text(markdown(rows))
    return int(not rows or any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())

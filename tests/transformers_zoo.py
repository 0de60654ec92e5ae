"""Transformers: rescale random models of Hugging Face's classes, a DiT and nn.Transformer, and compare outputs.

Each architecture is measured at a tiny size and at the size of a published model. For each model the table states how
many symmetries exist, counted from the configuration by the list of exact scales (values to output projection, queries
against keys, gains of norms to the layers that read them, hidden channels of ReLU and gated MLPs), how
many of them ``extract_graph`` finds, and by how much outputs change

1. in float32, under ``pathcond.rescale_`` with all of ten sweeps (``damping=1``);
2. in float64, under random scales (log-scales normal, standard deviation 1), in eval and in training mode.

``python -m tests.transformers_zoo`` measures the tiny models, ``--real cpu`` and ``--real cuda`` those of published
sizes, ``--real meta`` their graphs alone, without their weights. Each row goes to
``benchmarks/records/transformers.json``, from where ``docs/transformers.md`` is written.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import pathcond
from pathcond.apply import scale_parameters_
from pathcond.output_check import trial
from pathcond.registry import tiny_model, tiny_sizes
from tests.cases import CastsToFloat64, change, changes_under_random_scales, outputs_in_mode

hf: Any = transformers  # its configuration classes take more than their signatures tell
ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks/records/transformers.json", ROOT / "docs/transformers.md"
CAUSAL = ROOT / "benchmarks/records/causal_models.json"
EXACT = 1.0e-9  # largest change in float64
CLOSE = 1.0e-4  # largest change under rescale_ in float32
ENOUGH = 0.8  # share of the existing symmetries that must be free


# ---- inputs


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _tokens(length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 64, (2, length), generator=torch.Generator().manual_seed(1))}


def _decoder(length: int) -> dict[str, Tensor]:
    return {"decoder_input_ids": _tokens(length - 2)["input_ids"]}


def _images(c: Any, length: int) -> dict[str, Tensor]:
    return {"pixel_values": _normal(2, 3, c.image_size, c.image_size)}


# ---- symmetries that exist, by configuration


def _layers(c: Any) -> int:
    return c.num_hidden_layers


def _head(c: Any) -> int:
    return getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads


def _last(c: Any) -> int:
    """Gains of the last norm: free, unless it feeds weights that the embedding uses too."""
    return 0 if c.tie_word_embeddings else c.hidden_size


def _pre_norm(c: Any) -> int:
    """Two norms, values, and queries against keys: one scale for each channel."""
    return _layers(c) * 4 * c.hidden_size


def _attention(c: Any) -> int:
    """Values, and queries against keys; behind each addition follows a norm, whose gains are frozen."""
    return _layers(c) * 2 * c.hidden_size


def _grouped(c: Any) -> int:
    """The same where query heads share keys and values, with one scale for each rotary pair."""
    values = c.num_key_value_heads * _head(c)
    return values + values // 2


def _gated(c: Any) -> int:
    """Two norms, attention, gated MLP; the last norm."""
    return _layers(c) * (2 * c.hidden_size + _grouped(c) + c.intermediate_size) + _last(c)


def _partly_rotary(c: Any) -> int:
    """Queries against keys where only the first channels of each head are rotary."""
    rotary = int(c.rope_parameters["partial_rotary_factor"] * _head(c))
    return c.num_attention_heads * (rotary // 2 + _head(c) - rotary)


def _t5(c: Any) -> int:
    attention, mlp = 2 * c.num_heads * c.d_kv + c.d_model, c.d_ff + c.d_model
    return c.num_layers * (attention + mlp) + c.num_decoder_layers * (2 * attention + mlp)


def _swin(c: Any) -> int:
    """Blocks of each stage, the merged patches between stages, the last norm."""
    widths = [c.embed_dim * 2**stage for stage in range(len(c.depths))]
    blocks = sum(4 * width * depth for width, depth in zip(widths, c.depths, strict=True))
    return blocks + sum(4 * width for width in widths[:-1]) + widths[-1]


def _segformer(c: Any) -> int:
    """Blocks (norms, attention, an MLP with a depthwise layer, the norm of reduced keys), stages, decoder."""
    stages = zip(c.hidden_sizes, c.depths, c.mlp_ratios, c.sr_ratios, strict=True)
    encoder = sum(width * (depth * (4 + ratio + (reduced > 1)) + 1) for width, depth, ratio, reduced in stages)
    return encoder + (len(c.depths) + 1) * c.decoder_hidden_size


# ---- models


class _DiTBlock(nn.Module):
    """Attention and an MLP, both shifted, scaled and gated by the condition (AdaLN)."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        width, self.heads = c.hidden_size, c.num_attention_heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, c.intermediate_size), nn.Linear(c.intermediate_size, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).reshape(*y.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y)))


class DiT(nn.Module):
    """A diffusion transformer on latents of four channels in patches of 2x2."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        width = c.hidden_size
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(c.frequencies, width), nn.SiLU(), nn.Linear(width, width))
        self.position = nn.Parameter(torch.randn(1, (c.image_size // 2) ** 2, width))
        self.blocks = nn.ModuleList(_DiTBlock(c) for _ in range(c.num_hidden_layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        condition = self.time(t)
        for block in self.blocks:
            x = block(x, condition)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Architecture:
    """A family of models: a class of transformers or a function, the symmetries that exist, its inputs.

    ``tiny`` are the sizes of the tiny model that :func:`pathcond.registry.tiny_sizes` does not know.
    """

    model: Callable[[Any], nn.Module] | str
    symmetries: Callable[[Any], int]
    inputs: Callable[[Any, int], Any] = lambda c, length: _tokens(length)
    tiny: dict[str, Any] = field(default_factory=dict)


def _sizes(width: int, mlp: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": width, "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, **more}


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture("GPT2LMHeadModel", _pre_norm),
    "opt": Architecture("OPTForCausalLM", lambda c: _pre_norm(c) + _layers(c) * c.ffn_dim),
    "llama": Architecture("LlamaForCausalLM", _gated),
    "mistral": Architecture("MistralForCausalLM", _gated),
    "qwen2": Architecture("Qwen2ForCausalLM", _gated),
    "qwen3": Architecture(  # gains of the QK-norm, shared by all heads
        "Qwen3ForCausalLM", lambda c: _gated(c) - _layers(c) * (c.num_key_value_heads - 1) * (_head(c) // 2)),
    "gemma2": Architecture("Gemma2ForCausalLM", _gated),
    "mixtral": Architecture(
        "MixtralForCausalLM", lambda c: _gated(c) + _layers(c) * (c.num_local_experts - 1) * c.intermediate_size),
    "cohere": Architecture(  # one norm for attention and MLP
        "CohereForCausalLM", lambda c: _gated(c) - _layers(c) * c.hidden_size, tiny={"num_key_value_heads": 4}),
    "phi": Architecture(  # one norm for attention and MLP
        "PhiForCausalLM", lambda c: _layers(c) * (2 * c.hidden_size + _partly_rotary(c)) + _last(c),
        tiny={"num_key_value_heads": 4}),
    "phi3": Architecture("Phi3ForCausalLM", _gated),
    "bloom": Architecture("BloomForCausalLM", _pre_norm),
    "falcon": Architecture(  # one head of keys and values, one norm for attention and MLP
        "FalconForCausalLM", lambda c: _layers(c) * (c.hidden_size + _head(c) + _head(c) // 2)),
    "gpt_neox": Architecture(
        "GPTNeoXForCausalLM", lambda c: _layers(c) * (3 * c.hidden_size + _partly_rotary(c)) + _last(c)),
    "nemotron": Architecture(  # no scale crosses its squared ReLU
        "NemotronForCausalLM",
        lambda c: _layers(c) * (
            2 * c.hidden_size + c.num_key_value_heads * _head(c)
            + _partly_rotary(c) * c.num_key_value_heads // c.num_attention_heads) + _last(c)),
    "bert": Architecture("BertForSequenceClassification", lambda c: _attention(c) + c.hidden_size),
    "distilbert": Architecture(  # and a hidden ReLU layer of the head
        "DistilBertForSequenceClassification", lambda c: _attention(c) + 2 * c.hidden_size,
        tiny={"dim": 32, "hidden_dim": 48}),
    "roberta": Architecture("RobertaForSequenceClassification", lambda c: _attention(c) + c.hidden_size),
    "t5": Architecture(
        "T5ForConditionalGeneration", _t5, lambda c, length: {**_tokens(length), **_decoder(length)},
        {"d_kv": 8, "d_ff": 48, "decoder_start_token_id": 0}),
    "whisper": Architecture(
        "WhisperForConditionalGeneration", lambda c: c.d_model * (4 * c.encoder_layers + 7 * c.decoder_layers),
        lambda c, length: {
            "input_features": _normal(2, c.num_mel_bins, 2 * c.max_source_positions), **_decoder(length)},
        {"max_source_positions": 10, "max_target_positions": 16, "num_key_value_heads": 4,
         "decoder_start_token_id": 0}),
    "clip": Architecture(
        "CLIPModel",
        lambda c: _pre_norm(c.text_config) + _pre_norm(c.vision_config) + c.vision_config.hidden_size,
        lambda c, length: {**_tokens(length), **_images(c.vision_config, length)},
        {"text_config": _sizes(32, 48, 2, 4, vocab_size=64, max_position_embeddings=16, bos_token_id=0, eos_token_id=1),
         "vision_config": _sizes(32, 48, 2, 4, image_size=16, patch_size=8), "projection_dim": 16}),
    "vit": Architecture("ViTForImageClassification", lambda c: _pre_norm(c) + c.hidden_size, _images,
                        {"image_size": 16, "patch_size": 8}),
    "swin": Architecture(
        "SwinForImageClassification", _swin, _images,
        {"image_size": 32, "embed_dim": 16, "depths": [2, 2], "window_size": 4,
         **dict.fromkeys(("num_heads", "num_attention_heads"), [2, 4])}),
    "segformer": Architecture(
        "SegformerForSemanticSegmentation", _segformer, _images,
        {"depths": [1] * 4, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4],
         "decoder_hidden_size": 16, "num_labels": 3, "image_size": 64}),
    "wav2vec2": Architecture(
        "Wav2Vec2ForCTC", lambda c: _attention(c) + c.hidden_size + c.conv_dim[-1],
        lambda c, length: {"input_values": _normal(2, 40 * math.prod(c.conv_stride))},
        {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_length": 2}),
    "mamba": Architecture(  # norm, input to depthwise convolution, step sizes, B against C
        "MambaForCausalLM",
        lambda c: _layers(c) * (c.hidden_size + c.intermediate_size + c.time_step_rank + c.state_size),
        tiny={"intermediate_size": 64, "state_size": 4}),
    "dit": Architecture(
        DiT, lambda c: _attention(c) + c.hidden_size,
        lambda c, length: (_normal(2, 4, c.image_size, c.image_size), _normal(2, c.frequencies)),
        _sizes(32, 48, 2, 4, image_size=8, frequencies=8)),
    "nn_transformer": Architecture(
        lambda c: nn.Transformer(c.hidden_size, c.num_attention_heads, c.num_hidden_layers, c.num_hidden_layers,
                                 c.intermediate_size, batch_first=True),
        lambda c: 3 * _attention(c) + 2 * _layers(c) * c.intermediate_size + c.hidden_size,
        lambda c, length: (_normal(2, length - 1, c.hidden_size), _normal(2, length - 2, c.hidden_size)),
        _sizes(32, 48, 2, 4)),
}  # fmt: skip
# Models of published sizes: their architecture, and where they differ from the defaults of its configuration class.
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2_124m": ("gpt2", {}),
    "gpt2_xl": ("gpt2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "opt_125m": ("opt", {}),
    "llama_1b": ("llama", _sizes(2048, 5632, 22, 32, num_key_value_heads=4)),  # TinyLlama
    "llama_8b": ("llama", _sizes(4096, 14336, 32, 32, num_key_value_heads=8, vocab_size=128256)),
    "mistral_7b": ("mistral", {}),
    "qwen2_0.5b": ("qwen2", _sizes(896, 4864, 24, 14, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3_0.6b": ("qwen3", _sizes(1024, 3072, 28, 16, num_key_value_heads=8, tie_word_embeddings=True)),
    "gemma2_2b": ("gemma2", {}),
    "mixtral_8x7b": ("mixtral", {}),
    "aya_8b": ("cohere", _sizes(4096, 14336, 32, 32, num_key_value_heads=8)),
    "phi_1": ("phi", {}),
    "phi3_mini": ("phi3", {}),
    "bloom_560m": ("bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}),
    "falcon_7b": ("falcon", {}),
    "pythia_160m": ("gpt_neox", _sizes(768, 3072, 12, 12, vocab_size=50304)),
    "minitron_4b": ("nemotron", _sizes(3072, 9216, 32, 24, num_key_value_heads=8, head_dim=128)),
    "bert_base": ("bert", {}),
    "distilbert_base": ("distilbert", {}),
    "roberta_base": ("roberta", {"max_position_embeddings": 514, "type_vocab_size": 1}),
    "t5_small": ("t5", {"decoder_start_token_id": 0}),
    "whisper_base": ("whisper", {
        "d_model": 512, "decoder_start_token_id": 0, **dict.fromkeys(("encoder_layers", "decoder_layers"), 6),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 8),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 2048)}),
    "clip_vit_b32": ("clip", {}),
    "vit_b16": ("vit", {"num_labels": 1000}),
    "swin_t": ("swin", {"num_labels": 1000}),
    "segformer_b0": ("segformer", {"num_labels": 150, "image_size": 512}),
    "wav2vec2_base": ("wav2vec2", {}),
    "mamba_130m": ("mamba", {"num_hidden_layers": 24}),
    "dit_s2": ("dit", _sizes(384, 1536, 12, 6, image_size=32, frequencies=256)),
    "nn_transformer_base": ("nn_transformer", _sizes(512, 2048, 6, 8)),
}  # fmt: skip


def config_of(name: str) -> Any:
    """The configuration of a model of a published size, or of a tiny one, which has its architecture's name."""
    architecture_name, sizes = REAL.get(name, (name, {}))
    architecture = ARCHITECTURES[architecture_name]
    if callable(architecture.model):
        return SimpleNamespace(**(sizes or architecture.tiny))
    kind = getattr(hf, architecture.model).config_class
    if name in ARCHITECTURES:
        shorter = {"max_position_embeddings": 16, "n_positions": 16}
        sizes = {key: shorter.get(key, size) for key, size in tiny_sizes(kind).items()}
        for key in ("tie_word_embeddings", "use_cache"):
            sizes.pop(key, None)  # as its class has it
        sizes |= architecture.tiny
    return kind(**sizes)


def build(name: str, device: str = "cpu") -> tuple[nn.Module, Any, int]:
    """A model in eval mode, every parameter away from zero, one and each other; an input; the symmetries that exist."""
    config, tiny = config_of(name), name in ARCHITECTURES
    architecture = ARCHITECTURES[name if tiny else REAL[name][0]]
    make = architecture.model if callable(architecture.model) else getattr(hf, architecture.model)
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.device(device):
        warnings.simplefilter("ignore")
        model = make(config).eval()
    if device != "meta":
        with torch.no_grad():
            for p in model.parameters():
                if tiny or p.ndim < 2:  # in larger models matrices of this size would saturate softmax
                    p.add_(torch.randn_like(p), alpha=0.2)
    example_input = architecture.inputs(config, 7 if tiny else 32)
    example_input = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, example_input)
    return model, example_input, architecture.symmetries(config)


# ---- measurement


@dataclass(frozen=True)
class Row:
    """The results of one model; None for what was not measured.

    ``rounding`` is the difference between outputs in float32 and in float64 with the same weights. Some models amplify
    rounding; there the change under ``rescale_`` in float32 may be larger.
    """

    model: str
    device: str
    parameters: int
    symmetries: int
    free: int
    seconds: float
    hardware: str
    moved: int | None = None
    eval_error: float | None = None
    train_error: float | None = None
    float32_error: float | None = None
    rounding: float | None = None
    extra_gib: float | None = None

    @property
    def faults(self) -> list[str]:
        """What is wrong with the model, if anything."""
        found = (
            [f"{self.free} of {self.symmetries} symmetries are free"] if self.free < ENOUGH * self.symmetries else []
        )
        for where, error, limit in (
            ("eval mode", self.eval_error, EXACT), ("training mode", self.train_error, EXACT),
            ("float32 by rescale_", self.float32_error, max(CLOSE, 10 * (self.rounding or 0.0))),
        ):  # fmt: skip
            found += [f"outputs changed by {error:.1e} in {where}"] if error is not None and not error <= limit else []
        return found


def check(name: str, device: str = "cpu") -> Row:
    """Rescale one model by all of ten sweeps and at random, and compare outputs; on ``meta`` its graph alone.

    Times are seconds of the processor on ``meta`` and ``cpu``, wall time on ``cuda``.
    """
    from benchmarks.rescale import hardware, peak_memory

    gc.collect()  # models hold references in cycles
    model, example_input, symmetries = build(name, device)
    clock = time.perf_counter if device == "cuda" else time.process_time
    graphs: list[pathcond.ScaleGraph] = []
    measured: dict[str, Any] = {}

    def work() -> None:
        if device == "meta":
            graphs.append(pathcond.extract_graph(model, example_input))
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pathcond.PathCondWarning)
            report = pathcond.rescale_(model, example_input, damping=1.0)
        measured.update(moved=report.moved, float32_error=report.output_change)
        graphs.append(report.graph)

    start = clock()
    if device == "cuda":
        measured["extra_gib"] = peak_memory(work, device) / 2**30
    else:
        work()
    seconds = clock() - start
    parameters = sum(p.numel() for p in model.parameters())
    (graph,) = graphs
    if device != "meta":
        rounded = outputs_in_mode(model, example_input, False)
        model = model.double()
        if hasattr(model, "config"):
            model.config._experts_implementation = "eager"  # grouped products know no float64
        wide = tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, example_input)
        before, errors = changes_under_random_scales(model, wide, graph, 1)
        measured.update(rounding=change(before[0], rounded), eval_error=errors[0], train_error=errors[1])
    return Row(
        name, device, parameters, symmetries, graph.units, seconds,
        f"{hardware('cuda' if device == 'cuda' else 'cpu')}; transformers {hf.__version__}",
        **measured,
    )  # fmt: skip


# ---- every causal language model of transformers


@dataclass(frozen=True)
class CausalModel:
    """A tiny random model of one type: all of its free scale groups scaled at once by random powers of two.

    ``fault`` is empty, or why the model was not built, or why it was refused. ``dtype`` is float64, or float32 where
    the model's kernels take nothing else; there ``rounding`` is the change by rounding the weights differently.
    """

    model_type: str
    fault: str = ""
    built: bool = True
    groups: int = 0
    free: int = 0
    change: float | None = None
    dtype: str = ""
    rounding: float | None = None

    @property
    def exact(self) -> bool:
        """Whether the function was kept, up to rounding where the model cannot run in float64."""
        return self.change is not None and self.change <= max(EXACT, 10 * (self.rounding or 0.0))


def causal_types() -> list[str]:
    """The types of all causal language models of the installed transformers."""
    return sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def check_causal(model_type: str) -> CausalModel:
    """Build a tiny model, analyze it, and scale all of its free groups."""
    try:
        model, example_input = tiny_model(model_type)
        with torch.no_grad():
            model(**example_input)
    except Exception as error:  # noqa: BLE001 - the sizes do not fit this type
        return CausalModel(model_type, f"{type(error).__name__}: {error}".split("\n")[0][:160], built=False)
    try:
        groups = pathcond.scale_groups(model, example_input).free
    except pathcond.RecordError as error:
        return CausalModel(model_type, str(error).partition(" Expected")[0])
    if not groups or groups[0]._source is None:
        return CausalModel(model_type, change=0.0)
    graph = groups[0]._source[-1]
    drawn = torch.randint(4, (graph.units,), generator=torch.Generator().manual_seed(0))
    u = math.log(2) * torch.tensor([-2.0, -1.0, 1.0, 2.0], dtype=torch.float64)[drawn]
    wide = tree_map(lambda x: x.double() if x.is_floating_point() else x, example_input)
    casts: Any = CastsToFloat64()
    try:
        with torch.no_grad(), casts:
            model.double()(**wide)
    except Exception:  # noqa: BLE001 - some kernels know no float64
        model.float()
        wide, casts = example_input, nullcontext()
    with casts, trial(model, wide, graph.params) as check:
        scale_parameters_(check.model, graph, u, force=False)
        change = check.change()
        kind = str(next(check.model.parameters()).dtype).removeprefix("torch.")
        rounding = check.noise(change) if change > EXACT and kind != "float64" else None
    return CausalModel(model_type, "", True, len(groups), graph.units, change, kind, rounding)


def recorded_causal() -> list[CausalModel]:
    """The causal language models that were measured."""
    return [CausalModel(**row) for row in json.loads(CAUSAL.read_text())]


def _causal_section(rows: list[CausalModel]) -> list[str]:
    built = [row for row in rows if row.built]
    analyzed = [row for row in built if not row.fault]
    cells = [
        (r.model_type, str(r.groups), str(r.free), _error(r.change), r.dtype, _error(r.rounding)) for r in analyzed
    ]
    refused = [f"- `{row.model_type}`: {row.fault}" for row in built if row.fault]
    missing = [f"- `{row.model_type}`: {row.fault}" for row in rows if not row.built]
    return [
        "## Causal language models",
        f"{len(rows)} of the {len(causal_types())} types of causal language models in transformers "
        f"{transformers.__version__} were tried. {len(built)} of them could be built tiny from "
        f"their configuration class; {len(analyzed)} of these are analyzed ({len(analyzed) / max(len(built), 1):.0%}), "
        f"and {sum(row.exact for row in analyzed)} keep their function when all free groups are scaled at once by "
        "random powers of two. Made by `make transformers CAUSAL=1`, in parts with `ONLY=`.",
        "`rounding` is given where the model does not run in float64 and its output changed: the change by rounding "
        "its weights differently.",
        _lines(("type", "groups", "free scales", "change", "in", "rounding"), cells),
        *(["Refused:", "\n".join(refused)] if refused else []),
        *(["Not built: sizes do not fit, or it is no text model:", "\n".join(missing)] if missing else []),
    ]


# ---- record and page


def recorded() -> list[Row]:
    """The rows that were measured, tiny models first."""
    return [Row(**row) for row in json.loads(RECORD.read_text())]


def record(row: Row) -> None:
    """Put a row into the record, in place of the earlier one of the same model and device."""
    rows = [old for old in recorded() if (old.model, old.device) != (row.model, row.device)] + [row]
    order = [*ARCHITECTURES, *REAL]
    rows.sort(key=lambda r: (order.index(r.model), r.device != "meta", r.device))
    RECORD.write_text("[\n" + ",\n".join(json.dumps(asdict(r)) for r in rows) + "\n]\n")


def _lines(heads: tuple[str, ...], cells: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ("---",) * len(heads), *cells))


def _error(*errors: float | None) -> str:
    return "" if None in errors else f"{max(e for e in errors if e is not None):.0e}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.model, f"{row.free} of {row.symmetries}", "" if row.moved is None else str(row.moved),
        _error(row.eval_error, row.train_error), _error(row.float32_error), f"{row.seconds:.1f}",
    )  # fmt: skip


def _real_cells(rows: list[Row]) -> list[tuple[str, ...]]:
    """A model of a published size: its graph without weights, and a line for each device that had its weights."""
    graphs = {row.model: f"{row.seconds:.1f}" for row in rows if row.device == "meta"}
    lines = []
    for row in [row for row in rows if row.device != "meta"] or rows:
        model, _, *cells = _cells(row)
        free = f"{row.free} ({row.free / row.symmetries:.0%})"
        memory = "" if row.extra_gib is None else f"{row.extra_gib:.1f}"
        place = "CPU" if row.device == "cpu" else "GPU"
        measured = [""] * 6 if row.device == "meta" else [*cells, memory, place]
        lines.append((model, f"{row.parameters / 1e6:,.0f}M", free, graphs.get(model, ""), *measured))
    return lines


def _hardware(rows: list[Row]) -> str:
    return "; ".join(dict.fromkeys(row.hardware for row in rows)).replace(", 1 threads", ", 1 thread")


def markdown(rows: list[Row]) -> str:
    """The page: tiny models, models of published sizes, all causal language models."""
    tiny, real = [row for row in rows if row.model in ARCHITECTURES], [row for row in rows if row.model in REAL]
    heads = ("model", "free scales", "moved", "float64", "float32", "seconds")
    by_model = [[row for row in real if row.model == name] for name in dict.fromkeys(row.model for row in real)]
    parts = [
        "# Transformers",
        f"Look up how many scales of a transformer can be changed without changing its function. There are "
        f"{len(ARCHITECTURES)} architectures with random weights, each tiny and at the size of a published model.",
        "- `free scales`: those that the library finds, of the scales that can be changed exactly; these are counted "
        "from the model's configuration (heads, widths, layers), without the library.\n"
        "- `moved`: units that `rescale_` with `damping=1` moved. Queries against keys often stay: paths end at the "
        "softmax, and where both start at the same norm the solution is a scale of 1.\n"
        "- `float64`: change of the output under random scales, the larger of eval and training mode. Casts to float32 "
        "in a model's code are casts to float64 here.\n"
        "- `float32`: change of the output after `rescale_`, which took `seconds` (CPU time, or wall time on a GPU). "
        "Some models amplify rounding, so that float32 and float64 differ by as much with the same weights.",
        "## Tiny models",
        "Made by `make transformers`.",
        _lines(heads, [_cells(row) for row in tiny]),
        f"Measured with {_hardware(tiny)}.",
        "## Published sizes",
        "Text models read two sequences of 32 tokens, the others two inputs of their full size (`wav2vec2_base`: 0.8 s "
        "of sound). Made by `make transformers` with `REAL=meta`, `REAL=cpu` and `REAL=cuda`; `ONLY=PATTERN` for some:",
        "- `size`, the number of parameters, `free`, the scales of `free scales`, and `graph`, the seconds of "
        "`extract_graph` on a model without weights: by `REAL=meta`.\n"
        "- The other columns: by `REAL=cpu` or `REAL=cuda`. `GiB` is the peak of a GPU's memory above that of "
        "the weights. Empty cells were not measured; `mixtral_8x7b` does not fit on one GPU in float32.",
        _lines(
            ("model", "size", "free", "graph", *heads[2:], "GiB", "on"),
            [line for found in by_model for line in _real_cells(found)],
        ),
        f"Measured with {_hardware(real)}.",
        *_causal_section(recorded_causal()),
    ]
    return "\n\n".join(parts) + "\n"


def _measure_causal(patterns: list[str]) -> int:
    """Measure causal language models one by one, and write the record and the page after each."""
    rows = {row.model_type: row for row in recorded_causal()}
    for model_type in [name for name in causal_types() if any(fnmatch.fnmatch(name, p) for p in patterns)]:
        row = rows[model_type] = check_causal(model_type)
        print(row, flush=True)
        lines = [json.dumps(asdict(rows[name])) for name in causal_types() if name in rows]
        CAUSAL.write_text("[\n" + ",\n".join(lines) + "\n]\n")
        PAGE.write_text(markdown(recorded()))
    return int(any(row.built and not row.fault and not row.exact for row in rows.values()))


def main(arguments: list[str] | None = None) -> int:
    """Measure models, record their rows and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="shell patterns of model names")
    parser.add_argument("--real", choices=("meta", "cpu", "cuda"), help="measure published sizes there, not tiny ones")
    parser.add_argument("--causal", action="store_true", help="every causal language model of transformers, tiny")
    options = parser.parse_args(arguments)
    if options.causal:
        return _measure_causal(options.only)
    sizes = REAL if options.real else ARCHITECTURES
    names = [name for name in sizes if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    if not names:
        parser.error(f"--only: expected a pattern of {', '.join(sizes)}; got {' '.join(options.only)}")
    check("llama", options.real or "cpu")  # loads what is loaded on first use
    faults = False
    for name in names:
        row = check(name, options.real or "cpu")
        record(row)
        faults |= bool(row.faults)
        print(*_cells(row), *row.faults, sep="  ", flush=True)
    PAGE.write_text(markdown(recorded()))
    return int(faults)


if __name__ == "__main__":
    sys.exit(main())

"""Check the mappings that quantization libraries ship: which of their entries keep a model's function.

Each architecture of transformers is built tiny, from its configuration class alone and with random weights; the
library's own code finds its entries and resolves them to modules; :func:`pathcond.verify_mapping` measures each.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from pathcond.checks import PathCondError, optional_package
from pathcond.groups import MappingCheck, groups_to_awq_mappings, scale_groups, verify_mapping

_module = partial(optional_package, purpose="this check")


# ---- tiny models of any architecture

_TINY: dict[str, Any] = {
    "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
    "use_cache": False, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 16, "d_model": 32,
    "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_layers": 2, "n_heads": 4,
    "max_seq_len": 64, "ffn_dim": 48, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_layers": 2, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "word_embed_proj_dim": 32, "emb_dim": 32, "embedding_size": 32, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "num_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2,
    "moe_num_shared_experts": 1, "moe_topk": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "num_dense_layers": 1, "decoder_sparse_step": 1, "shared_intermediate_size": 16, "intermediate_size_mlp": 48,
    "router_jitter_noise": 0.0, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "index_topk": 4, "index_n_heads": 2, "index_head_dim": 16, "state_size": 8, "ssm_state_size": 8,
    "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_num_heads": 4, "mamba_head_dim": 16,
    "mamba_dt_rank": 4, "n_groups": 1, "mamba_chunk_size": 8, "chunk_size": 8, "use_mamba_kernels": False,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "rotary_dim": 4,
    "hidden_size_global": 32, "mm_embed_dim": 32, "laurel_rank": 4, "max_source_positions": 16, "num_mel_bins": 8,
}  # fmt: skip
# What the names above leave open: sizes that must fit one another, one layer of each kind.
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"layer_types": ..., "attn_layer_indices": [1]},
    "nemotron_h": {"moe_shared_expert_intermediate_size": 16},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "gemma3_text": {"query_pre_attn_scalar": 8},
    "llama4_text": {"interleave_moe_layer_step": 2, "attention_chunk_size": 16, "no_rope_layers": [1, 0]},
    "falcon_h1": {"layer_types": ..., "mamba_d_ssm": 32, "mamba_d_head": 8},
    "mamba2": {"head_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "zamba2": {"layer_types": ..., "num_hidden_layers": 3, "layers_block_type": ["mamba", "mamba", "hybrid"],
               "attention_head_dim": 16, "n_mamba_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"num_key_value_heads": 4, "expert_ffn_hidden_size": 16, "zero_expert_num": 2},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
                       "indexer_compress_ratio": 2, "hc_lowrank": 4},
    "reformer": {"is_decoder": True, "attn_layers": ["local", "lsh"], "axial_pos_shape": [4, 16],
                 "axial_pos_embds_dim": [8, 24], "attention_head_size": 8, "feed_forward_size": 48, "hash_seed": 0,
                 "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8},
    "roc_bert": {"pronunciation_vocab_size": 64, "shape_vocab_size": 64, "pronunciation_embed_dim": 16,
                 "shape_embed_dim": 16},
    "xlnet": {"d_inner": 48},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
             "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    **dict.fromkeys(("qwen2_5_vl_text", "qwen2_5_omni_text"), {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}),
    **dict.fromkeys(("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite",
                     "glm_moe_dsa", "kimi_linear", "mistral4", "youtu", "minicpm3"),
                    {"head_dim": ..., "num_key_value_heads": 4}),
}  # fmt: skip
_LARGEST = 20_000_000  # parameters


def model_class(name: str) -> Any:
    """The class of transformers with this name, or that of the causal language model of this type."""
    transformers = _module("transformers")
    if name in transformers.CONFIG_MAPPING:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[name]]
    found = getattr(transformers, name, None)
    if found is None:
        raise PathCondError(f"expected a model type or class of transformers {transformers.__version__}, got '{name}'.")
    return found


def tiny_sizes(kind: Any, **special: Any) -> dict[str, Any]:
    """The arguments for a configuration class that make few small layers, one of each kind."""
    default = kind()
    known = {*default.to_dict(), *kind.attribute_map}
    sizes = {name: value for name, value in _TINY.items() if name in known}
    for name, part in kind.sub_configs.items():  # text, vision and audio have configurations of their own
        part = type(getattr(default, name, None)) if part.__name__ == "AutoConfig" else part
        if part is not type(None):
            sizes[name] = {"model_type": part.model_type, **tiny_sizes(part, **special)}
    sizes |= _SPECIAL.get(kind.model_type, {})
    sizes |= {name: value for name, value in special.items() if name in sizes}
    for name in ("layer_types", "mlp_layer_types"):
        found = getattr(default, name, None)
        if isinstance(found, list) and name in known and name not in sizes:
            kinds = list(dict.fromkeys(found))
            sizes[name] = (kinds * 2)[: max(2, len(kinds))]
            sizes["num_hidden_layers"] = max(len(sizes[name]), sizes.get("num_hidden_layers", 0))
    return {name: value for name, value in sizes.items() if value is not ...}


def tiny_model(name: str, **sizes: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A tiny model of a type or class with random weights in eval mode; an input longer than any sparse top-k."""
    kind = model_class(name)
    config = kind.config_class(**tiny_sizes(kind.config_class, **sizes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device("meta"):
            size = sum(p.numel() for p in kind(config).parameters())
        if size > _LARGEST:
            raise PathCondError(f"expected a tiny model of '{name}', got {size} parameters. Add its sizes.")
        torch.manual_seed(0)
        try:
            model = kind._from_config(config, attn_implementation="eager").eval()
        except ValueError:
            model = kind(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point():
                p.add_(torch.randn_like(p), alpha=0.1)
    rows = 2 * getattr(config, "num_codebooks", 1)
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 64, (rows, 16), generator=drawn)
    if model.main_input_name == "input_features":  # speech: a spectrum, and text to go on with
        shape = (rows, config.num_mel_bins, 2 * config.max_source_positions)
        return model, {"input_features": torch.randn(shape, generator=drawn), "decoder_input_ids": tokens}
    return model, {"input_ids": tokens}


# ---- the libraries


@dataclass(frozen=True)
class Registry:
    """How one list of a library is read.

    Attributes:
        module: where the library has the list.
        lists: names of the dictionaries there, from model classes to entries; other classes get a default.
        function: name of the function there that finds the entries for a model.
        resolve: the modules of an entry, by the library's own code: pairs of a smooth layer and its balance layers.
        offset: whether the library scales the sum in gains that are used as ``1 + weight``; else it converts them.
    """

    module: str
    lists: tuple[str, str]
    function: str
    resolve: Callable[[nn.Module, Any], list[tuple[str, list[str]]]]
    offset: bool = False

    def listed(self) -> set[str]:
        """The names of the model classes that the list has."""
        return {name for each in self.lists for name in getattr(_module(self.module), each)}

    def context(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Within it the model is as the library scales it."""
        if self.offset:
            return nullcontext()
        return _module("llmcompressor.modeling.offset_norm").norm_calibration_context(model)

    @staticmethod
    def prepare(model: nn.Module) -> None:
        """Change a model as the libraries do before they scale: experts into linear layers."""
        _module("llmcompressor.modeling.moe.linearize").linearize_moe(model)
        _module("compressed_tensors.offload").remove_dispatch(model)  # weights are parameters again
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.quantization_scheme = True  # type: ignore[assignment]  # its resolver skips what is not quantized


_COMPRESSOR = "llmcompressor.modifiers.transform."
_AUTO_ROUND = "auto_round.algorithms.transforms.awq.mappings"


def _resolve_awq(model: nn.Module, entry: Any) -> list[tuple[str, list[str]]]:
    modifier = _module(_COMPRESSOR + "awq").AWQModifier(mappings=[entry])
    modifier._set_resolved_mappings(model)
    return [(found.smooth_name, list(found.balance_names)) for found in modifier._resolved_mappings]


def _resolve_smoothquant(model: nn.Module, entry: Any) -> list[tuple[str, list[str]]]:
    modifier = _module(_COMPRESSOR + "smoothquant").SmoothQuantModifier(mappings=[entry])
    names = {id(module): name for name, module in model.named_modules()}
    try:
        found = modifier._resolve_mappings(model)
    except RuntimeError as error:
        raise error.__cause__ or error from None
    return [(each.smooth_name, [names[id(layer)] for layer in each.balance_layers]) for each in found]


def _resolve_auto_round(model: nn.Module, entry: Any) -> list[tuple[str, list[str]]]:
    found = _module(_AUTO_ROUND)._resolve_mapping_defs(model, [entry])
    return [(each.smooth_name, list(each.balance_names)) for each in found]


_AWQ_LISTS = ("AWQ_MAPPING_REGISTRY", "AWQ_DYNAMIC_MAPPING_REGISTRY")
REGISTRIES: dict[str, Registry] = {
    "llm-compressor awq": Registry(
        _COMPRESSOR + "awq.dynamic_mappings", _AWQ_LISTS, "get_layer_mappings_from_model", _resolve_awq),
    "llm-compressor smoothquant": Registry(
        _COMPRESSOR + "smoothquant.dynamic_mappings", ("MAPPINGS_REGISTRY", "SMOOTHQUANT_DYNAMIC_MAPPING_REGISTRY"),
        "get_layer_mappings_from_model", _resolve_smoothquant),
    "auto-round awq": Registry(_AUTO_ROUND, _AWQ_LISTS, "_get_mappings_for_model", _resolve_auto_round, offset=True),
}  # fmt: skip


# ---- the check


@dataclass(frozen=True)
class Finding:
    """One entry of a registry on one architecture.

    Attributes:
        registry: which list.
        model_type: the architecture, as transformers names it.
        model_class: the class of its causal language model.
        listed: whether the list names the architecture; else it gets a default.
        smooth: the smooth layer, without the number of the layer.
        balance: the balance layers, likewise.
        verdict: as :class:`pathcond.MappingCheck`; or ``refused`` by the library, ``not applicable`` if it finds no
            modules for the entry.
        change: the largest change of the function over the layers of the model.
        reason: of that layer.
        omitted: parameters that the entry does not scale, but must.
        layer: what precedes the names of that layer.
        correct: exact mappings of the same smooth or balance layers.
        sizes: arguments of :func:`tiny_sizes`.
    """

    registry: str
    model_type: str
    model_class: str
    listed: bool
    smooth: str
    balance: tuple[str, ...]
    verdict: str
    change: float | None = None
    reason: str = ""
    omitted: tuple[str, ...] = ()
    layer: str = ""
    correct: tuple[str, ...] = ()
    sizes: dict[str, Any] = field(default_factory=dict)


_LAYER = re.compile(r"^.*?\b(layers|h|blocks)\.\d+\.")


def short(name: str) -> str:
    """A module's name without the number of its layer, and with ``*`` for that of an expert."""
    return re.sub(r"\bexperts\.\d+\.", "experts.*.", _LAYER.sub("", name))


def _short(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(short, names)))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0]


def listed_models(registry: str) -> list[str]:
    """The model classes that a library lists, as far as transformers has them."""
    return sorted(name for name in REGISTRIES[registry].listed() if hasattr(_module("transformers"), name))


def check_registry(registry: str, model: str) -> list[Finding]:
    """Check the entries that a library has for one class or model type of transformers, on tiny models of it.

    Entries that find no modules where query heads share values are tried again with values for each head.
    """
    try:
        found = _check(registry, model)
        if again := [each.smooth for each in found if each.verdict == "not applicable"]:
            own_values = _check(registry, model, again, num_key_value_heads=_TINY["num_attention_heads"])
            found = [each for each in found if each.verdict != "not applicable"] + own_values
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return [Finding(registry, model, "", True, "", (), "not built", reason=_first_line(error))]
    return found


def _check(registry: str, name: str, wanted: Collection[str] = (), **sizes: Any) -> list[Finding]:
    """Findings for a model of these sizes: all, or those of the wanted smooth layers."""
    source = REGISTRIES[registry]
    model, example_input = tiny_model(name, **sizes)
    source.prepare(model)
    kind: Any = type(model)
    listed = kind.__name__ in source.listed()
    finding = partial(Finding, registry, kind.config_class.model_type, kind.__name__, listed, sizes=sizes)
    found: list[Finding] = []
    with source.context(model):
        groups = scale_groups(model, example_input)
        resolved: list[tuple[str, list[str]]] = []
        for entry in getattr(_module(source.module), source.function)(model):
            pattern = getattr(entry, "smooth_layer", None) or entry.smooth_layers
            if wanted and pattern not in wanted:
                continue
            try:
                pairs = source.resolve(model, entry)
            except Exception as error:  # noqa: BLE001 - whatever the library raises is its refusal
                found.append(finding(pattern, tuple(entry.balance_layers), "refused", reason=_first_line(error)))
                continue
            if not pairs:
                found.append(finding(pattern, tuple(entry.balance_layers), "not applicable"))
            resolved += pairs
        checks = verify_mapping(model, example_input, resolved, offset=source.offset, groups=groups)
        exact = groups_to_awq_mappings(groups)
    alike: dict[tuple[str, ...], list[MappingCheck]] = {}  # the same layers in other blocks
    for check in checks:
        key = (short(check.smooth_layer), *sorted({short(name) for name in check.balance_layers}), check.verdict)
        alike.setdefault(key, []).append(check)
    for same in alike.values():
        worst = max(same, key=lambda check: check.change or 0.0)
        layer = _LAYER.match(worst.smooth_layer)
        found.append(
            finding(
                smooth=short(worst.smooth_layer),
                balance=_short(worst.balance_layers),
                verdict=worst.verdict,
                change=worst.change,
                reason=worst.reason,
                omitted=_short(worst.omitted),
                layer=layer[0] if layer else "",
                correct=() if worst.exact else _correct(worst, exact),
            )
        )
    return found


def _correct(wrong: MappingCheck, exact: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The exact mappings that share the smooth layer or a balance layer of one that is not."""
    arrows = [
        f"{short(mapping['smooth_layer'])} -> {', '.join(_short(mapping['balance_layers']))}"
        for mapping in exact
        if mapping["smooth_layer"] == wrong.smooth_layer or {*wrong.balance_layers} & {*mapping["balance_layers"]}
    ]
    return tuple(dict.fromkeys(arrows))

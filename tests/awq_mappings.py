"""Published AWQ mappings of several architectures, as facts, and what :func:`pathcond.verify_mapping` finds for them.

A mapping is a list of (smooth layer, balance layers), by the names that the registries give. Sources: the registry of
llm-compressor (``modifiers/awq/mappings.py``) and AutoAWQ (``awq/models/*.py``, ``get_layers_for_scaling``). Run
``python -m tests.awq_mappings`` for the table of findings in ``docs/scale-groups.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import pathcond
from tests import transformers_zoo

Mapping = list[tuple[str, list[str]]]

_QKV = ["re:.*q_proj$", "re:.*k_proj$", "re:.*v_proj$"]
_DEFAULT: Mapping = [
    ("re:.*input_layernorm$", _QKV),
    ("re:.*v_proj$", ["re:.*o_proj$"]),
    ("re:.*post_attention_layernorm$", ["re:.*gate_proj$", "re:.*up_proj$"]),
    ("re:.*up_proj$", ["re:.*down_proj$"]),
]
_COMPRESSOR: dict[str, Mapping] = {
    "llama": _DEFAULT,
    "mistral": _DEFAULT,
    "qwen2": _DEFAULT,
    "qwen3": _DEFAULT,
    "gemma2": [
        ("re:.*input_layernorm$", _QKV),
        ("re:.*v_proj$", ["re:.*o_proj$"]),
        ("re:.*pre_feedforward_layernorm$", ["re:.*gate_proj$", "re:.*up_proj$"]),
        ("re:.*up_proj$", ["re:.*down_proj$"]),
    ],
    "phi3": [
        ("re:.*input_layernorm$", ["re:.*qkv_proj$"]),
        ("re:.*qkv_proj$", ["re:.*o_proj$"]),
        ("re:.*post_attention_layernorm$", ["re:.*gate_up_proj$"]),
        ("re:.*gate_up_proj$", ["re:.*down_proj$"]),
    ],
    "cohere": [
        (
            "re:.*input_layernorm$",
            [*(f"re:.*self_attn.{name}$" for name in ("q_proj", "k_proj", "v_proj")), "re:.*mlp.gate_proj$",
             "re:.*mlp.up_proj$"],
        ),
        ("re:.*v_proj$", ["re:.*o_proj$"]),
        ("re:.*up_proj$", ["re:.*down_proj$"]),
    ],
    "bloom": [
        ("re:.*input_layernorm$", ["re:.*query_key_value$"]),
        ("re:.*post_attention_layernorm$", ["re:.*dense_h_to_4h$"]),
        ("re:.*gelu_impl$", ["re:.*dense_4h_to_h$"]),
    ],
}  # fmt: skip
_AUTOAWQ: dict[str, Mapping] = {
    "opt": [
        ("self_attn_layer_norm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("self_attn.v_proj", ["self_attn.out_proj"]),
        (r"re:.*layers\.\d+\.final_layer_norm$", ["fc1"]),
        ("fc1", ["fc2"]),
    ],
    "phi": [
        ("input_layernorm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("self_attn.v_proj", ["self_attn.dense"]),
        ("input_layernorm", ["mlp.fc1"]),
        ("mlp.fc1", ["mlp.fc2"]),
    ],
    "falcon": [("input_layernorm", ["mlp.dense_h_to_4h", "self_attention.query_key_value"])],
    "gpt_neox": [
        ("input_layernorm", ["attention.query_key_value"]),
        ("post_attention_layernorm", ["mlp.dense_h_to_4h"]),
        ("mlp.act", ["mlp.dense_4h_to_h"]),
    ],
    "mixtral": [
        ("input_layernorm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("self_attn.v_proj", ["self_attn.o_proj"]),
        ("post_attention_layernorm", [r"re:.*block_sparse_moe\.experts\.\d+\.w[13]$"]),
        (r"re:.*block_sparse_moe\.experts\.\d+\.w3$", ["w2"]),
    ],
}  # fmt: skip
_AUTOAWQ["mixtral_modules"] = _AUTOAWQ["mixtral"][2:]  # on :class:`ExpertBlock`
PUBLISHED: dict[str, tuple[str, Mapping]] = {
    **{name: ("llm-compressor", mapping) for name, mapping in _COMPRESSOR.items()},
    **{name: ("AutoAWQ", mapping) for name, mapping in _AUTOAWQ.items()},
}


class _Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class _Experts(nn.Module):
    """Two of four experts for each token, chosen by a router that reads the same input."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(_Expert(width, hidden) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            weight = torch.where(chosen == index, weights, 0.0).sum(-1, keepdim=True)
            result = result + weight * expert(x)
        return result


class ExpertBlock(nn.Module):
    """The second half of a Mixtral block with its experts as modules, named as AutoAWQ's mapping names them."""

    def __init__(self, width: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.block_sparse_moe = _Experts(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block_sparse_moe(self.post_attention_layernorm(x))


def as_entries(mapping: Mapping) -> list[dict[str, Any]]:
    """A mapping in the form that :func:`pathcond.verify_mapping` takes."""
    return [{"smooth_layer": smooth, "balance_layers": balance} for smooth, balance in mapping]


@dataclass(frozen=True)
class Finding:
    """The result for one entry of a mapping, in the first block of a model."""

    smooth: str
    balance: tuple[str, ...]
    verdict: str


def verify(name: str) -> tuple[list[Finding], list[str]]:
    """Verify a published mapping on a tiny random model: one finding per entry, and missed exact groups."""
    if name == "mixtral_modules":
        torch.manual_seed(0)
        model, example_input = ExpertBlock(), torch.randn(5, 16)
    else:
        model, example_input, _ = transformers_zoo.build(name)
    checks = pathcond.verify_mapping(model, example_input, as_entries(PUBLISHED[name][1]))
    groups = pathcond.scale_groups(model, example_input)
    return _findings(checks), missed(groups.free, checks)


def _findings(checks: Iterable[pathcond.MappingCheck]) -> list[Finding]:
    found: dict[tuple[str, tuple[str, ...]], Finding] = {}
    for check in checks:
        block = next((i for i, part in enumerate(check.smooth_layer.split(".")) if part.isdigit()), -1)
        smooth, *balance = (".".join(n.split(".")[block + 1 :]) for n in (check.smooth_layer, *check.balance_layers))
        if check.change is None:
            prefix = ".".join([*check.smooth_layer.split(".")[: block + 1], ""])
            reason = check.reason.replace(prefix, "") if prefix else check.reason
            verdict = f"cannot be applied: {reason}"
        else:
            verdict = "exact" if check.exact else f"not exact: {check.change:.0e}"
        found.setdefault((smooth, tuple(balance)), Finding(smooth, tuple(balance), verdict))
    return list(found.values())


def missed(groups: Iterable[pathcond.ScaleGroup], checks: Iterable[pathcond.MappingCheck]) -> list[str]:
    """Free groups of the first block, and after the last one, that no exact entry of a mapping moves."""
    covered = {(check.smooth_layer, frozenset(check.balance_layers)) for check in checks if check.exact}
    left: dict[str, None] = {}
    for group in groups:
        readers = frozenset(part.module for part in group.consumers)
        if (group.name, readers) not in covered:
            block = next((i for i, part in enumerate(group.name.split(".")) if part.isdigit()), -1)
            makers = dict.fromkeys(part.module for part in group.producers)
            names = [".".join(n.split(".")[block + 1 :]) for n in (*makers, *sorted(readers))]
            left[" / ".join(dict.fromkeys(names))] = None
    return list(left)


def _listed(names: Iterable[str]) -> str:
    named = [f"`{name}`" for name in names]
    return ", ".join(named if len(named) < 6 else [*named[:2], f"... ({len(named)} in all)"])


def tables() -> str:
    """The tables of findings, as markdown; architectures with the same finding share a line."""
    entries: dict[tuple[str, str, str, str], list[str]] = {}
    misses: dict[str, list[str]] = {}
    for name, (source, _) in PUBLISHED.items():
        findings, left = verify(name)
        for finding in findings:
            key = (source, f"`{finding.smooth}`", _listed(finding.balance), finding.verdict)
            entries.setdefault(key, []).append(name)
        for group in left:
            misses.setdefault(group, []).append(name)
    lines = ["| architectures | registry | smooth layer | balance layers | verified |", "|---|---|---|---|---|"]
    lines += [f"| {', '.join(names)} | {' | '.join(key)} |" for key, names in entries.items()]
    lines += ["", "| exact group that no exact entry moves | architectures |", "|---|---|"]
    lines += [f"| {_listed(group.split(' / '))} | {', '.join(names)} |" for group, names in misses.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())

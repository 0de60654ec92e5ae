"""Attention by one call; see ``linear`` for attention by matrix products.

Attention weights are a stochastic matrix: each output position is an average over positions of the values. The values'
scales pass, one per channel of a head, to the output projection. Queries and keys only meet in their product, where a
channel of the one may have the inverse scale of the other. Path sums cross the average as such, which makes them
independent of the number of tokens, and end in front of queries and keys.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import Arguments, Reason, ScalePropagation, entries, mixed_positions
from pathcond.rules.elementwise import barrier_paths, freezes
from pathcond.rules.paths import PathSums
from pathcond.tracing import Call, Ref


def _attention_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    shape = s.shape(call.outs[0])
    if isinstance(a.get("attn_mask"), Ref):
        s.freeze(s.groups(a["attn_mask"]), Reason(call.where, f"is the mask of `{call.name}`"))

    def by_head(x: Ref) -> Tensor:
        """Groups of each channel of each query head, tied over positions."""
        groups = s.groups(x)
        axes = [axis for axis in range(groups.ndim) if axis != groups.ndim - 2]
        groups = s.collapse(groups, axes, mixed_positions(call))
        if groups.ndim > 2 and groups.size(-3) not in (1, shape[-3]):  # heads share a head of keys and values
            groups = groups.repeat_interleave(shape[-3] // groups.size(-3), -3)
        return groups

    no_scale = Reason(call.where, f"is multiplied by a value without scale in `{call.name}`")
    s.tie_inverse(by_head(a["query"]), by_head(a["key"]), no_scale)
    s.set_result(call, by_head(a["value"]))


def _attention_paths(p: PathSums, call: Call, a: Arguments) -> None:
    query, key, value = (a[name] for name in ("query", "key", "value"))
    if value.id not in p.sums:
        p.barrier(call)
        return
    shape, own = p.trace.values[call.outs[0]].shape, p.trace.values[value.id].shape
    for other in (query, key):
        if other.id != value.id:
            p.end_path(other.id)
    heads = shape[-3] // own[-3] if len(shape) > 2 else 1  # query heads that share one head of values
    p.sum(call, [value], lambda v: (v.repeat_interleave(heads, -3) if heads > 1 else v).mean(-2, keepdim=True))


OPERATIONS = [
    *entries(
        "softmax log_softmax", "softmax", "input dim", freezes("crosses {}, which is not homogeneous"), barrier_paths
    ),
    *entries(
        "scaled_dot_product_attention", "attention", "query key value attn_mask dropout_p is_causal scale enable_gqa",
        _attention_scales, _attention_paths, namespaces=[F],
    ),
]  # fmt: skip

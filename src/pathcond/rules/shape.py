"""Operations that move elements: an element keeps its scale and its path sum."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathcond.rules.base import (
    FROZEN,
    GROUP,
    ZERO,
    Arguments,
    Operation,
    ParamView,
    Reason,
    ScalePropagation,
    compress,
    entries,
    mixed_positions,
)
from pathcond.rules.elementwise import pass_paths
from pathcond.rules.paths import PathSums
from pathcond.tracing import WRITE, Call, Ref, View, flatten, refs, run

# ---- reshape


def _reshape_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if s.parameter(a["input"]) is not None:
        _move_scales(s, call, a)
        return
    if s.trace.values[a["input"].id].dtype != s.trace.values[call.outs[0]].dtype:
        s.freeze_through(call, "is read as another dtype")
        return
    s.set_result(call, reshape(s.groups(a["input"]), s.shape(a["input"].id), s.shape(call.outs[0])))


def reshape(groups: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """The group map of ``x.reshape(new)``, without spreading it over axes that stay as they are."""
    if 0 in old:
        return torch.full((1,) * len(new), FROZEN, dtype=GROUP)
    ends, new_ends = (list(accumulate(shape, mul, initial=1)) for shape in (old, new))
    wide, sizes = list[int](), list[int]()
    for low, high in pairwise([0, *sorted({*ends} & {*new_ends})]):  # the shortest runs of axes with the same elements
        run_of_old = [axis for axis, end in enumerate(ends[1:]) if low < end <= high]
        run_of_new = [axis for axis, end in enumerate(new_ends[1:]) if low < end <= high]
        varies = any(groups.size(axis) > 1 for axis in run_of_old)
        wide += [old[axis] if varies else 1 for axis in run_of_old]
        sizes += [new[axis] if varies else 1 for axis in run_of_new]
    return compress(groups.expand(wide).reshape(sizes))


def _reshape_paths(p: PathSums, call: Call, a: Arguments) -> None:
    shape = p.trace.values[call.outs[0]].shape
    p.sum(call, [a["input"]], lambda x: x.reshape(shape))


# ---- permutations, slices, copies


def _move_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    named = refs([*call.args, call.kwargs])
    view = s.parameter(named[0])
    if len(named) == 1 and view is not None:
        _view_parameter(s, call, view)
        return
    data = refs(call.args[:1] or list(call.kwargs.values())[:1])
    others = {x.id for x in named} - {x.id for x in data}
    indices = {i: None if s.constants.random(i) else s.constants.get(i) for i in others}
    unfixed = {i for i, index in indices.items() if index is None}
    picked = _picked_axes(s, call, unfixed) if unfixed else set()
    if picked is None or (unfixed and len(data) != 1):
        s.freeze_through(call, f"is picked by `{call.name}` with indices that are not fixed")
        return
    fills = {i: torch.zeros(s.shape(i), dtype=torch.int64) if x is None else x.cpu() for i, x in indices.items()}
    for x in data:
        kept = [axis for axis in range(len(s.shape(x.id))) if axis not in picked]
        fills[x.id] = s.collapse(s.groups(x), kept, mixed_positions(call)).expand(s.shape(x.id))
    moved = flatten(run(call, fills.__getitem__))
    s.set_result(call, *(compress(groups) for groups in moved))


def _picked_axes(s: ScalePropagation, call: Call, unfixed: set[int]) -> set[int] | None:
    """The axes along which indices that are not fixed pick elements; None if they are not known."""
    args = dict(enumerate(call.args)) | dict(call.kwargs)
    ndim = len(s.shape(args[0].id)) if isinstance(args.get(0), Ref) else 0
    if call.name == "__getitem__" and ndim:
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        logical = [x for x in index if isinstance(x, Ref) and not s.trace.values[x.id].dtype.is_signed]
        if logical or any(isinstance(x, list) for x in index):
            return None  # masks make shapes that depend on values
        named = [x for x in index if x is not None]
        at = next((i for i, x in enumerate(named) if x is Ellipsis), len(named))
        places = [*range(at), None, *range(ndim - (len(named) - at - 1), ndim)]
        return {
            i for i, x in zip(places, named, strict=False) if isinstance(x, Ref) and x.id in unfixed and i is not None
        }
    if call.name in ("index_select", "gather", "take_along_dim"):
        position = 2 if call.name == "take_along_dim" else 1
        dim = args.get(position, args.get("dim"))
        return {dim % ndim} if isinstance(dim, int) and ndim else None
    return None


def _view_parameter(s: ScalePropagation, call: Call, view: ParamView) -> None:
    """A transposed, unsqueezed or sliced parameter is still that parameter; any other piece of it is a constant."""
    whole = torch.empty(s.shape(call.reads[0]), device="meta")
    pieces = [_piece_of(view, whole, piece) for piece in flatten(run(call, lambda _: whole))]
    if None in pieces:
        s.freeze_parameter(view.name, Reason(call.where, f"parameter '{view.name}' is cut up by `{call.name}`"))
    s.set_result(call, *(torch.tensor(FROZEN, dtype=GROUP) if piece is None else piece for piece in pieces))


def _piece_of(view: ParamView, whole: Tensor, piece: Tensor) -> ParamView | None:
    """The view that ``piece`` shows of the contiguous ``whole``; None for a copy, and for any other layout."""
    if piece.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return None
    by_stride = {whole.stride(i): i for i, n in enumerate(whole.shape) if n > 1}
    offset = int(piece.storage_offset())
    first = {i: offset // stride % whole.shape[i] for stride, i in by_stride.items()}
    starts, sizes, axes = list(view.starts), list(view.sizes), []
    for i, start in first.items():
        own = view.axes[i]
        if own is not None:
            starts[own], sizes[own] = starts[own] + start, 1
    for k, n in enumerate(piece.shape):
        if n == 1 or piece.stride(k) == 0:  # of size one, or broadcast
            axes.append(None)
            continue
        i = by_stride.get(piece.stride(k))
        own = None if i is None else view.axes[i]
        if i is None or own is None or own in axes or first[i] + n > whole.shape[i]:
            return None
        sizes[own] = n
        axes.append(own)
    return replace(view, axes=tuple(axes), starts=tuple(starts), sizes=tuple(sizes)) if piece.numel() else None


def move_paths(p: PathSums, call: Call, a: Arguments, assign: bool = False) -> None:
    """Run the call itself: on path sums, squared constants among the data, and plain constants as indices."""
    if assign and refs([a["index"]]):
        p.barrier(call)
        return
    named = [r.id for r in refs([*call.args, call.kwargs])]
    keys = ("tensors", "input", "value", "src", "source")
    places = refs(call.args[:2] if call.fn is WRITE else [a.get(key) for key in keys])
    data = list(dict.fromkeys(r.id for r in places))
    sources = [v for v in data if v in p.sums]
    log = max((p.sums[v].log for v in sources), default=0.0)
    number = a.get("value")  # what an assignment or a padding fills in
    number = None if number is None or isinstance(number, Ref) else p.square(float(number)).at(log)

    def function(*leaves: Tensor) -> Any:
        fills: dict[int, Any] = dict(zip(sources, leaves, strict=True))
        for v in (v for v in named if v not in fills):
            known, shown = p.constant(Ref(v)), p.trace.values[v]
            if known is None:  # unknown indices are replaced by zeros
                fills[v] = torch.zeros(shown.shape, dtype=p.dtype if v in data else shown.dtype, device=p.device)
            else:
                fills[v] = p.square(Ref(v)).at(log) if v in data else known
        if call.mutates:
            fills[data[0]] = fills[data[0]].clone()
        if assign:
            fills[data[0]][a["index"]] = fills[a["value"].id] if number is None else number
            return fills[data[0]]
        if number is not None:
            return F.pad(fills[a["input"].id], a["pad"], a.get("mode", "constant"), float(number) or None)
        return run(call, fills.__getitem__)

    p.sum(call, [Ref(v) for v in sources], function)


# ---- concatenation, padding, assignment


def _cat_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    parts = [part for part in a["tensors"] if s.shape(part.id) != (0,)] or a["tensors"]
    axis = a.get("dim", a.get("axis", 0))
    maps = [s.groups(part).movedim(axis, 0) for part in parts]
    sizes = torch.broadcast_shapes(*(groups.shape[1:] for groups in maps))
    wide = [groups.expand(s.shape(part.id)[axis], *sizes) for part, groups in zip(parts, maps, strict=True)]
    s.set_result(call, compress(torch.cat(wide).movedim(0, axis)))


def _pad_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    groups, pad, constant = s.groups(a["input"]), list(a["pad"]), a.get("mode", "constant") == "constant"
    inner = [
        amount if groups.size(groups.ndim - 1 - index // 2) > 1 else 0  # a constant map covers its padding too
        for index, amount in enumerate(pad)
    ]
    if a.get("value") in (None, 0) and (constant or not any(inner)):
        s.set_result(call, F.pad(groups, inner, value=ZERO))
    else:
        s.freeze_through(call, "is padded with values that are not zero")


def _assign_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    if any(refs([a["index"]])):
        s.freeze_through(call, "is written at indices that are tensors")
        return
    base = s.groups(a["input"]).expand(s.shape(a["input"].id)).clone()
    base[a["index"]] = s.groups(a["value"])
    s.set_result(call, compress(base))


def _copy_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    s.groups(a["input"])
    s.set_result(call, s.groups(a["src"]))


def _write_scales(s: ScalePropagation, call: Call, a: Arguments) -> None:
    """A change made through a view reaches the tensor it shows."""
    base, piece, view = call.args
    assert isinstance(view, View)  # noqa: S101 - the recorder makes it so
    operation = s.table.get(view.call.fn)
    kind = "" if operation is None else operation.kind
    if kind in ("pass", "same"):
        s.groups(base)
        s.set_result(call, s.groups(piece))
    elif kind in ("move", "reshape") and s.parameter(base) is None and s.parameter(piece) is None:
        whole, part = s.shape(base.id), s.shape(piece.id)
        s.set_result(call, compress(WRITE(s.groups(base).expand(whole), s.groups(piece).expand(part), view)))
    else:
        s.freeze_through(call, f"is changed in place through `{view.call.name}`")


OPERATIONS = [
    *entries(
        "view reshape flatten unflatten ravel squeeze unsqueeze",
        "reshape", "input", _reshape_scales, _reshape_paths, constant=True,
    ),
    *entries(
        "permute transpose t swapaxes swapdims movedim moveaxis adjoint expand broadcast_to repeat tile roll flip "
        "fliplr flipud narrow select split split_with_sizes chunk tensor_split unbind hsplit vsplit unsafe_chunk "
        "unsafe_split index_select gather take_along_dim __getitem__ channel_shuffle "
        "native_channel_shuffle pixel_shuffle pixel_unshuffle T mT H mH",
        "move", "input", _move_scales, move_paths, constant=True,
    ),
    *entries(
        "diagonal rot90 repeat_interleave unfold",
        "move", "input", _move_scales, move_paths, namespaces=[torch, Tensor], constant=True,
    ),
    *entries("stack hstack vstack dstack", "move", "tensors dim", _move_scales, move_paths, constant=True),
    *entries("cat concat concatenate", "cat", "tensors dim", _cat_scales, move_paths, constant=True),
    *entries("pad", "pad", "input pad mode value", _pad_scales, move_paths, namespaces=[F], constant=True),
    *entries("__setitem__", "setitem", "input index value", _assign_scales, partial(move_paths, assign=True)),
    *entries("copy_", "copy", "input src", _copy_scales, partial(pass_paths, source="src"), namespaces=[Tensor]),
    (WRITE, Operation("write", ("base", "piece", "view"), _write_scales, move_paths)),
]  # fmt: skip

"""The table of operations: for each torch function, what kind of map it is and how its arguments are called.

``kind`` names the rule by which scales cross the operation (:mod:`pathcond.labels`) and the one by which path sums do
(:mod:`pathcond.squared`). A function that is not listed has no rule: the scales on both sides of it freeze.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensor

from pathcond.errors import PathCondError


@dataclass(frozen=True, slots=True)
class Op:
    """A row of the table: the kind of map, and the names of the arguments in their order."""

    kind: str
    names: tuple[str, ...]


TABLE: dict[Any, Op] = {}
_SPACES: tuple[Any, ...] = (torch, torch.Tensor, F, getattr(torch._C, "_nn"))  # noqa: B009 - no stub knows it


def _list(kind: str, functions: str, arguments: str = "input", spaces: Iterable[Any] = _SPACES) -> None:
    """Enter every spelling of the named functions: torch.f, Tensor.f, F.f, and each with a trailing underscore."""
    op = Op(kind, tuple(arguments.split()))
    for name in functions.split():
        for spelling in (name, name + "_"):
            for space in spaces:
                function = getattr(space, spelling, None)
                if callable(function):
                    TABLE[function] = op


# One input, positively homogeneous, element by element: a scale passes.
_list("pass", "relu leaky_relu rrelu abs absolute dropout dropout1d dropout2d dropout3d feature_dropout")
# The same values again.
_list("same", "clone contiguous detach alias positive requires_grad")
_list("prelu", "prelu", "input weight")
_list("cast", "to type type_as float double half bfloat16 cuda cpu", "input")
_list("clamp", "clamp clip", "input min max")
_list("clamp", "clamp_min", "input min")
_list("threshold", "threshold", "input threshold value")
# Close to homogeneous for large inputs: a scale passes only with smooth=True.
_list("smooth", "gelu silu hardswish mish softplus elu celu selu")

# Linear maps with parameters.
_list("linear", "linear", "input weight bias")
_list("matmul", "matmul mm __matmul__", "input other")
_list("addmm", "addmm", "input mat1 mat2 beta alpha")
for _d in (1, 2, 3):
    _list(f"conv{_d}", f"conv{_d}d", "input weight bias stride padding dilation groups")
    _list(f"convt{_d}", f"conv_transpose{_d}d", "input weight bias stride padding output_padding groups dilation")
_list("embedding", "embedding", "input weight padding_idx max_norm", spaces=[F])
_list("embedding", "embedding", "weight input", spaces=[torch])

# Normalisations: their scale and shift are the parameters that enter the unit.
_list("batch_norm", "batch_norm", "input running_mean running_var weight bias training momentum eps", spaces=[F])
_list("batch_norm", "batch_norm", "input weight bias running_mean running_var training momentum eps", spaces=[torch])
_list("layer_norm", "layer_norm", "input normalized_shape weight bias eps")
_list("layer_norm", "rms_norm", "input normalized_shape weight eps")
_list("group_norm", "group_norm", "input num_groups weight bias eps")
_list("group_norm", "instance_norm", "input running_mean running_var weight bias", spaces=[F])
_list("group_norm", "instance_norm", "input weight bias running_mean running_var", spaces=[torch])

# Sums, maxima, products.
_list("add", "add __radd__ __add__ __iadd__", "input other alpha")
_list("add", "sub subtract __sub__ __isub__", "input other alpha")
_list("add", "rsub __rsub__", "input other alpha")
_list("maximum", "maximum minimum fmax fmin", "input other")
_list("where", "where", "condition input other", spaces=[torch])
_list("where", "where", "input condition other", spaces=[torch.Tensor])
_list("mul", "mul multiply __mul__ __rmul__ __imul__", "input other")
_list("div", "div divide true_divide __truediv__ __itruediv__ __div__", "input other rounding_mode")
_list("neg", "neg negative __neg__")
_list(
    "compare", "gt lt ge le greater less greater_equal less_equal __gt__ __lt__ __ge__ __le__ sign sgn", "input other"
)

# Pools and other maps of each channel on its own.
for _d in (1, 2, 3):
    for _name in (f"max_pool{_d}d", f"max_pool{_d}d_with_indices"):
        _list(f"max_pool{_d}", _name, "input kernel_size stride padding dilation ceil_mode")
    _avg = "input kernel_size stride padding ceil_mode count_include_pad divisor_override"
    _list(f"avg_pool{_d}", f"avg_pool{_d}d", _avg)
    _list(f"adaptive_avg_pool{_d}", f"adaptive_avg_pool{_d}d", "input output_size")
    _list(f"adaptive_max_pool{_d}", f"adaptive_max_pool{_d}d adaptive_max_pool{_d}d_with_indices", "input output_size")
_list("resample", "interpolate upsample upsample_nearest upsample_bilinear", "input", spaces=[F])

# Reductions over axes.
_list("mean", "mean", "input dim keepdim")
_list("sum", "sum", "input dim keepdim")
_list("extreme", "max min", "input dim keepdim")
_list("extreme", "amax amin", "input dim keepdim")

# Pure movement of elements: what holds for an element holds for it at its new place.
_list("reshape", "view view_as reshape reshape_as flatten unflatten ravel squeeze unsqueeze")
_list(
    "move", "permute transpose t swapaxes swapdims movedim moveaxis adjoint expand expand_as broadcast_to repeat tile"
)
_list("move", "roll flip fliplr flipud")
_list("move", "narrow select split split_with_sizes chunk tensor_split unbind hsplit vsplit unsafe_chunk unsafe_split")
_list("move", "index_select __getitem__ channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle")
_list("move", "diagonal rot90 repeat_interleave unfold", spaces=[torch, torch.Tensor])
_list("cat", "cat concat concatenate", "tensors dim", spaces=[torch])
_list("move", "stack hstack vstack dstack", "tensors dim", spaces=[torch])
for _attribute in ("T", "mT", "H", "mH"):
    TABLE[getattr(torch.Tensor, _attribute).__get__] = Op("move", ("input",))
TABLE[vars(torch._C.TensorBase)["data"].__get__] = Op("same", ("input",))
_list("pad", "pad", "input pad mode value", spaces=[F])
_list("pad", "constant_pad_nd", "input pad value", spaces=[torch])
_list("setitem", "__setitem__", "input index value")
_list("copy", "copy_", "input src", spaces=[torch.Tensor])
_list("zeros", "zeros zeros_like new_zeros zero_", "input")

# Linear maps of data by weights; an embedding reads no data.
LAYERS = frozenset({"linear", "matmul", "addmm", *(f"{name}{d}" for d in (1, 2, 3) for name in ("conv", "convt"))})

QUERIES = frozenset(
    getattr(torch.Tensor, name)
    for name in [
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "is_contiguous",
        "__len__",
        "untyped_storage",
        "_is_view",
        "is_inference",
        "is_conj",
        "is_neg",
        "is_floating_point",
        "is_complex",
        "element_size",
        "get_device",
    ]
) | frozenset(
    getattr(torch.Tensor, name).__get__
    for name in [
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "is_cuda",
        "is_sparse",
        "is_quantized",
        "requires_grad",
        "is_leaf",
        "_version",
        "grad_fn",
        "is_meta",
        "is_mkldnn",
        "is_nested",
    ]
)

_NORMS = frozenset(f for f, op in TABLE.items() if op.kind == "batch_norm") | {F.instance_norm, torch.instance_norm}
_LIKE = _NORMS | {F.relu, torch.relu, torch.Tensor.relu}


_SHAPED = {
    torch.ones_like: torch.ones,
    torch.full_like: torch.full,
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
}


def stand_in(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """A tensor like the result of a common call, made without running it; None for all other calls.

    Running a fake linear map costs as much as recording the whole of a small layer. Normalisations have to be left out
    anyway: in training mode their size checks refuse a batch of one, which is all a record needs.
    """
    x = args[0] if args else kwargs.get("input")
    if not isinstance(x, FakeTensor) or torch.is_autocast_enabled(x.device.type):
        return torch.empty_like(x) if function in _NORMS and isinstance(x, Tensor) else None
    if function in _LIKE and not kwargs.get("inplace") and not (function is F.relu and len(args) > 1):
        dense = x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))
        return make_fake(x.fake_mode, x, x.shape, x.stride()) if dense else torch.empty_like(x)
    weight = args[1] if len(args) > 1 else None
    if function is not F.linear or kwargs or not isinstance(weight, FakeTensor) or weight.ndim != 2 or not x.ndim:
        return None
    fits = weight.shape[1] == x.shape[-1] and weight.dtype == x.dtype and weight.device == x.device
    return make_fake(x.fake_mode, x, (*x.shape[:-1], weight.shape[0]), None) if fits else None


def make_fake(mode: Any, like: Tensor, shape: Any, stride: Any) -> FakeTensor:
    """A fake tensor with a shape and strides (None for contiguous ones), and another's dtype and device."""
    with torch._C._DisableTorchDispatch():
        if stride is None:
            inner = torch.empty(shape, dtype=like.dtype, device="meta")
        else:
            inner = torch.empty_strided(shape, stride, dtype=like.dtype, device="meta")
        return FakeTensor(mode, inner, like.device)


def without_model(function: Any, arguments: Any, result: Any) -> tuple[Any, Any]:
    """A call that makes a tensor like another, of which it reads the shape alone, as one that is given the shape."""
    if function not in _SHAPED:
        return function, arguments
    args, kwargs = arguments
    given = [kwargs.get("fill_value", *args[1:2])] if function is torch.full_like else []
    return _SHAPED[function], ((tuple(result.shape), *given), {"dtype": result.dtype, "device": result.device})


def kind_of(function: Any) -> str | None:
    """The kind of map a function is, None if it is not listed."""
    return TABLE[function].kind if function in TABLE else None


def writes(function: Any, kwargs: Any) -> bool:
    """Whether a call may write one of its arguments, by the names torch gives such functions."""
    name = name_of(function)
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name.startswith("__i") or name == "__setitem__" or bool(kwargs.get("inplace")) or "out" in kwargs


def is_random(function: Any) -> bool:
    """Whether a function draws random numbers, by its name."""
    words = ("rand", "bernoulli", "multinomial", "normal", "uniform", "poisson", "dropout", "exponential", "geometric")
    return any(word in name_of(function) for word in words)


def register(rules: dict[str, Any]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator ``@rule(kind, ...)`` that enters a function in a table of rules by kind."""

    def rule(*kinds: str) -> Callable[[Any], Any]:
        def enter(function: Any) -> Any:
            rules.update(dict.fromkeys(kinds, function))
            return function

        return enter

    return rule


def name_of(function: Any) -> str:
    """A readable name: ``relu6``, ``Tensor.T``, ``aten.sin``."""
    if getattr(function, "__name__", "") == "__get__":
        return "Tensor." + getattr(function.__self__, "__name__", "attribute")
    return getattr(function, "__name__", None) or str(function)


def bind(op: Op, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """Arguments by name; those not given are absent."""
    return dict(zip(op.names, args, strict=False)) | dict(kwargs)


def register_op(function: Callable[..., Any], like: Callable[..., Any]) -> None:
    """Treat calls of ``function`` as calls of ``like``, an operation that has a rule.

    Use it for a function of your own that torch sees as one operation (``torch.library.custom_op``, say) and that
    takes its arguments in the same order as ``like``.

    Args:
        function: the function as it is called in the model.
        like: a torch function with a rule, for example ``torch.relu`` for a positively homogeneous activation.

    Raises:
        PathCondError: ``like`` has no rule itself, or torch does not see calls of ``function`` as such.

    Example:
        >>> import torch, pathcond
        >>> pathcond.register_op(torch.nn.functional.relu6, like=torch.relu)  # only if values never reach 6!
        >>> del pathcond.ops.TABLE[torch.nn.functional.relu6]
    """
    if like not in TABLE:
        raise PathCondError(
            f"expected `like` to be an operation with a rule, got {name_of(like)!r}. "
            "torch.relu stands for any positively homogeneous activation, torch.nn.functional.linear for a linear map."
        )
    if isinstance(function, CustomOpDef):
        function = function._opoverload
    code = getattr(function, "__code__", None)
    if isinstance(function, (type, torch.nn.Module)) or (code and "handle_torch_function" not in code.co_names):
        raise PathCondError(
            f"expected an operation that torch sees as one, got {name_of(function)!r}, of which it sees only what is "
            "called within. Make it a torch.library.custom_op, or register the operations that it calls."
        )
    packet = isinstance(function, torch._ops.OpOverloadPacket)
    for seen in [getattr(function, name) for name in function.overloads()] if packet else []:
        TABLE[seen] = TABLE[like]
    TABLE[function] = TABLE[like]

"""The table of operations: how scales and path sums cross each torch function.

One file per family; each operation has its two rules side by side. A function that is not listed has no rule: the
scales on both sides of it are frozen, which keeps the function whatever it computes, and paths end in front of it.
Users add operations with :func:`register_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from pathcond.checks import PathCondError
from pathcond.rules import elementwise, linear, normalization, pooling, shape
from pathcond.rules.base import Operation, PathRule, ScaleRule
from pathcond.rules.elementwise import barrier_paths
from pathcond.tracing import name_of

TABLE: dict[Any, Operation] = {
    function: operation
    for family in (elementwise, linear, normalization, pooling, shape)
    for function, operation in family.OPERATIONS
}


def register_rule(
    function: Callable[..., Any],
    *,
    like: Callable[..., Any] | None = None,
    scales: ScaleRule | None = None,
    paths: PathRule | None = None,
    arguments: tuple[str, ...] = ("input",),
    layer: bool = False,
) -> None:
    """Tell the library how scales and path sums cross an operation of your own.

    Either name an operation that it behaves like, or write its two rules. The operation must be one that torch sees as
    such: a ``torch.library.custom_op``, or a function with ``torch.overrides.handle_torch_function``.

    Args:
        function: the function as it is called in the model.
        like: a torch function with a rule that takes its arguments in the same order, for example ``torch.relu`` for a
            positively homogeneous activation.
        scales: ``scales(s, call, a)`` with a :class:`pathcond.ScalePropagation`, the recorded call and its arguments
            by name. It reads group maps with ``s.groups(a["input"])`` and sets those of the result with
            ``s.set_result(call, groups)``, or gives up with ``s.freeze_through(call, why)``.
        paths: ``paths(p, call, a)`` with a :class:`pathcond.PathSums`. It sets the path sum of the result with
            ``p.copy(call, source)``, ``p.sum(call, arguments, function)``, ``p.product(call, arguments, function)`` or
            ``p.barrier(call)``. Left out: a barrier.
        arguments: names of the operation's arguments in their order.
        layer: whether it maps data by weights, and so makes hidden units.

    Raises:
        PathCondError: ``like`` has no rule; neither or both of ``like`` and ``scales`` are given; or torch does not see
            calls of ``function`` as one operation.

    Example:
        An activation of our own, ``max(x, 2 x)``, which is positively homogeneous; ``like=torch.relu`` says the same:

        >>> import torch, pathcond
        >>> @torch.library.custom_op("docs::steep", mutates_args=())
        ... def steep(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.maximum(x, 2 * x)
        >>> _ = steep.register_fake(torch.empty_like)
        >>> def scales(s, call, a):
        ...     s.set_result(call, s.groups(a["x"]))       # the result carries the scale of the input
        >>> def paths(p, call, a):
        ...     p.copy(call, a["x"].id)                    # and has its path sum
        >>> pathcond.register_rule(steep, scales=scales, paths=paths, arguments=("x",))
    """
    if (like is None) == (scales is None):
        raise PathCondError("expected either `like` or `scales` (and, with it, `paths`), got both or neither.")
    own = scales and Operation("custom", tuple(arguments), scales, paths or barrier_paths, layer=layer)
    operation = own or TABLE.get(like)
    if operation is None:
        raise PathCondError(
            f"expected `like` to be an operation with a rule, got {name_of(like)!r}. torch.relu stands for any "
            "positively homogeneous activation, torch.nn.functional.linear for a linear map."
        )
    if isinstance(function, CustomOpDef):
        function = function._opoverload
    code = getattr(function, "__code__", None)
    if isinstance(function, (type, torch.nn.Module)) or (code and "handle_torch_function" not in code.co_names):
        raise PathCondError(
            f"expected an operation that torch sees as one, got {name_of(function)!r}, of which it sees only what is "
            "called within. Make it a torch.library.custom_op, or register the operations that it calls."
        )
    if isinstance(function, torch._ops.OpOverloadPacket):
        TABLE.update({getattr(function, name): operation for name in function.overloads()})
    TABLE[function] = operation

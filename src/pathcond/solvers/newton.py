"""The minimiser of F by Newton's method: steps by conjugate gradients, limited in length, with a line search."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pathcond.objective import Exponentials, Objective, fractions

_LONGEST_STEP = 4.0  # in any log-scale
_NEWTON_STEPS, _CG_STEPS, _HALVINGS = 200, 2000, 60


def minimize(
    objective: Objective, u: Tensor, tol: float, clamp: float | None, report: Callable[[float, float], None]
) -> tuple[Tensor, bool]:
    """Newton's method from ``u``, shape (H + 1,), until max|grad F| / p <= tol.

    Args:
        objective: F.
        u: the start; entry 0 stays 0.
        tol: bound on the residual.
        clamp: bound on |u|; coordinates pressed against it are held there.
        report: called after each step with F and the mean absolute change of u.

    Returns:
        The log-scales, and whether the residual met the tolerance.
    """
    value = objective.value(u) / objective.size
    grad = objective.gradient(u)
    for _ in range(_NEWTON_STEPS):
        held = _held(u, grad, clamp) | objective.dead
        slope = torch.where(held, 0.0, grad)
        slope[0] = 0
        if float(slope.abs().amax()) <= tol:
            return u, True
        step = _newton_step(objective, u, slope, held)
        longest = float(step.abs().amax())
        step = step * min(1.0, _LONGEST_STEP / longest) if longest > 0 else step
        found = _line_search(objective, u, value, grad, step, clamp)
        if found is None:
            return u, False
        new, value, grad = found
        report(value * objective.size, float((new - u).abs().sum()) / objective.units)
        u = new
    return u, False


def _held(u: Tensor, grad: Tensor, clamp: float | None) -> Tensor:
    if clamp is None:
        return torch.zeros_like(u, dtype=torch.bool)
    return (u >= clamp) & (grad < 0) | (u <= -clamp) & (grad > 0)


def _line_search(
    objective: Objective, u: Tensor, value: float, grad: Tensor, step: Tensor, clamp: float | None
) -> tuple[Tensor, float, Tensor] | None:
    """Halve the step until F decreases enough; where rounding hides the change of F, until its gradient does."""
    length = 1.0
    largest = float(grad.abs().amax())
    for _ in range(_HALVINGS):
        new = u + length * step
        if clamp is not None:
            new = new.clamp(-clamp, clamp)
        new_value = objective.value(new) / objective.size
        expected = float(grad @ (new - u))
        new_grad = objective.gradient(new)
        rounding = 1e-14 * max(1.0, abs(value))
        if new_value <= value + 1e-4 * expected and math.isfinite(new_value):
            return new, new_value, new_grad
        if new_value <= value + rounding and float(new_grad.abs().amax()) < largest:
            return new, new_value, new_grad
        length *= 0.5
    return None


def _newton_step(objective: Objective, u: Tensor, grad: Tensor, held: Tensor) -> Tensor:
    """Solve (Hessian / p) d = -grad on the coordinates not held, by preconditioned conjugate gradients."""
    product, diagonal = hessian(objective, u)
    preconditioner = torch.where(held, 0.0, 1 / diagonal.clamp(min=1e-300))
    preconditioner[0] = 0
    step = torch.zeros_like(grad)
    residual = -grad
    scaled = preconditioner * residual
    direction = scaled.clone()
    norm = float(residual @ scaled)
    goal = norm * min(1e-2, math.sqrt(math.sqrt(max(norm, 1e-300)))) ** 2
    for _ in range(_CG_STEPS):
        image = torch.where(held, 0.0, product(direction))
        curvature = float(direction @ image)
        if curvature <= 0:
            return step if bool(step.any()) else direction
        length = norm / curvature
        step = step + length * direction
        residual = residual - length * image
        scaled = preconditioner * residual
        new_norm = float(residual @ scaled)
        if new_norm <= goal:
            break
        direction = scaled + (new_norm / norm) * direction
        norm = new_norm
    return step


def hessian(objective: Objective, u: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Product with the Hessian of F over p at ``u``, and its diagonal."""
    layout = objective.layout
    log_sum, exponentials = objective.log_sum(u), Exponentials(layout.at_nodes(u))
    difference = u.new_zeros(layout.nodes)  # fraction of the sum that leaves each minus the fraction that enters it
    diagonal = u.new_zeros(layout.nodes)
    terms = []
    for block in objective.blocks:
        leaving, entering = fractions(block, exponentials, log_sum)
        difference.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering, alpha=-1)
        diagonal.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering)
        at_cols, at_rows, log = exponentials.of(block)
        at_rows = at_rows * math.exp(min(700.0, log - log_sum))
        terms.append((block, at_cols, at_rows, leaving, entering))
    for block, _, _, leaving, _ in terms[len(layout.blocks) :]:  # doubled elements count four times
        diagonal.index_add_(0, block.cols, leaving, alpha=2)
    difference = layout.fold(difference)
    diagonal = layout.fold(diagonal, 1.0)
    difference[0] = diagonal[0] = 0

    def product(z: Tensor) -> Tensor:
        found = layout.pad(-difference * (difference @ z))
        z = layout.at_nodes(z)
        for block, at_cols, at_rows, leaving, entering in terms:
            z_cols, z_rows = z[block.cols], z[block.rows]
            if block.dense:
                to_cols = leaving * z_cols - at_cols * ((at_rows * z_rows) @ block.m)
                to_rows = entering * z_rows - at_rows * (block.m @ (at_cols * z_cols))
            else:
                to_cols = leaving * (z_cols - z_rows)
                to_rows = -to_cols
            found.index_add_(0, block.cols, to_cols).index_add_(0, block.rows, to_rows)
        found = layout.fold(found)
        found[0] = 0
        return found

    return product, (diagonal - difference**2).clamp(min=0)

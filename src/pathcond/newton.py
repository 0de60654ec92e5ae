"""The minimiser of F by Newton's method: steps from conjugate gradients, capped, with a line search."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pathcond.problem import Factors, Problem

_CAP = 4.0  # longest step in any log-scale
_STEPS, _PRODUCTS = 200, 2000


def minimise(
    problem: Problem, full: Tensor, tol: float, clamp: float | None, report: Callable[[float, float], None]
) -> tuple[Tensor, bool]:
    """Newton's method from ``full``, shape (H + 1,), until max|grad F| / p <= tol.

    Args:
        problem: F.
        full: the start; entry 0 stays 0.
        tol: bound on the residual.
        clamp: bound on |u|; coordinates pressed against it are held there.
        report: called after each step with F and the mean absolute change of u.

    Returns:
        The log-scales, and whether the residual met the tolerance.
    """
    value = problem.objective(full) / problem.size
    grad = problem.gradient(full)
    for _ in range(_STEPS):
        held = _held(full, grad, clamp) | problem.dead
        slope = torch.where(held, 0.0, grad)
        slope[0] = 0
        if float(slope.abs().amax()) <= tol:
            return full, True
        step = _direction(problem, full, slope, held)
        longest = float(step.abs().amax())
        step = step * min(1.0, _CAP / longest) if longest > 0 else step
        found = _search(problem, full, value, grad, step, clamp)
        if found is None:
            return full, False
        new, value, grad = found
        report(value * problem.size, float((new - full).abs().sum()) / problem.units)
        full = new
    return full, False


def _held(full: Tensor, grad: Tensor, clamp: float | None) -> Tensor:
    if clamp is None:
        return torch.zeros_like(full, dtype=torch.bool)
    return (full >= clamp) & (grad < 0) | (full <= -clamp) & (grad > 0)


def _search(
    problem: Problem, full: Tensor, value: float, grad: Tensor, step: Tensor, clamp: float | None
) -> tuple[Tensor, float, Tensor] | None:
    """Halve the step until F falls enough; where F no longer resolves the change, until its gradient does."""
    length = 1.0
    before = float(grad.abs().amax())
    for _ in range(60):
        new = full + length * step
        if clamp is not None:
            new = new.clamp(-clamp, clamp)
        found = problem.objective(new) / problem.size
        expected = float(grad @ (new - full))
        slope = problem.gradient(new)
        noise = 1e-14 * max(1.0, abs(value))
        if found <= value + 1e-4 * expected and math.isfinite(found):
            return new, found, slope
        if found <= value + noise and float(slope.abs().amax()) < before:
            return new, found, slope
        length *= 0.5
    return None


def _direction(problem: Problem, full: Tensor, grad: Tensor, held: Tensor) -> Tensor:
    """Solve (Hessian / p) d = -grad on the coordinates not held, by preconditioned conjugate gradients."""
    product, diagonal = _hessian(problem, full)
    scale = torch.where(held, 0.0, 1 / diagonal.clamp(min=1e-300))
    scale[0] = 0
    step = torch.zeros_like(grad)
    rest = -grad
    guide = scale * rest
    way = guide.clone()
    size = float(rest @ guide)
    goal = size * min(1e-2, math.sqrt(math.sqrt(max(size, 1e-300)))) ** 2
    for _ in range(_PRODUCTS):
        image = torch.where(held, 0.0, product(way))
        curve = float(way @ image)
        if curve <= 0:
            return step if bool(step.any()) else way
        length = size / curve
        step = step + length * way
        rest = rest - length * image
        guide = scale * rest
        new = float(rest @ guide)
        if new <= goal:
            break
        way = guide + (new / size) * way
        size = new
    return step


def _hessian(problem: Problem, full: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Product with the Hessian of F over p at ``full``, and its diagonal."""
    log_sum, factors = problem.log_sum(full), Factors(full)
    outer = torch.zeros_like(full)  # share of what leaves minus share of what enters each unit
    diagonal = torch.zeros_like(full)
    pieces = []
    for block in problem.blocks:
        leaving, entering = problem.shares(block, factors, log_sum)
        outer.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering, alpha=-1)
        diagonal.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering)
        up, down, log = factors.of(block)
        down = down * math.exp(min(700.0, log - log_sum))
        pieces.append((block, up, down, leaving, entering))
    outer[0] = diagonal[0] = 0

    def product(z: Tensor) -> Tensor:
        found = -outer * (outer @ z)
        for block, up, down, leaving, entering in pieces:
            at_cols, at_rows = z[block.cols], z[block.rows]
            if block.dense:
                to_cols = leaving * at_cols - up * ((down * at_rows) @ block.m)
                to_rows = entering * at_rows - down * (block.m @ (up * at_cols))
            else:
                to_cols = leaving * (at_cols - at_rows)
                to_rows = -to_cols
            found.index_add_(0, block.cols, to_cols).index_add_(0, block.rows, to_rows)
        found[0] = 0
        return found

    return product, (diagonal - outer**2).clamp(min=0)

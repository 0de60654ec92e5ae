"""Two ways to minimise F: the paper's alternating minimisation, and Newton's method.

*Alternating minimisation*: sweeps of exact coordinate updates, with a layer's sums computed at once. Two units of one
layer have no parameter in common. So the sums that enter and leave them follow for the whole layer from two
matrix-vector products; within it only the running total couples unit to unit, and that recurrence is scalar. All terms
are fractions of the total sum. Most layers are updated with plain exponentials. Logarithms take over for log-scales
beyond :data:`LOG_RANGE`, blocks whose magnitudes differ by more than float64 holds, dead units, clamps, layers that
make up nearly the whole sum, and units whose scale acts by a power, as behind a squared ReLU.

*Newton's method*: steps by conjugate gradients, limited in length, with a line search.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathcond.objective import LOG_RANGE, Exponentials, Layer, Objective, Side, Span, fractions

AT_BOUND = 1.0 - 1e-12  # a log-scale above this fraction of the bound counts as at the bound
_CANCELLATION = 1.0e-6  # if the other layers hold less than this fraction of the sum, it is summed directly


@dataclass(frozen=True)
class BlockSum:
    """Sums over one block for the units of a layer: ``m @ factors[others]``, or element by element.

    ``m`` is ``source[index]``: a view of the block where ``index`` is a slice, otherwise a copy. The layer's nodes are
    the block's rows, and the factors exp(u); or, with ``columns``, its columns, and exp(-u). Without ``others``, the
    layer's units are at both ends, and there are no factors.
    """

    source: Tensor
    index: slice | Tensor
    m: Tensor
    log: float
    others: slice | Tensor | None
    positions: Tensor | None
    count: int
    columns: bool

    def __call__(self, factors: Tensor | float) -> Tensor:
        """The sums, shape (count,), given exponentials of the nodes ``others``."""
        found = self.m @ factors if self.m.ndim == 2 and isinstance(factors, Tensor) else self.m * factors
        return found if self.positions is None else found.new_zeros(self.count).index_add_(0, self.positions, found)

    def reload(self) -> None:
        """Read the block again after a change in place."""
        if isinstance(self.index, Tensor):
            self.m.copy_(self.source[self.index])


@dataclass(frozen=True)
class LayerSums:
    """A layer with the sums over what enters and what leaves its units, and over elements with other powers."""

    layer: Layer
    entering: tuple[BlockSum, ...]
    leaving: tuple[BlockSum, ...]
    powers: tuple[tuple[int, tuple[BlockSum, ...]], ...]


def layer_sums(objective: Objective) -> list[LayerSums]:
    """The layers of an objective, in the order of the sweeps."""
    return [
        LayerSums(
            layer,
            entering=_block_sums(objective, layer.entering, layer),
            leaving=_block_sums(objective, layer.leaving, layer),
            powers=tuple((power, _block_sums(objective, sides, layer)) for power, sides in layer.powers),
        )
        for layer in objective.layout.layers
    ]


def _block_sums(objective: Objective, sides: tuple[Side, ...], layer: Layer) -> tuple[BlockSum, ...]:
    found = []
    for side in sides:
        block = objective.blocks[side.block]
        device = block.m.device
        index = side.index.to(device) if isinstance(side.index, Tensor) else side.index
        others = side.others.to(device) if isinstance(side.others, Tensor) else side.others
        positions = None if side.positions is None else side.positions.to(device)
        source = block.m.T if side.columns and block.dense else block.m
        count = layer.hi - layer.lo
        found.append(BlockSum(source, index, source[index], block.log, others, positions, count, side.columns))
    return tuple(found)


def total(sums: tuple[BlockSum, ...], exp_plus: Tensor, exp_minus: Tensor) -> Tensor:
    """Sums over all blocks for each unit of a layer, given exp(u) and exp(-u) of all nodes."""
    first, *rest = (s((exp_minus if s.columns else exp_plus)[s.others]) for s in sums)
    return sum(rest, start=first)


class CoordinateDescent:
    """Sweeps over all units of an objective, in network order.

    Attributes:
        u: log-scales, shape (H + 1,); entry 0 is 0 and stays.
        log_sum: log of sum_i exp((Bu)_i) g_i at ``u``.
    """

    def __init__(self, objective: Objective, clamp: float | None) -> None:
        self.objective = objective
        self.clamp = clamp
        self.u = torch.zeros(objective.units + 1, dtype=torch.float64, device=objective.device)
        self.log_sum = objective.log_sum(self.u)
        self._layers = layer_sums(objective)
        self._spans = [objective.layout.spans(s.layer.lo, s.layer.hi) for s in self._layers]
        self._common_log = objective.common_log or 0.0
        self._plain = objective.common_log is not None
        dead = objective.dead.tolist()
        self._uniform = [s.layer.uniform and not any(dead[s.layer.lo : s.layer.hi]) for s in self._layers]
        self._limit = math.inf if clamp is None else math.exp(min(clamp, LOG_RANGE))

    def sweep(self) -> float:
        """Update every unit once; returns the sum of the absolute changes of the log-scales."""
        before, log_sum = self.u.clone(), self.log_sum
        self._pass(plain=self._plain and float(self.objective.layout.at_nodes(self.u).abs().amax()) < LOG_RANGE)
        if not bool(torch.isfinite(self.u).all()):  # exponentials left the range of float64
            self.u, self.log_sum = before.clone(), log_sum
            self._pass(plain=False)
        return float((self.u - before).abs().sum())

    def _pass(self, plain: bool) -> None:
        u = self.objective.layout.at_nodes(self.u)
        exp_plus, exp_minus = u.exp(), (-u).exp()
        for sums, uniform, (units, *others) in zip(self._layers, self._uniform, self._spans, strict=True):
            where = slice(units.first, units.stop)
            if not (plain and uniform and not sums.powers and self._update_plain(sums, exp_plus, exp_minus)):
                if plain:
                    self.u = exp_plus[: len(self.u)].log()
                self._update_log(sums)
                highest = max((abs(span.power) for span in others), default=1)
                plain = plain and float(self.u[where].abs().amax()) * highest < LOG_RANGE
                exp_plus[where], exp_minus[where] = self.u[where].exp(), (-self.u[where]).exp()
            for span in others:
                _set_powers(span, where, exp_plus, exp_minus)
        if plain:
            self.u = exp_plus[: len(self.u)].log()
        if self.clamp is not None:  # exponentials and logarithms round
            bound = torch.where(self.u.abs() > self.clamp * AT_BOUND, self.u.sign() * self.clamp, self.u)
            self.u.copy_(bound)

    def _update_plain(self, sums: LayerSums, exp_plus: Tensor, exp_minus: Tensor) -> bool:
        """Update a layer with plain exponentials; False, and nothing changed, if they cancel or the bound is met."""
        layer = sums.layer
        a = layer.balance[0]
        p, size = float(self.objective.size), abs(a)
        plus, minus = exp_plus[layer.lo : layer.hi], exp_minus[layer.lo : layer.hi]
        fraction = math.exp(self._common_log - self.log_sum)
        entering = total(sums.entering, exp_plus, exp_minus) * minus
        leaving = total(sums.leaving, exp_plus, exp_minus) * plus
        old = entering + leaving
        later = old.flip(0).cumsum(0).mul_(fraction * size).tolist()
        remainder = 1.0 - (later[-1] / size if size else fraction * float(old.sum()))
        if not remainder > _CANCELLATION:
            return False
        q = (entering * leaving).mul_(4.0 * (p - size) * (p + size) * fraction * fraction)
        if size:
            found, new_sum = uniform_recurrence(size, p, q.tolist(), later[-2::-1] + [0.0], remainder)
            roots = torch.frombuffer(array("d", found), dtype=torch.float64).to(old.device)  # faster than torch.tensor
        else:
            roots = q.sqrt()
            new_sum = remainder + float(roots.sum()) / p
        roots.mul_(1.0 / (2.0 * (p - size)))
        change = entering.mul_(fraction).div_(roots) if a > 0 else roots.div_(leaving.mul_(fraction))
        new = plus * change
        if self._limit < math.inf and not (float(new.amax()) < self._limit and float(new.amin()) > 1 / self._limit):
            return False
        plus.copy_(new)
        minus.div_(change)
        self.log_sum += math.log(new_sum)
        return True

    def _update_log(self, sums: LayerSums) -> None:
        """Update a layer in logarithms; dead units stay."""
        layer = sums.layer
        where = slice(layer.lo, layer.hi)
        own, u = self.u[where], self.objective.layout.at_nodes(self.u)
        entering = _log_fractions(sums.entering, u, -own, self.log_sum)
        leaving = _log_fractions(sums.leaving, u, own, self.log_sum)
        alive = ~self.objective.dead[where]
        if not bool(alive.any()):
            return
        of_all = entering.exp() + leaving.exp()
        others = [(power, _log_fractions(parts, u, power * own, self.log_sum)) for power, parts in sums.powers]
        for _, logs in others:
            of_all = of_all + logs.exp()
        powers = [(power, logs[alive].tolist()) for power, logs in others]
        old = torch.where(alive, of_all, 0.0)
        remainder = 1.0 - float(old.sum())
        if remainder < _CANCELLATION:
            other = self.objective.log_sum(self.u, (layer.lo, layer.hi))
            of_dead = torch.where(alive, 0.0, of_all)
            remainder = math.exp(other - self.log_sum) + float(of_dead.sum())
        limit = math.inf if self.clamp is None else self.clamp
        balance = [layer.balance[h] for h in alive.nonzero()[:, 0].tolist()]
        limits = [(-limit - x, limit - x) for x in own[alive].tolist()]
        p, into = self.objective.size, entering[alive]
        found = None
        if len(powers) == 1 and powers[0][0] > 1 and not sums.leaving:
            found = power_recurrence(powers[0][0], balance, p, into, others[0][1][alive], remainder, limits)
        if found is None:
            found = recurrence(balance, p, into.tolist(), leaving[alive].tolist(), remainder, limits, powers)
        changes, new_sum = found
        new = own[alive] + torch.tensor(changes, dtype=torch.float64, device=own.device)
        self.u[where] = own.masked_scatter(alive, new)
        if new_sum > 0.0:
            self.log_sum += math.log(new_sum)
        else:  # the new sum underflowed as a fraction of the old one
            self.log_sum = self.objective.log_sum(self.u)


def uniform_recurrence(
    size: float, p: float, q: list[float], later: list[float], remainder: float
) -> tuple[list[float], float]:
    """As :func:`recurrence` for units of one balance +-``size``, with nothing but arithmetic in the loop.

    Args:
        size: absolute balance, not 0.
        p: number of parameters.
        q: ``4 (p^2 - size^2) x y`` of each unit.
        later: ``size`` times the sum of x + y over the units after each.
        remainder: part of the sum that no unit here touches.

    Returns:
        For each unit ``2 (p - size)`` times the new y (or x, where the balance is negative); and the new sum.
    """
    sqrt = math.sqrt
    found: list[float] = []
    append = found.append
    alpha, beta = size / (2.0 * (p - size)), size / (2.0 * (p + size))
    done = size * remainder
    for xy, rest in zip(q, later, strict=True):
        d = done + rest
        root = d + sqrt(d * d + xy)
        append(root)
        done += alpha * root + beta * xy / root
    return found, done / size


def recurrence(
    balance: list[float],
    p: int,
    entering: list[float],
    leaving: list[float],
    remainder: float,
    limits: list[tuple[float, float]],
    powers: Sequence[tuple[int, list[float]]] = (),
) -> tuple[list[float], float]:
    """Update units one after the other; all terms are fractions of the sum before.

    With x and y what leaves and enters a unit, x y does not change, and F is least along the unit's log-scale where
    ``p (x - y) + A (D + x + y) = 0``, D being the rest of the sum: a quadratic in x and in y. It is solved for the one
    whose root is free of cancellation. Units with elements of other powers have :func:`power_root`.

    Args:
        balance: A of each unit.
        p: number of parameters.
        entering: logarithm of y of each unit.
        leaving: logarithm of x of each unit.
        remainder: part of the sum that no unit here touches.
        limits: bounds on the change of each log-scale.
        powers: powers, and the logarithm of the elements with that power of each unit.

    Returns:
        The changes of the log-scales, and the sum after all updates.
    """
    later = [0.0]
    for h in reversed(range(len(balance))):
        later.append(later[-1] + math.exp(entering[h]) + math.exp(leaving[h]))
        for _, logs in powers:
            later[-1] += math.exp(logs[h])
    changes: list[float] = []
    done = remainder
    for h, a in enumerate(balance):
        ad = a * (done + later[-2 - h])
        others = [(power, logs[h]) for power, logs in powers if logs[h] > -math.inf]
        if others:
            change = power_root(a, p, ad, [(1, leaving[h]), (-1, entering[h]), *others])
            change = min(max(change, limits[h][0]), limits[h][1])
            changes.append(change)
            done += math.exp(leaving[h] + change) + math.exp(entering[h] - change)
            for power, log in others:
                done += math.exp(log + power * change)
            continue
        xy = entering[h] + leaving[h]
        root = math.sqrt(ad * ad + 4.0 * (p - a) * (p + a) * math.exp(xy))
        part = (ad + root) / (2.0 * (p - a)) if a > 0.0 else (root - ad) / (2.0 * (p + a))
        log = math.log(part) if part > 0.0 else 0.5 * xy
        change = entering[h] - log if a > 0.0 else log - leaving[h]
        change = min(max(change, limits[h][0]), limits[h][1])
        changes.append(change)
        done += math.exp(leaving[h] + change) + math.exp(entering[h] - change)
    return changes, done


def power_recurrence(
    k: int,
    balance: list[float],
    p: int,
    entering: Tensor,
    leaving: Tensor,
    remainder: float,
    limits: list[tuple[float, float]],
) -> tuple[list[float], float] | None:
    """As :func:`recurrence` for units with elements of power k > 1 that leave, and simple ones that enter.

    With x and y what leaves and enters, F is least where ``(k p + A) x t^k + A D = (p - A) y / t``, log t being the
    change of the log-scale. For ``t_0 = ((p - A) y / (k p + A) / x)^(1 / (k + 1))`` the first and the last term are
    equal, say m. So t is ``t_0`` times :func:`balanced_root` of ``-A D / m``.

    Args:
        k: the power.
        balance: A of each unit.
        p: number of parameters.
        entering: logarithm of y of each unit, shape (units,).
        leaving: logarithm of x of each unit, shape (units,).
        remainder: part of the sum that no unit here touches.
        limits: bounds on the change of each log-scale.

    Returns:
        The changes of the log-scales, and the sum after all updates; None where the numbers need logarithms.
    """
    a = torch.tensor(balance, dtype=torch.float64, device=entering.device)
    rising, falling = (k * p + a).log() + leaving, (p - a).log() + entering
    starts = (falling - rising) / (k + 1)
    equal = (falling - starts).exp()
    if not bool((a.abs() < 10.0 ** (200.0 / (k + 1)) * equal).all()):  # else balanced_root would overflow
        return None
    old = entering.exp() + leaving.exp()
    later = (old.flip(0).cumsum(0).flip(0) - old).tolist()
    changes: list[float] = []
    done = remainder
    both = zip(balance, starts.tolist(), equal.tolist(), later, limits, strict=True)
    for a_h, start, m, rest, (low, high) in both:
        t = balanced_root(-a_h * (done + rest) / m, k)
        change = start + math.log(t)
        if not low <= change <= high:
            change = min(max(change, low), high)
            t = math.exp(change - start)
        changes.append(change)
        done += m * (t**k / (k * p + a_h) + 1.0 / (t * (p - a_h)))
    return changes, done


def balanced_root(c: float, k: int) -> float:
    """The positive t with ``t^k - 1 / t = c``, to machine precision.

    Newton's method for ``t^(k + 1) - c t - 1``, or, where c is negative, for the same equation in ``1 / t``. Both are
    convex to the right of the root, and the start lies there, so that the steps go one way.
    """
    if c >= 0.0:
        t = (1.0 + c) ** (1.0 / k)
        for _ in range(100):
            power = t**k
            step = (t * (power - c) - 1.0) / ((k + 1) * power - c)
            t -= step
            if step <= 1e-15 * t:
                break
        return t
    s = 1.0 - c
    for _ in range(100):
        power = s ** (k - 1)
        step = (power * s * (s + c) - 1.0) / (power * ((k + 1) * s + k * c))
        s -= step
        if step <= 1e-15 * s:
            break
    return 1.0 / s


def power_root(a: float, p: int, ad: float, terms: list[tuple[int, float]]) -> float:
    """The change z of a log-scale at which F is least, for a unit whose elements have several powers.

    With ``x_k`` the elements of power k, F is least where ``sum_k (k p + A) x_k exp(k z) + A D = 0``, which for weights
    behind a squared ReLU is a cubic in exp(z). The sum has one change of sign, from negative to positive. Newton's
    method is applied to the logarithm of its positive terms minus that of its negative ones, which is close to linear,
    between bounds that it tightens.

    Args:
        a: balance A of the unit.
        p: number of parameters.
        ad: A times the rest D of the sum.
        terms: the powers, each with the logarithm of its elements.
    """
    left, right = [], []
    for k, log in (*terms, (0, 0.0)):
        factor = k * p + a if k else ad
        if factor and log > -math.inf:
            (left if factor > 0.0 else right).append((k, math.log(abs(factor)) + log))
    z, low, high = 0.0, -math.inf, math.inf
    for _ in range(200):
        (up, rise), (down, fall) = _log_sum_exp(left, z), _log_sum_exp(right, z)
        difference = down - up
        low, high = (z, high) if difference > 0.0 else (low, z)
        new = z + difference / (rise - fall) if rise > fall else math.nan
        if not low <= new <= high:
            if math.isinf(high - low):
                new = z + math.copysign(max(1.0, 2.0 * abs(z)), difference)
            else:
                new = 0.5 * (low + high)
        if abs(new - z) <= 1e-15 * max(1.0, abs(z), abs(up)):
            return new
        z = new
    return z


def _log(value: float) -> float:
    return math.log(value) if value > 0.0 else -math.inf


def _log_sum_exp(terms: list[tuple[int, float]], z: float) -> tuple[float, float]:
    """Log of the sum of ``exp(k z + log)`` over the terms ``(k, log)``, and its slope in z."""
    top = max(k * z + log for k, log in terms)
    parts = [math.exp(k * z + log - top) for k, log in terms]
    return top + math.log(sum(parts)), sum(k * part for (k, _), part in zip(terms, parts, strict=True)) / sum(parts)


def _set_powers(span: Span, units: slice, exp_plus: Tensor, exp_minus: Tensor) -> None:
    """Set the exponentials of a layer's nodes to powers of those of its units."""
    plus, minus = (exp_plus[units], exp_minus[units]) if span.power > 0 else (exp_minus[units], exp_plus[units])
    if span.positions is not None:
        plus, minus = (x[span.positions.to(x.device)] for x in (plus, minus))
    nodes, degree = slice(span.first, span.stop), abs(span.power)
    exp_plus[nodes], exp_minus[nodes] = (x if degree == 1 else x**degree for x in (plus, minus))


def _log_fractions(sums: tuple[BlockSum, ...], u: Tensor, own: Tensor, log_sum: float) -> Tensor:
    """Log of the fraction of the sum that enters (or leaves) each unit of a layer, shape (units of the layer,)."""
    found = torch.full_like(own, -math.inf)
    for block_sum in sums:
        if block_sum.others is None:
            found = torch.logaddexp(found, block_sum(1.0).log() + own + (block_sum.log - log_sum))
            continue
        logs = -u[block_sum.others] if block_sum.columns else u[block_sum.others]
        shift = float(logs.amax())
        found = torch.logaddexp(found, block_sum((logs - shift).exp()).log() + own + (block_sum.log + shift - log_sum))
    return found


# ---- Newton's method


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
    inner: list[tuple[Tensor, Tensor]] = []  # units, and fractions times squared multiples of u_h
    for index, block in enumerate(objective.blocks):
        leaving, entering = fractions(block, exponentials, log_sum)
        difference.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering, alpha=-1)
        if index < len(layout.blocks):
            diagonal.index_add_(0, block.cols, leaving).index_add_(0, block.rows, entering)
        else:
            unit_of, power_of = (layout.on(t, u.device) for t in (layout.unit_of, layout.power_of))
            inner.append((unit_of[block.rows], leaving * (power_of[block.cols] - power_of[block.rows]).square()))
        at_cols, at_rows, log = exponentials.of(block)
        at_rows = at_rows * math.exp(min(700.0, log - log_sum))
        terms.append((block, at_cols, at_rows, leaving, entering))
    difference = layout.fold(difference)
    diagonal = layout.fold(diagonal, square=True)
    for units, found in inner:
        diagonal = diagonal.index_add(0, units, found)
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

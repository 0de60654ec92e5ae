"""The GPU kernel behind :mod:`pathcond.cuda`; imported only where it is run."""

# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false
import triton
import triton.language as tl


@triton.jit
def update_units(into_ptr, out_ptr, up_ptr, down_ptr, state_ptr, setting_ptr, n, BLOCK: tl.constexpr):
    """Update ``n`` units; ``state`` holds log of the sum, and counts groups that need the careful way."""
    i = tl.arange(0, BLOCK)
    live = i < n
    unit = tl.load(setting_ptr)  # numbers come as float64 in memory: arguments would be rounded to float32
    p = tl.load(setting_ptr + 1)
    a = tl.load(setting_ptr + 2)
    cancels = tl.load(setting_ptr + 3)
    tolerance = tl.load(setting_ptr + 4)
    least = tl.load(setting_ptr + 5)
    most = tl.load(setting_ptr + 6)
    log_sum = tl.load(state_ptr)
    share = tl.exp(unit - log_sum)
    up = tl.load(up_ptr + i, mask=live, other=1.0)
    down = tl.load(down_ptr + i, mask=live, other=1.0)
    into = tl.where(live, tl.load(into_ptr + i, mask=live, other=0.0) * down * share, 0.0)
    out = tl.where(live, tl.load(out_ptr + i, mask=live, other=0.0) * up * share, 0.0)
    old = into + out
    total = tl.sum(old)
    base = 1.0 - total
    size = tl.abs(a)
    q = into * out * (4.0 * (p - size) * (p + size))
    later = tl.maximum(total - tl.cumsum(old), 0.0)
    new = old
    part = old
    rounds = 0
    moved = total
    while (moved > 0.0) & (rounds < BLOCK + 1):
        d = size * (base + later + (tl.cumsum(new) - new))
        part = tl.where(live, (d + tl.sqrt(d * d + q)) / (2.0 * (p - size)), 1.0)
        fresh = tl.where(live, part + into * out / part, 0.0)
        moved = tl.max(tl.abs(fresh - new) - tolerance * fresh)
        new = fresh
        rounds += 1
    change = tl.where(a > 0, into / part, part / tl.where(live, out, 1.0))
    sound = (
        (base > cancels) & (tl.min(tl.where(live, change, 1.0)) > least) & (tl.max(tl.where(live, change, 1.0)) < most)
    )
    if sound:
        tl.store(up_ptr + i, up * change, mask=live)
        tl.store(down_ptr + i, down / change, mask=live)
        tl.store(state_ptr, log_sum + tl.log(base + tl.sum(new)))
    else:
        tl.store(state_ptr + 1, tl.load(state_ptr + 1) + 1.0)

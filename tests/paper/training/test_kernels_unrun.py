"""The kernels where there is no GPU: their values in Triton's interpreter, and that they compile for a GPU."""

import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="the kernels are written in Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

pytest.importorskip("triton.experimental.gluon", reason="some are written in Gluon")
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction  # noqa: E402
from triton.experimental.gluon.language import NVMMASharedLayout  # noqa: E402

from paper.training.kernels import convolution, hopper, triton_layers  # noqa: E402
from tests.paper.training import test_kernels  # noqa: E402


@pytest.mark.slow
def test_values_in_the_interpreter():
    """In a process of its own: a kernel is made for the interpreter or for a GPU when it is defined."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test_kernels.__file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


MAPS = {"x": "*bf16", "out": "*bf16", "grad": "*bf16", "maximum": "*bf16", "result": "*bf16", "argmax": "*i8"}
NUMBERS = (
    "pixels", "inputs", "height", "width", "rows", "columns", "channels", "examples", "units", "n",
    "split_stride", "runs",
)  # fmt: skip
LAYER = {"EXAMPLES": 128, "UNITS": 32, "KIND": 1}
WHOLE = {"n": 500, "EXAMPLES": 128, "KIND": 1, "NORM": True, "BIAS": False, "DEFERRED": True, "KEEP": True}
LAYOUT = "," + repr(NVMMASharedLayout(128, 32, rank=3))
FLAGS = {"KIND": 1, "NORM": True, "BIAS": False, "DEFERRED": True}
BACKWARD = {"n": 500, "m": 784, "E": 128, "N": 64, "M": 64, "GS": 2, "WS": 3, "WARPS": 4, **FLAGS}
PREFETCH = {"n": 500, "m": 784, "E": 128, "N": 128, "M": 32, "SPLITS": 3, "XS": 3, "WS": 3, "NEXT": True, "WARPS": 8}
ENORM = {"n": 500, "m": 784, "outputs": 500, "UNITS": 8, "BLOCK": 1024, "ABOVE": 512, "SPLITS": 0}


def tiles(layout="", **shapes):
    """Types of descriptors of tiles."""
    return {name: f"tensordesc<fp32[1, {rows}, {columns}]{layout}>" for name, (rows, columns) in shapes.items()}


COMPILED = {
    "channel sums": (convolution._channel_sums_kernel, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 4}),
    "pool": (convolution._pool_kernel, MAPS, {"C": 128, "BLOCK": 16, "TRAIN": True}),
    "pool of one": (convolution._pool_kernel, MAPS, {"C": 256, "BLOCK": 1, "TRAIN": False}),
    "pool backward sums": (convolution._pool_sums_kernel, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 2}),
    "pool backward": (convolution._pool_backward_kernel, MAPS, {"C": 128, "BLOCK": 8}),
    "relu backward": (convolution._relu_backward_kernel, MAPS, {"TILE": 64, "BLOCK": 64, "STEPS": 2}),
    "norm": (triton_layers._norm_backward_kernel, {}, {**LAYER, "DEFERRED": True}),
    "plain": (triton_layers._plain_backward_kernel, {}, {**LAYER, "DEFERRED": False, "BIAS": True}),
    **{
        name: (triton_layers._enorm_kernel, {}, {**ENORM, **flags})
        for name, flags in {
            "enorm": {"FIRST": False, "LAST": False, "BIAS": True, "DEFERRED": False},
            "enorm deferred": {"SPLITS": 2, "FIRST": True, "LAST": False, "BIAS": False, "DEFERRED": True},
            "enorm last layer": {"FIRST": False, "LAST": True, "BIAS": True, "DEFERRED": False},
        }.items()
    },
    "forward": (hopper._forward, tiles(x=(128, 32), w=(64, 32)), {**WHOLE, "m": 3072, "UNITS": 64, "M": 32}),
    "sum partials": (hopper._sum_partials, {}, {**WHOLE, "UNITS": 32, "SPLITS": 3}),
    "gather": (hopper._gather, {"images": "*u8", "index": "*i64"}, {"n": 784, "EXAMPLES": 128, "UNITS": 32}),
    "backward": (hopper._backward, tiles(LAYOUT, g=(128, 64), a=(128, 64), w=(64, 64), z=(128, 64)), BACKWARD),
    "update and prefetch": (
        hopper._update_and_prefetch,
        tiles(LAYOUT, g=(128, 128), xT=(32, 128), x=(128, 32), w=(128, 32)),
        PREFETCH,
    ),
}


def compiled(kernel, types, constants, **options):
    """For a chip of the Hopper kind, without one."""
    kinds = {**dict.fromkeys(kernel.arg_names, "*fp32"), **dict.fromkeys(NUMBERS, "i32"), **types}
    signature = {a: "constexpr" if a in constants else kinds[a] for a in kernel.arg_names}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = (GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource)(kernel, signature, values)
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": constants.get("WARPS", 4), **options}
    )


@pytest.mark.parametrize("name", COMPILED)
def test_kernels_compile_for_a_gpu(name):
    """What the interpreter lets pass may not compile."""
    assert compiled(*COMPILED[name]).asm["cubin"]

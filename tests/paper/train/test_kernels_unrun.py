"""The kernels where there is no GPU: their values in Triton's interpreter, and that they compile for a GPU."""

import os
import subprocess
import sys

import pytest
import torch

triton = pytest.importorskip("triton", reason="the kernels are written in Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

pytest.importorskip("triton.experimental.gluon", reason="some are written in Gluon")
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction  # noqa: E402
from triton.experimental.gluon.language import NVMMASharedLayout  # noqa: E402

from paper.train import first, glide, hopper, maps, stacked  # noqa: E402
from pathcond.cuda_kernel import update_units  # noqa: E402
from tests.paper.train import test_kernels  # noqa: E402


@pytest.mark.slow
def test_values_in_the_interpreter():
    """In a process of its own: a kernel is made for the interpreter or for a GPU when it is defined."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test_kernels.__file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


MAPS = {"x": "*bf16", "out": "*bf16", "grad": "*bf16", "chosen": "*bf16", "result": "*bf16", "place": "*i8"}
NUMBERS = (
    "pixels", "inputs", "height", "width", "rows", "columns", "channels", "examples", "units", "n", "between", "runs",
)  # fmt: skip
SOLVER = dict.fromkeys(("into_ptr", "out_ptr", "up_ptr", "down_ptr", "state_ptr", "setting_ptr"), "*fp64")
LAYER = {"EXAMPLES": 128, "UNITS": 32, "KIND": 1}
WHOLE = {"n": 500, "EXAMPLES": 128, "KIND": 1, "NORM": True, "BIAS": False, "APART": True, "KEEP": True}
LAYOUT = "," + repr(NVMMASharedLayout(128, 32, rank=3))
FLAGS = {"KIND": 1, "NORM": True, "BIAS": False, "APART": True}
DOWN = {"n": 500, "m": 784, "E": 128, "N": 64, "M": 64, "GS": 2, "WS": 3, "WARPS": 4, **FLAGS}
AHEAD = {"n": 500, "m": 784, "E": 128, "N": 128, "M": 32, "SHARES": 3, "XS": 3, "WS": 3, "NEXT": True, "WARPS": 8}
ENORM = {"n": 500, "m": 784, "leave": 500, "UNITS": 8, "BLOCK": 1024, "ABOVE": 512, "SHARES": 0}


def tiles(layout="", **shapes):
    """Types of descriptors of tiles."""
    return {name: f"tensordesc<fp32[1, {rows}, {columns}]{layout}>" for name, (rows, columns) in shapes.items()}


COMPILED = {
    "sums": (maps._sums, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 4}),
    "pool": (maps._pool, MAPS, {"C": 128, "BLOCK": 16, "TRAIN": True}),
    "pool of one": (maps._pool, MAPS, {"C": 256, "BLOCK": 1, "TRAIN": False}),
    "pool_sums": (maps._pool_sums, MAPS, {"C": 128, "BLOCK": 32, "STEPS": 2}),
    "pool_back": (maps._pool_back, MAPS, {"C": 128, "BLOCK": 8}),
    "first": (first._first, {**MAPS, "weight": "*bf16"}, {"C": 128, "BLOCK": 64}),
    "first_back": (first._first_back, MAPS, {"C": 128, "BLOCK": 128, "STEPS": 4}),
    "relu_back": (maps._relu_back, MAPS, {"TILE": 64, "BLOCK": 64, "STEPS": 2}),
    "norm": (stacked._norm, {}, {**LAYER, "APART": True}),
    "plain": (stacked._plain, {}, {**LAYER, "APART": False, "BIAS": True}),
    "balance": (stacked._balance, {}, {**ENORM, "FIRST": False, "LAST": False, "BIAS": True, "APART": False}),
    "balance apart": (
        stacked._balance,
        {},
        {**ENORM, "SHARES": 2, "FIRST": True, "LAST": False, "BIAS": False, "APART": True},
    ),
    "balance at last": (stacked._balance, {}, {**ENORM, "FIRST": False, "LAST": True, "BIAS": True, "APART": False}),
    "up": (hopper._up, tiles(x=(128, 32), w=(64, 32)), {**WHOLE, "m": 3072, "UNITS": 64, "M": 32}),
    "finish": (hopper._finish, {}, {**WHOLE, "UNITS": 32, "SHARES": 3}),
    "fetch": (hopper._fetch, {"images": "*u8", "index": "*i64"}, {"n": 784, "EXAMPLES": 128, "UNITS": 32}),
    "down": (glide.down, tiles(LAYOUT, g=(128, 64), a=(128, 64), w=(64, 64), z=(128, 64)), DOWN),
    "ahead": (glide.ahead, tiles(LAYOUT, g=(128, 128), xT=(32, 128), x=(128, 32), w=(128, 32)), AHEAD),
    "solver": (update_units, SOLVER, {"BLOCK": 512}),
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


@pytest.mark.parametrize("shared", [65_536, 101_376, 232_448], ids=["Turing", "Ada", "Hopper"])
@pytest.mark.parametrize(("kind", "dtype"), [("*bf16", torch.bfloat16), ("*fp32", torch.float32)])
def test_the_way_back_fits_shared_memory(kind, dtype, shared):
    for channels in first.CHANNELS:
        block = first._block(torch.empty(1, channels, 1, 1, dtype=dtype), shared)
        sizes = {"C": channels, "BLOCK": block, "STEPS": 4}
        made = compiled(first._first_back, dict.fromkeys(("grad", "out"), kind), sizes, num_stages=first.STAGES)
        assert made.metadata.shared <= shared
        assert block >= 16  # what a product asks for

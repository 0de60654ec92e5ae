"""On a GPU: the same numbers as on the CPU."""

import copy
import math

import pytest
import torch

import pathcond
from paper import models
from tests.cases import BY_NAME, CASES, mlp

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("case", CASES[: CASES.index(BY_NAME["sdpa"])], ids=lambda c: c.name)
def test_cases_agree_with_the_cpu(case):
    model, x = case.model().eval(), case.input()
    twin, y = copy.deepcopy(model).cuda(), x.cuda()
    expected = pathcond.compute_diag_g(model, x)
    found = pathcond.compute_diag_g(twin, y)
    for name, t in expected.items():
        rtol = 1e-6 if case.name == "weight_norm" else 1e-10  # that norm's GPU kernel works in float32
        torch.testing.assert_close(found[name].cpu(), t, rtol=rtol, atol=1e-13)
    for objective in ("paths", "norms"):
        reports = [
            pathcond.rescale_(copy.deepcopy(m), z, objective=objective, clamp=None) for m, z in ((model, x), (twin, y))
        ]
        atol = 1e-5 if case.name == "weight_norm" else 1e-8
        torch.testing.assert_close(reports[1].solution.log_scales, reports[0].solution.log_scales, rtol=0, atol=atol)
        assert reports[1].output_change < 1e-9


@pytest.mark.parametrize("name", ["mlp", "cifar_nv", "resnet18_c"])
def test_steps_are_those_of_the_cpu(name):
    torch.manual_seed(0)
    model, x = models.KINDS[name]().cuda().eval(), torch.ones(1, 3, 32, 32, device="cuda")
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    g = pathcond.compute_diag_g(model, x, graph=graph, dtype=torch.float64)
    here = pathcond.solve(graph, {n: t.cpu() for n, t in g.items()})
    for method in ("sweeps", "optimum"):
        assert pathcond.solve(graph, g, method=method).residual < (1e-9 if method == "optimum" else 1.0)
    there = pathcond.solve(graph, g)
    torch.testing.assert_close(there.log_scales, here.log_scales, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.tensor(there.objective), torch.tensor(here.objective), rtol=1e-12, atol=0)


def test_settings_are_left_as_found():
    model, x = mlp(3, 8, 2).cuda(), torch.ones(1, 3, device="cuda")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    state = torch.cuda.get_rng_state()
    try:
        with torch.autocast("cuda", torch.bfloat16):
            report = pathcond.rescale_(model, x)
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.equal(state, torch.cuda.get_rng_state())
    assert report.units == 8
    model[0].weight.data[0, 0] = math.nan
    with pytest.raises(pathcond.PathCondError, match=r"'0\.weight'"):
        pathcond.rescale_(model, x)

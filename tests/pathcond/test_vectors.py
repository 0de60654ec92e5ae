"""The library against reference numbers from explicit path enumeration in 60 digits."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import pathcond
from paper.paths import count_paths
from tests.reference import problem_of
from tests.steps import rescale_by_steps
from tests.vectors import NAMES, Network, load, tensor


@pytest.fixture(params=NAMES)
def case(request):
    """A reference network, and the units that are no neuron of it: channels tied along an identity shortcut."""
    spec = load(request.param)
    model = Network(spec).eval()
    x = tensor(spec["example_input"])
    graph = pathcond.extract_graph(model, x[:1], batchnorm="exclude")
    ones = {name: torch.ones(spec["parameter_shapes"][name]) for name in spec["parameter_order"]}
    known = [sorted(neuron["incoming"]) for neuron in spec["neurons"]]
    incoming = problem_of(graph, ones).incoming
    return spec, model, x, graph, torch.tensor([entries.tolist() not in known for entries in incoming])


def test_output_units_and_path_count(case):
    spec, model, x, graph, fixed = case
    torch.testing.assert_close(model(x).detach(), tensor(spec["example_output"]), rtol=1e-12, atol=1e-14)
    assert count_paths(model, x[:1], pooling="all") == pytest.approx(spec["number_of_paths"], rel=1e-12)
    assert int((~fixed).sum()) == spec["number_of_hidden_neurons"]
    problem = problem_of(graph, {name: torch.ones(spec["parameter_shapes"][name]) for name in spec["parameter_order"]})
    units = [h for h in range(graph.units) if not fixed[h]]
    for neuron, h in zip(spec["neurons"], units, strict=True):
        assert problem.incoming[h].tolist() == sorted(neuron["incoming"])
        assert problem.outgoing[h].tolist() == sorted(neuron["outgoing"])


@pytest.mark.parametrize("pooling", ["exact", "plain"])
def test_diag_g(case, pooling):
    spec, model, x, *_ = case
    key = "diag_G" if pooling == "exact" else "diag_G_plain_pooling"
    if key not in spec:
        pytest.skip("no pools in this network")
    g = pathcond.compute_diag_g(model, x[:1], pooling=pooling)
    for name in spec["parameter_order"]:
        torch.testing.assert_close(g[name], tensor(spec[key][name]), rtol=1e-12, atol=0)


def test_solutions(case):
    spec, model, x, graph, fixed = case
    g = pathcond.compute_diag_g(model, x[:1])
    for name in ("1", "2", "10", "optimum"):
        optimum = name == "optimum"
        how = {"method": "optimum"} if optimum else {"sweeps": int(name)}
        solution = pathcond.solve(graph, g, fixed=fixed, **how)
        assert not solution.log_scales[fixed].any()
        torch.testing.assert_close(
            2 * solution.log_scales[~fixed], tensor(spec["u"][name]), rtol=0, atol=1e-8 if optimum else 1e-10
        )
        assert solution.objective[0] == pytest.approx(spec["F"]["0"], rel=1e-12)
        assert solution.objective[-1] == pytest.approx(spec["F"][name], rel=1e-12)
    assert solution.residual <= 1e-10
    assert solution.result is pathcond.Result.OPTIMUM


@pytest.mark.parametrize("method", ["sweeps", "optimum"])
def test_rescaled_parameters(case, method):
    spec, model, x, graph, fixed = case
    rescale_by_steps(model, x[:1], method=method, graph=graph, fixed=fixed)
    expected = spec["rescaled_parameters"]["10" if method == "sweeps" else "optimum"]
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), tensor(expected[name]), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(model(x).detach(), tensor(spec["example_output"]), rtol=1e-11, atol=1e-13)
    if method == "optimum" and "bn1.weight" not in spec["parameters"]:  # there exp(Bu) g is not diag(G) afterwards
        g = pathcond.compute_diag_g(model, x[:1])
        for name in g:
            torch.testing.assert_close(g[name], tensor(spec["diag_G_after_optimum"][name]), rtol=1e-7, atol=0)


def test_batchnorm_ignored():
    """Without the normalisation's own parameters in g they do not count in p."""
    spec = load("mlp_batchnorm_at_init")
    model, x = Network(spec).eval(), tensor(spec["example_input"])
    graph = pathcond.extract_graph(model, x, batchnorm="exclude")
    g = {n: t for n, t in pathcond.compute_diag_g(model, x[:1]).items() if not n.startswith("bn")}
    for sweeps, expected in spec["u_batchnorm_ignored"].items():
        how = {"method": "optimum"} if sweeps == "optimum" else {"sweeps": int(sweeps)}
        torch.testing.assert_close(2 * pathcond.solve(graph, g, **how).log_scales, tensor(expected), rtol=0, atol=1e-8)


def batchnorm_model(parameters):
    layers: dict[str, nn.Module] = {}
    for i in (1, 2, 3):
        outputs, inputs = tensor(parameters[f"layer{i}.weight"]).shape
        layers[f"layer{i}"] = nn.Linear(inputs, outputs, bias=f"layer{i}.bias" in parameters)
        if i < 3:
            layers |= {f"bn{i}": nn.BatchNorm1d(outputs), f"relu{i}": nn.ReLU()}
    model = nn.Sequential(OrderedDict(layers)).double()
    missing, unexpected = model.load_state_dict({k: tensor(v) for k, v in parameters.items()}, strict=False)
    assert not unexpected
    assert all("num_batches" in m for m in missing), missing
    return model


@pytest.mark.parametrize("rule", ["affine", "exclude"])
def test_batchnorm_rules(rule):
    spec = load("batchnorm_exact_rescaling")
    x = tensor(spec["example_input"])
    model = batchnorm_model(spec["parameters"])
    graph = pathcond.extract_graph(model, x, batchnorm=rule)
    scales = torch.cat([tensor(v) for v in spec["lambda"].values()])
    assert graph.units == len(scales)
    pathcond.apply_scales_(model, graph, scales.log())
    key = "rescaled_parameters_exact" if rule == "affine" else "rescaled_parameters_weights_only"
    for name, values in spec[key].items():
        torch.testing.assert_close(model.state_dict()[name], tensor(values), rtol=1e-12, atol=1e-14)
    outputs = spec["outputs"]["exact" if rule == "affine" else "weights_only"]
    for mode, expected in outputs.items():
        model.train(mode.startswith("train"))
        torch.testing.assert_close(model(x).detach(), tensor(expected), rtol=1e-11, atol=1e-13)
        same = torch.allclose(tensor(expected), tensor(spec["outputs"]["original"][mode]), rtol=1e-9)
        assert same == (rule == "affine")

"""The reference networks of ``tests/pathcond/data``: each a JSON file with exact parameters and expected numbers."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "pathcond" / "data"
NAMES = sorted(p.stem for p in FOLDER.glob("*.json") if p.stem != "batchnorm_exact_rescaling")


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_text())


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Network(nn.Module):
    """Runs the list of nodes of a reference file. Parameters keep the file's names, with dots as modules."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.nodes = spec["network"]
        for name in spec["parameter_order"]:
            owner: nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner._modules[part]  # type: ignore[assignment]
            owner.register_parameter(last, nn.Parameter(tensor(spec["parameters"][name])))
        for node in self.nodes:
            if node["op"] == "batchnorm":
                owner = self.get_submodule(node["weight"].rpartition(".")[0])
                size = owner.get_parameter("weight").shape
                owner.register_buffer("running_mean", torch.full(size, node["running_mean"], dtype=torch.float64))
                owner.register_buffer("running_var", torch.full(size, node["running_var"], dtype=torch.float64))

    def _get(self, node: dict[str, Any], key: str) -> Tensor | None:
        return self.get_parameter(node[key]) if key in node else None

    def forward(self, x: Tensor) -> Tensor:
        values = {"x": x}
        result = x
        for node in self.nodes:
            if node["op"] != "input":
                result = values[node["id"]] = self._apply_node(node, [values[i] for i in node["inputs"]])
        return result

    def _apply_node(self, node: dict[str, Any], inputs: list[Tensor]) -> Tensor:
        x, op = inputs[0], node["op"]
        weight, bias = self._get(node, "weight"), self._get(node, "bias")
        if op == "linear":
            return F.linear(x, weight, bias)  # type: ignore[arg-type]
        if op == "conv2d":
            return F.conv2d(x, weight, bias, node.get("stride", 1), node.get("padding", 0))  # type: ignore[arg-type]
        if op == "batchnorm":
            owner = self.get_submodule(node["weight"].rpartition(".")[0])
            mean, var = owner.get_buffer("running_mean"), owner.get_buffer("running_var")
            return F.batch_norm(x, mean, var, weight, bias, self.training, 0.1, node["eps"])
        if op == "maxpool2d":
            return F.max_pool2d(x, node["kernel"], node["stride"], node.get("padding", 0))
        if op == "avgpool2d":
            return F.avg_pool2d(x, node["kernel"], node["stride"])
        if op == "global_avgpool":
            return x.mean((2, 3))
        if op == "flatten":
            return x.flatten(1)
        return inputs[0] + inputs[1] if op == "add" else F.relu(x)

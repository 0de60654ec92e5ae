"""Training as one would write it, to hold the engine against: modules, autograd, torch.optim, loops over units."""

import torch
from torch import nn
from torch.nn import functional

from paper.cells import cells_of
from paper.normalise import factors
from paper.seeds import generator
from paper.train import layers
from paper.train.sets import Part, Sets

CPU = torch.device("cpu")
MLP = {"kind": "mlp", "inputs": 12, "hidden": [6, 5, 4], "outputs": 10, "activation": "relu"}
BARE = {**MLP, "batchnorm": False}
WIDE = {**MLP, "inputs": 96, "hidden": [72, 64, 68]}  # enough for kernels of whole layers
AUTOENCODER = {"kind": "autoencoder", "inputs": 48, "compression": 2, "activation": "relu"}
CONV = {"kind": "cifar_nv", "width": 0.03125, "image": 8}
METHODS = ("baseline", "pathcond", "rows", "columns", "exact", "optimum")


def cell(model, method="baseline", rescaling=None, **changes):
    """A cell of a small experiment, made as the plan makes them; `rescaling` changes what its method does."""
    block = {
        "model": {"kind": "cifar_nv"}, "methods": [method], "lrs": [0.05], "optimiser": {"name": "sgd"}, "batch": 16,
        "epochs": 3, "dataset": "generated", "images": 55, "validation": 0, "test_images": 21, "seeds": [0, 1],
    }  # fmt: skip
    lr = changes.pop("lr", 0.05)
    made = cells_of("", {**block, **changes, "lrs": [lr]}, "tiny")[0]
    task = "rebuild" if model["kind"] == "autoencoder" else "classify"
    named = {"network": model["kind"], "model": model, "task": task}
    return {**made, **named, "rescaling": {**made["rescaling"], **(rescaling or {})}}


def random_sets(cell, device=CPU):
    """As many images as a cell asks for: ten random patterns under noise, which can be learnt."""
    source, flat = generator(7, "input"), cell["model"]["kind"] != "cifar_nv"
    side = cell["model"].get("image", 8)
    shape = (cell["model"]["inputs"],) if flat else (3, side, side)

    patterns = torch.randint(0, 256, (10, *shape), generator=source)

    def part(count):
        labels = torch.randint(0, 10, (count,), generator=source)
        images = (patterns[labels] + torch.randint(0, 256, (count, *shape), generator=source)) // 2
        return Part(images.to(torch.uint8).to(device), labels.to(device))

    sizes = {"train": cell["images"], "validation": cell["validation"], "test": cell["test_images"]}
    scale, shift = factors("generated")
    if flat:
        scale, shift = (t.repeat_interleave(shape[0] // 3) for t in (scale, shift))
    else:
        scale, shift = (t.view(3, 1, 1) for t in (scale, shift))
    return Sets({name: part(count) for name, count in sizes.items() if count}, scale.to(device), shift.to(device))


def inputs(part, sets, dtype=torch.float32):
    """Images as a network takes them, from their definition."""
    mean, deviation = 0.5, 0.25
    return ((part.images.to(dtype) / 255 - mean) / deviation).to(sets.scale.device)


def loss_of(module, x, labels, task):
    """The loss of a batch."""
    y = module(x)
    return functional.cross_entropy(y, labels) if task == "classify" else functional.mse_loss(y, x.flatten(1))


def take_step(module, optimisers, x, labels, task):
    """One step of training."""
    module.train()
    for optimiser in optimisers:
        optimiser.zero_grad()
    loss_of(module, x, labels, task).backward()
    for optimiser in optimisers:
        optimiser.step()


def batches(seed, epoch, count, size):
    """Numbers of the images in the batches of an epoch."""
    return torch.randperm(count, generator=generator(seed, "order", epoch)).split(size)


def train_epoch(module, optimisers, cell, sets, seed, epoch, after=lambda: None, x=None):
    """One epoch of a module; `after` is called after every step, `x` are the inputs if they are given."""
    x = inputs(sets.train, sets) if x is None else x
    for index in batches(seed, epoch, len(sets.train), cell["batch"]):
        take_step(module, optimisers, x[index], sets.train.labels[index], cell["task"])
        after()


def evaluate(module, sets, task):
    """Mean loss and accuracy of every part, in eval mode, in one batch and float64."""
    module = module.double().eval()
    found = {}
    with torch.no_grad():
        for name, part in sets.parts.items():
            x = inputs(part, sets, torch.float64)
            found[f"{name}_loss"] = float(loss_of(module, x, part.labels, task))
            if task == "classify":
                found[f"{name}_accuracy"] = float((module(x).argmax(1) == part.labels).double().mean())
    return found


def balance_units(module):
    """One cycle of ENorm (p = 2, c = 1), a unit at a time; BatchNorm and units that feed the last layer stay."""
    linear = [m for m in module if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for below, above in zip(linear[:-2], linear[1:-1], strict=True):
            for unit in range(below.out_features):
                entering = sum(float(w) ** 2 for w in below.weight[unit])
                leaving = sum(float(w) ** 2 for w in above.weight[:, unit])
                if entering == 0 or leaving == 0:
                    continue
                scale = (leaving / entering) ** 0.25
                below.weight[unit] *= scale
                if below.bias is not None:
                    below.bias[unit] *= scale
                above.weight[:, unit] /= scale


def values(module):
    """Parameters and running statistics by name."""
    return {name: t for name, t in module.state_dict().items() if not name.endswith("num_batches_tracked")}


def assert_same(found, expected, rtol=1e-9, atol=1e-9):
    """Two modules with the same numbers."""
    for name, tensor in values(expected).items():
        torch.testing.assert_close(
            values(found)[name], tensor, rtol=rtol, atol=atol, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}"
        )


def curves(backend, epochs, first=1):
    """What a backend measures at the start and after each epoch, by name: (epochs + 1, runs)."""
    found = [backend.evaluate()]
    for epoch in range(first, first + epochs):
        backend.epoch(epoch)
        backend.teleport(epoch)
        found.append(backend.evaluate())
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


class Own:
    """What `hopper` offers, by torch."""

    @staticmethod
    def fits(weight, examples):
        return min(weight.shape[1:]) >= 64

    @staticmethod
    def fetch(images, index, scale, shift):
        x = layers.fetch(images, index, scale, shift)
        return x, functional.pad(x.mT, (0, 128 - x.shape[1]))

    @staticmethod
    def finish(shares, norm, bias, kind, row, keep):
        z = shares.sum(0)
        if norm:
            return layers.norm_forward(z, norm, kind, row)
        a = layers.plain_forward(z, bias, kind, row)
        return a, z if keep else a

    @staticmethod
    def forward(x, weight, *how):
        return Own.finish(torch.bmm(x, weight.mT)[None], *how)

    @staticmethod
    def rebuild_gradient(x, weight, bias, target, rate):
        return layers.rebuild_gradient(torch.bmm(x, weight.mT), bias, target, rate)

    @staticmethod
    def backward(grad, weight, a, saved, norm, bias, kind, row):
        below = torch.bmm(grad, weight)
        weight.baddbmm_(grad.mT, a, alpha=-1)
        if norm:
            return layers.norm_backward(below, saved, norm, kind, row)
        if kind != "relu":
            return layers.plain_backward(below, saved, bias, kind, row)
        below = layers.plain_backward(below, a, None, kind)  # what was saved may be anything
        if bias is not None:
            bias.sub_(below.sum(1, keepdim=True))
        return below if row is None else below / row

    @staticmethod
    def first(grad, turned, then, weight):
        weight.baddbmm_(grad.mT, turned[:, :, : grad.shape[1]].mT, alpha=-1)
        product = None if then is None else torch.bmm(then, weight.mT) * torch.ones(2, 1, 1, 1) / 2
        return product, weight.square().sum(2)[None]

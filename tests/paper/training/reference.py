"""Plain training as a reference for the engine: modules, autograd, torch.optim, loops over units."""

import torch
from torch import nn
from torch.nn import functional

from paper.runs import training_specs
from paper.seeds import generator
from paper.training.datasets import Split, Splits, factors

CPU = torch.device("cpu")
MLP = {"kind": "mlp", "inputs": 12, "hidden": [6, 5, 4], "outputs": 10, "activation": "relu"}
BARE = {**MLP, "batchnorm": False}
FLAT = {**MLP, "inputs": 192}  # for the images of `generated`
AUTOENCODER = {"kind": "autoencoder", "inputs": 48, "compression": 2, "activation": "relu"}
CONV = {"kind": "cifar_nv", "width": 0.03125, "image": 8}
GPT = {"kind": "gpt", "vocabulary": 16, "context": 32, "width": 24, "layers": 2, "heads": 3}
METHODS = ("baseline", "pathcond", "rows", "columns", "exact", "optimum")


def make_spec(model, method="baseline", rescaling=None, **changes):
    """A spec of a small experiment, made as the workflow makes them; `rescaling` changes what its method does."""
    grid = {
        "network": model["kind"], "model": model, "methods": [method], "optimiser": {"name": "sgd"}, "batch": 16,
        "epochs": 3, "dataset": "generated", "images": 55, "validation": 0, "test_images": 21,
    }  # fmt: skip
    lr, seed = changes.pop("lr", 0.05), changes.pop("seed", 0)
    (made,) = training_specs({**grid, **changes, "lrs": [lr], "seeds": [seed]}, "tiny")
    return {**made, "rescaling": {**made["rescaling"], **(rescaling or {})}}


def random_splits(spec, device=CPU):
    """As many images as a spec asks for: ten random patterns under noise, to be learned; or windows of a text."""
    if spec["task"] == "predict_next":
        return text_splits(spec, device)
    source, flat = generator(7, "input"), "image" not in spec["model"]
    side = spec["model"].get("image", 8)
    shape = (spec["model"]["inputs"],) if flat else (3, side, side)

    patterns = torch.randint(0, 256, (10, *shape), generator=source)

    def part(count):
        labels = torch.randint(0, 10, (count,), generator=source)
        images = (patterns[labels] + torch.randint(0, 256, (count, *shape), generator=source)) // 2
        return Split(images.to(torch.uint8).to(device), labels.to(device))

    sizes = {"train": spec["images"], "validation": spec["validation"], "test": spec["test_images"]}
    scale, shift = factors("generated")
    if flat:
        scale, shift = (t.repeat_interleave(shape[0] // 3) for t in (scale, shift))
    else:
        scale, shift = (t.view(3, 1, 1) for t in (scale, shift))
    return Splits({name: part(count) for name, count in sizes.items() if count}, scale.to(device), shift.to(device))


def text_splits(spec, device=CPU):
    """Windows of a text of even steps around the alphabet, whose size changes from window to window."""
    size, context = spec["model"]["vocabulary"], spec["model"]["context"]

    def part(count, first):
        number = torch.arange(first, first + count)[:, None]
        text = (number + (1 + number % 3) * torch.arange(context + 1)) % size
        return Split(text[:, :-1].to(torch.uint8).to(device), text[:, 1:].to(device))

    sizes = {"train": spec["images"], "validation": spec["validation"], "test": spec["test_images"]}
    one, zero = torch.ones((), device=device), torch.zeros((), device=device)
    return Splits({name: part(count, len(name)) for name, count in sizes.items() if count}, one, zero)


def inputs(part, splits, dtype=torch.float32):
    """Images as a network takes them, from their definition; text as it is."""
    if part.labels.ndim == 2:
        return part.images.long()
    mean, deviation = 0.5, 0.25
    return ((part.images.to(dtype) / 255 - mean) / deviation).to(splits.scale.device)


def loss_of(module, x, labels, task):
    """The loss of a batch."""
    y = module(x)
    if task == "reconstruct":
        return functional.mse_loss(y, x.flatten(1))
    return functional.cross_entropy(y.movedim(-1, 1), labels)


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


def train_epoch(module, optimisers, spec, splits, seed, epoch, after=lambda: None, x=None):
    """One epoch of a module; `after` is called after every step, `x` are the inputs if they are given."""
    x = inputs(splits.train, splits) if x is None else x
    for index in batches(seed, epoch, len(splits.train), spec["batch"]):
        take_step(module, optimisers, x[index], splits.train.labels[index], spec["task"])
        after()


def evaluate(module, splits, task):
    """Mean loss and accuracy of every part, in eval mode, in one batch and float64."""
    module = module.double().eval()
    found = {}
    with torch.no_grad():
        for name, part in splits.by_name.items():
            x = inputs(part, splits, torch.float64)
            found[f"{name}_loss"] = float(loss_of(module, x, part.labels, task))
            if task != "reconstruct":
                found[f"{name}_accuracy"] = float((module(x).argmax(-1) == part.labels).double().mean())
    return found


def enorm_by_unit(module):
    """One cycle of ENorm (p = 2, c = 1), a unit at a time; BatchNorm and units that feed the last layer stay."""
    layers = [m for m in module if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        for below, above in zip(layers[:-2], layers[1:-1], strict=True):
            for unit in range(len(below.weight)):
                entering = float(below.weight[unit].double().square().sum())
                leaving = float(above.weight[:, unit].double().square().sum())
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


def curves(trainer, epochs, first=1):
    """Metrics of a trainer at the start and after each epoch, by name: (epochs + 1, runs)."""
    found = [trainer.evaluate()]
    for epoch in range(first, first + epochs):
        trainer.epoch(epoch)
        trainer.teleport(epoch)
        found.append(trainer.evaluate())
    return {name: torch.stack([one[name] for one in found]) for name in found[0]}


def stop_after(calls):
    """A stop function that is true after so many calls: one per batch of specs, then one per epoch."""
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > calls

    return stop

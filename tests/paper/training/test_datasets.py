"""The images of a run: their number, none of them twice, normalized by the statistics of the data set."""

import pytest
import torch

from paper import data
from paper.training import datasets
from paper.training.datasets import MOMENTS
from tests.paper.training.reference import CONV, CPU, FLAT, GPT, make_spec


def loaded(path, model, **changes):
    return datasets.load(make_spec(model, **{"images": 100, "validation": 30, "test_images": 20, **changes}), path, CPU)


def test_parts_follow_one_another(generated):
    given, found = data.load(generated, "generated"), loaded(generated, FLAT)
    assert list(found.by_name) == ["train", "validation", "test"]
    for name, images, labels in (
        ("train", given.train_images[:100], given.train_labels[:100]),
        ("validation", given.train_images[100:130], given.train_labels[100:130]),
        ("test", given.test_images[:20], given.test_labels[:20]),
    ):
        part = found.by_name[name]
        assert len(part) == len(images)
        assert torch.equal(part.images, images.flatten(1))
        assert torch.equal(part.labels, labels.long())
        assert part.images.dtype == torch.uint8
    assert list(loaded(generated, FLAT, validation=0).by_name) == ["train", "test"]
    assert loaded(generated, CONV).train.images.shape == (100, 3, 8, 8)


@pytest.mark.parametrize("model", [FLAT, CONV])
def test_images_enter_a_network_normalised(generated, model):
    found = loaded(generated, model)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in MOMENTS["generated"])
    expected = (data.load(generated, "generated").train_images[:100] / 255 - mean) / deviation
    x = found.train.images * found.scale + found.shift
    torch.testing.assert_close(x, expected.flatten(1) if model is FLAT else expected, rtol=1e-5, atol=1e-5)


def test_windows_of_a_text_are_cut_to_the_context(tmp_path):
    data.prepare("generated_text", tmp_path / "text.pt")
    given = data.load(tmp_path / "text.pt", "generated_text")
    spec = make_spec({**GPT, "context": 20}, dataset="generated_text", images=100, validation=30, test_images=20)
    found = datasets.load(spec, tmp_path / "text.pt", CPU)
    assert torch.equal(found.train.images, given.train_images[:100, :20])
    assert torch.equal(found.by_name["validation"].labels, given.train_labels[100:130, :20].long())
    assert torch.equal(found.by_name["test"].labels[:, :-1], found.by_name["test"].images[:, 1:].long())

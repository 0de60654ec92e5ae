"""A new figure is one file and one block; a new method is one entry and its name; a data set has one entry."""

from pathlib import Path

from tests.workflow.tree import TABLES, Tree

EXPERIMENT = '''
"""Ours: squares of numbers."""

from paper.experiments.base import Experiment
from paper.settings import Block, SeedList
from paper.verdicts import Claim, Estimate, at_least


class Settings(Block):
    seeds: SeedList


def measure(settings, device):
    import pandas as pd

    return pd.DataFrame({"seed": settings["seeds"], "square": [seed**2 for seed in settings["seeds"]]})


def plot(table):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot(table["seed"], table["square"])
    return figure


def judge(table):
    return Estimate.exact(table["square"].max())


EXPERIMENT = Experiment(
    name="squares", title="Squares", where="ours", caption="Squares of {seeds_count} numbers.", settings=Settings,
    plot=plot, claims=(Claim("squares", "Squares grow", "grow", "largest", judge, at_least(0.0)),), measure=measure,
)
'''


def test_a_figure_is_one_file_and_one_block(tmp_path: Path):
    tree = Tree.fresh(tmp_path / "tree", ("toy",))
    (tree.folder / "src/paper/experiments/squares.py").write_text(EXPERIMENT)
    tree.set("experiments.squares", {"seeds": [1, 2, 3]}, preset="paper")
    done = tree.run("squares")
    assert set(done) == {"measure squares", "aggregate squares", "figure squares", "claim squares", "squares"}
    assert (tree.folder / "figures/tiny/squares.pdf").exists()
    assert "figure squares" in tree.due("-F")


def test_a_method_is_one_entry_and_its_name(tree: Tree):
    tree.edit(
        "src/paper/methods.py",
        "METHODS: dict[str, Method] = {\n",
        'METHODS: dict[str, Method] = {\n    "twice": Method("PathCond, 20 sweeps", "#123456", "X", rescale=True, '
        'batchnorm="affine"),\n',
    )
    tree.set("experiments.mlp_depth.methods", ["baseline", "enorm", "pathcond", "twice"])
    before = set(tree.results())
    tree.run(TABLES[0])
    new = set(tree.results()) - before
    assert new
    assert all("/twice-" in name for name in new)
    assert "twice" in (tree.folder / TABLES[0]).read_text()


DATASET = """
def _generate_grey() -> Arrays:
    images = [_stream(f"grey {count}", count, 8, 8).astype(np.uint8) for count in (64, 32)]
    labels = [(np.arange(count) % 10).astype(np.uint8) for count in (64, 32)]
    return dict(zip(ARRAYS, (images[0], labels[0], images[1], labels[1]), strict=True))


_GREY = [hashlib.sha256(array.tobytes()).hexdigest() for array in _generate_grey().values()]
DATASETS["grey"] = DatasetInfo(_identities("grey", *_GREY), generate=_generate_grey)


def find("""
NETWORK = """
def shallow(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, CLASSES))


# ---- common"""
SETTINGS = """
class Shallow(Block):
    kind: Literal["shallow"]
    inputs: PositiveInt


Network = Annotated[
    Shallow | MLP |"""


def test_a_network_and_a_data_set_by_the_steps_of_contributing(tmp_path: Path):
    tree = Tree.fresh(tmp_path / "tree", ("cifar_nv",))
    tree.edit("src/paper/data.py", "\ndef find(", DATASET)
    tree.edit(
        "src/paper/settings.py", '    "mnist": Dataset(', '    "grey": Dataset(64, 32, 1, 8),\n    "mnist": Dataset('
    )
    tree.edit("src/paper/training/datasets.py", '    "mnist": ((', '    "grey": ((0.5,), (0.25,)),\n    "mnist": ((')
    tree.edit("src/paper/models.py", "\n# ---- common", NETWORK)
    tree.edit("src/paper/models.py", "autoencoder, resnet18,", "autoencoder, shallow, resnet18,")
    tree.edit("src/paper/models.py", '"autoencoder", *TEXT}', '"autoencoder", "shallow", *TEXT}')
    tree.edit("src/paper/settings.py", "\nNetwork = Annotated[\n    MLP |", SETTINGS)
    model = {"kind": "shallow", "inputs": 64}
    tree.set("setups.cifar_nv.model", model, preset="paper")
    grid = {"model": model, "dataset": "grey", "images": 64, "validation": 0, "test_images": 32}
    for name, value in {**grid, "methods": ["baseline", "pathcond"]}.items():
        tree.set(f"setups.cifar_nv.{name}", value)
    tree.run("results/tiny/aggregate/cifar_nv.csv")
    assert len(tree.files("results/tiny/train/classify/shallow/*.csv")) == 4

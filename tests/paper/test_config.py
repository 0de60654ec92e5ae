"""The configuration: every slip is named by its place, all of them at once, and the file that ships is right."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paper import config as paper_config
from paper.config import check, load
from paper.errors import PaperError

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "workflow/schemas/config.schema.yaml"
SCHEMA_READ = load(SCHEMA)
SHIPPED = load(ROOT / "config.yaml")
ABSENT = object()


@pytest.fixture(autouse=True)
def _read_once(monkeypatch):
    """The schema is read a hundred times; that is most of the time these tests take."""
    monkeypatch.setattr(paper_config, "load", lambda path: SCHEMA_READ if path == SCHEMA else load(path))


def changed(*changes):
    """The shipped configuration with values at dotted paths replaced, or left out where they are ABSENT."""
    config = copy.deepcopy(SHIPPED)
    for path, value in changes:
        *parents, last = path.split(".")
        block: Any = config
        for name in parents:
            block = block[int(name) if isinstance(block, list) else name]
        if value is ABSENT:
            del block[last]
        else:
            block[int(last) if isinstance(block, list) else last] = value
    return config


def mistakes(*changes):
    """The lines of the error that these changes make."""
    with pytest.raises(PaperError) as caught:
        check(changed(*changes), SCHEMA)
    head, *lines = str(caught.value).splitlines()
    assert re.fullmatch(rf"the configuration has {len(lines)} mistakes?:", head)
    return [line.strip() for line in lines]


@pytest.mark.parametrize("scale", ["paper", "preview", "tiny"])
def test_shipped_configuration_is_valid_at_every_scale(scale):
    checked = check({**SHIPPED, "scale": scale}, SCHEMA)
    assert checked["scale"] == scale
    assert checked["scales"]["paper"]["regimes"]["variances"] == [1e-3, 1e-2, 1e-1]


@pytest.mark.parametrize(
    ("where", "typo", "meant"),
    [
        ("", "devise", "device"),
        ("data", "directry", "directory"),
        ("figures", "font", "font_size"),
        ("scales", "preveiw", "preview"),
        ("scales.tiny", "regime", "regimes"),
        ("scales.paper.toy", "step", "steps"),
        ("scales.tiny.regimes.log10_alpha", "frist", "first"),
        ("scales.preview.networks.mlp", "hiden", "hidden"),
        ("scales.tiny.theory.cases.by_layer", "variance", "variances"),
        ("scales.tiny.timing_depth", "repeat", "repeats"),
        ("scales.tiny.controls.mlp.model", "activations", "activation"),
    ],
)
def test_a_typo_names_its_place_and_the_nearest_key(where, typo, meant):
    (line,) = mistakes((f"{where}.{typo}".strip("."), 1))
    assert line == f"{where or '(top level)'}: unknown key '{typo}'; did you mean '{meant}'?"


def test_a_key_unlike_all_others_lists_them():
    (line,) = mistakes(("scales.tiny.theory.momentum", 0.9))
    assert line == "scales.tiny.theory: unknown key 'momentum'; expected one of cases, draws, seeds."


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("scale", "papr", "scale: expected one of paper, preview, tiny, got 'papr'; did you mean 'paper'?"),
        ("device", 3, "device: expected one of auto, cpu, cuda, got 3."),
        ("accept_existing", "perhaps", "accept_existing: expected boolean, got 'perhaps' (str)."),
        ("data.directory", 5, "data.directory: expected string or null, got 5 (int)."),
        ("figures.dpi", 10, "figures.dpi: expected at least 50, got 10."),
        ("figures.dpi", 100.0, "figures.dpi: expected integer, got 100.0 (float)."),
        ("figures.font_size", 40, "figures.font_size: expected at most 20, got 40."),
        ("scales", None, "scales: expected object, got None (NoneType)."),
        ("scales.tiny", [], "scales.tiny: expected object, got [] (list)."),
        ("scales.tiny.toy.lr", -0.1, "scales.tiny.toy.lr: expected more than 0, got -0.1."),
        ("scales.tiny.toy.lr", "fast", "scales.tiny.toy.lr: expected number, got 'fast' (str)."),
        ("scales.tiny.toy.lr", True, "scales.tiny.toy.lr: expected number, got True (bool)."),
        ("scales.tiny.toy.lr", float("nan"), "scales.tiny.toy.lr: expected number, got nan (float)."),
        ("scales.tiny.toy.lr", "1e999", "scales.tiny.toy.lr: expected number, got inf (float)."),
        ("scales.tiny.toy.steps", "many", "scales.tiny.toy.steps: expected integer, got 'many' (str)."),
        ("scales.tiny.toy.steps", True, "scales.tiny.toy.steps: expected integer, got True (bool)."),
        ("scales.tiny.toy.starts.0", [1, 2], "scales.tiny.toy.starts.0: expected at least 3 entries, got [1, 2]."),
        ("scales.tiny.toy.slower_start", [1] * 4, "toy.slower_start: expected at most 3 entries, got [1, 1, 1, 1]."),
        ("scales.tiny.toy.starts", [[1, 2, 3]] * 2, "toy.starts: expected no entry twice, got [[1, 2, 3], [1, 2, 3]]."),
        ("scales.tiny.toy.seeds", [], "scales.tiny.toy.seeds: expected at least 1 entries, got []."),
        ("scales.tiny.toy.seeds", [3, 3], "scales.tiny.toy.seeds: expected no entry twice, got [3, 3]."),
        ("scales.tiny.toy.seeds", [0, "0"], "scales.tiny.toy.seeds: expected no entry twice, got [0, 0]."),
        ("scales.tiny.toy.seeds", [-1], "scales.tiny.toy.seeds.0: expected at least 0, got -1."),
        ("scales.tiny.timing.repeats", 1, "scales.tiny.timing.repeats: expected at least 2, got 1."),
        ("scales.tiny.bcd.poolings.1", "exat", "bcd.poolings.1: expected one of plain, exact, got 'exat'; did you"),
        ("scales.tiny.theory.cases", {}, "scales.tiny.theory.cases: expected at least 1 entries, got {}."),
        ("scales.tiny.networks.My Net", {"kind": "mlp"}, "networks: expected a name that matches"),
        ("scales.tiny.networks", {1: {"kind": "mlp"}}, "scales.tiny.networks: expected string, got 1 (int)."),
        ("scales.tiny.mlp_depth.optimiser.momentum", 1, "optimiser.momentum: expected less than 1, got 1."),
        ("scales.tiny.mlp_depth.methods.0", "pathcnd", "methods.0: expected one of baseline, enorm, pathcond"),
        ("scales.tiny.mlp_depth.lrs", ["1e-3", 0.001], "mlp_depth.lrs: expected no entry twice, got [0.001, 0.001]."),
        ("scales.tiny.toy.lr", ABSENT, "scales.tiny.toy: expected the key lr, which is not there."),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(path, value, said):
    (line,) = mistakes((path, value))
    assert said in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            [("scales.tiny.bcd.networks", ["mlp", "resnet"])],
            "scales.tiny.bcd.networks: no network 'resnet'; scales.tiny.networks has mlp, cifar_nv, resnet18_c, "
            "resnet18_c_held.",
        ),
        (
            [("scales.tiny.timing.networks", ["vgg"])],
            "scales.tiny.timing.networks: no network 'vgg'; scales.tiny.networks has mlp, cifar_nv, resnet18_c, "
            "resnet18_c_held.",
        ),
        (
            [("scales.tiny.networks.mlp.width", 1.0)],
            "scales.tiny.networks.mlp: a mlp has hidden, inputs, outputs; got hidden, inputs, outputs, width.",
        ),
        (
            [("scales.tiny.networks.cifar_nv", {"kind": "cifar_nv"})],
            "scales.tiny.networks.cifar_nv: a cifar_nv has image, width; got nothing.",
        ),
        (
            [("scales.tiny.theory.cases.by_layer.a", [1.0])],
            "scales.tiny.theory.cases.by_layer: expected either a or variances.",
        ),
        (
            [("scales.tiny.theory.cases.by_layer.variances", ABSENT)],
            "scales.tiny.theory.cases.by_layer: expected either a or variances.",
        ),
        (
            [("scales.tiny.theory.cases.by_layer.variances", [0.1])],
            "scales.tiny.theory.cases.by_layer.variances: expected 3, one a layer, got 1.",
        ),
        ([("scales.tiny.regimes.neurons", 2)], "scales.tiny.regimes.neurons: expected at least one a layer (3)."),
    ],
)
def test_keys_that_do_not_go_together_are_named(changes, said):
    assert mistakes(*changes) == [said]


def test_all_mistakes_are_reported_at_once():
    lines = mistakes(
        ("devise", "cpu"),
        ("figures.dpi", 1),
        ("scales.paper.toy.lr", -1),
        ("scales.paper.toy.seeds", [0, 0]),
        ("scales.tiny.smooth.clamp", ABSENT),
        ("scales.tiny.smooth.width", ABSENT),
        ("scales.tiny.bcd.networks", ["vgg"]),  # only the other blocks say that this one is wrong
        ("scales.preview.regimes.neurons", 1),
    )
    text = "\n".join(lines)
    for said in (
        "unknown key 'devise'", "figures.dpi:", "scales.paper.toy.lr:", "scales.paper.toy.seeds:",
        "scales.tiny.smooth: expected the keys width, clamp, which are not there.", "no network 'vgg'",
        "scales.preview.regimes.neurons:",
    ):  # fmt: skip
        assert text.count(said) == 1
    assert len(lines) == 7


def test_numbers_may_be_text():
    config = changed(
        ("scales.tiny.toy.lr", "1e-3"), ("scales.tiny.toy.steps", "300"), ("scales.tiny.regimes.variances", ["1E-2"]),
        ("accept_existing", "False"), ("scales.tiny.toy.starts.0", ["1", "+2.5", "-.5e1"]),
    )  # fmt: skip
    checked = check(config, SCHEMA)
    toy = checked["scales"]["tiny"]["toy"]
    assert (toy["lr"], toy["steps"], toy["starts"][0]) == (0.001, 300, [1.0, 2.5, -5.0])
    assert type(toy["steps"]) is int
    assert checked["scales"]["tiny"]["regimes"]["variances"] == [0.01]
    assert checked["accept_existing"] is False
    assert config["scales"]["tiny"]["toy"]["lr"] == "1e-3"  # what was given is left alone


def test_an_unquoted_exponent_of_yaml_is_a_number(tmp_path):
    text = (ROOT / "config.yaml").read_text()
    path = tmp_path / "config.yaml"
    path.write_text(text.replace("lr: 0.02", "lr: 2e-2"))
    given = load(path)
    assert given["scales"]["tiny"]["toy"]["lr"] == "2e-2"  # YAML takes it for text
    assert check(given, SCHEMA)["scales"]["tiny"]["toy"]["lr"] == 0.02


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"a: 1\nb: 2\na: 3\n", "line 3: key 'a' is given twice in one block; keep one of them."),
        (b"a:\n  b: {c: 1, c: 2}\n", "line 2: key 'c' is given twice"),
        (b"a: 1\nb: [1, 2\nc: 3\n", "is not YAML: .* line 3"),
        (b"a: 1\n b: 2\n", "is not YAML: .* line 2"),
        (b"? [a]\n: 1\n", "is not YAML: .* line 1"),
        (b"a: \xff\n", "is not YAML"),
        (b"- 1\n", "expected keys and values, got list."),
        (b"", "expected keys and values, got NoneType."),
    ],
)
def test_a_slip_of_yaml_names_file_and_line(tmp_path, text, said):
    path = tmp_path / "settings.yaml"
    path.write_bytes(text)
    with pytest.raises(PaperError, match=f"settings.yaml.* {said}|settings.yaml: {said}"):
        load(path)


def test_a_key_may_return_in_another_block(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("a: {c: 1}\nb: {c: 2}\n")
    assert load(path) == {"a": {"c": 1}, "b": {"c": 2}}


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PaperError, match=r"cannot read .*none\.yaml: No such file"):
        load(tmp_path / "none.yaml")


def objects(schema, where="schema"):
    """Every part of a schema that describes an object."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" or "properties" in schema:
            yield where, schema
        for name, part in schema.items():
            yield from objects(part, f"{where}.{name}")
    elif isinstance(schema, list):
        for part in schema:
            yield from objects(part, where)


def test_schema_is_closed_everywhere_and_has_no_defaults():
    found = dict(objects(load(SCHEMA)))
    assert len(found) > 14  # the top, its parts, a scale, its items, what is nested in them
    for where, part in found.items():
        rest = part.get("additionalProperties")
        assert rest is False or (isinstance(rest, dict) and rest), where
        assert set(part.get("required", [])) <= set(part.get("properties", {})), where
    assert not re.search(r"\bdefault:", SCHEMA.read_text())


def used(value, schema, root, keys):
    """Collect the keys that a configuration has in each object of the schema, by the object's identity."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        keys.setdefault(id(schema), set()).update(value)
        for name, part in value.items():
            used(part, schema.get("properties", {}).get(name) or schema["additionalProperties"], root, keys)
    elif isinstance(value, list):
        for part in value:
            used(part, schema["items"], root, keys)


def test_every_key_of_the_schema_is_shown_in_the_shipped_file():
    schema, keys = yaml.safe_load(SCHEMA.read_text()), {}
    used(check(SHIPPED, SCHEMA), schema, schema, keys)
    unused = {
        f"{where}.{name}"
        for where, part in objects(schema)
        for name in set(part.get("properties", {})) - keys.get(id(part), set())
    }
    # What training may have and no item of the paper does.
    assert unused <= {"schema.$defs.optimiser.momentum", "schema.$defs.optimiser.weight_decay"}


def test_the_first_keys_are_described():
    top = load(SCHEMA)["properties"]
    for key in ("scale", "device", "accept_existing"):
        assert top[key]["description"]

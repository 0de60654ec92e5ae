"""The command line: its parser and help, and what it prints for a configuration, without weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pathcond import registry
from pathcond.__main__ import FORMATS, build, entries_in, load_config, main, mappings_as
from pathcond.groups import groups_to_awq_mappings, scale_groups, verify_mapping

pytest.importorskip("transformers")
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "num_key_value_heads": 4,
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", **SIZES}))
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["mappings"], ["mappings", "x", "--format", "no"], ["check"], ["no"]])
def test_wrong_arguments(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_mappings_in_every_form(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, example = build(load_config(str(config)))
    groups = scale_groups(model, example)
    shown = {form: mappings_as(form, model, groups) for form in FORMATS}
    assert main(["mappings", str(config), "--format", "awq"]) == 0
    assert capsys.readouterr().out == f"{shown['awq']}\n"
    values = '"model.layers.1.self_attn.v_proj"'
    assert f'AWQMapping(smooth_layer={values}, balance_layers=["model.layers.1.self_attn.o_proj"])' in shown["awq"]
    assert (
        f'LayerMap(balance_layers=["model.layers.1.self_attn.o_proj"], smooth_layers={values})' in shown["smoothquant"]
    )
    assert 'NormMapping(norm="model.norm", linears=["lm_head"])' in shown["norms"]
    assert f"norm={values}" not in shown["norms"]
    found = json.loads(shown["json"])
    assert len(found["mappings"]) == 9
    assert len(found["groups"]) == 11  # queries against keys have no mapping
    assert len(json.loads(shown["auto-round"])) == 8  # it looks for layers within blocks alone
    assert ["model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"] in json.loads(shown["pairs"])
    assert "model.layers.0.self_attn.q_proj" in shown["text"]
    assert main(["groups", str(config / "config.json")]) == 0
    assert "crosses `silu`" in capsys.readouterr().out


def test_a_network_for_images_of_any_size(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    (config / "config.json").write_text(json.dumps({"model_type": "resnet", **sizes}))
    assert main(["mappings", str(config)]) == 0
    assert "encoder.stages.0.layers.0.layer.0.normalization" in capsys.readouterr().out


def test_verify_tells_exact_from_other_mappings(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mappings", str(config), "--format", "json"]) == 0
    mapping = config / "mapping.json"
    mapping.write_text(capsys.readouterr().out)
    assert main(["verify", str(config), str(mapping)]) == 0
    assert capsys.readouterr().out.count(": exact") == 9
    mapping.write_text(json.dumps([[["re:.*gate_proj"], "re:.*post_attention_layernorm"]]))
    assert main(["verify", str(config), str(mapping)]) == 1
    assert "also read or made by model.layers.0.mlp.up_proj.weight" in capsys.readouterr().out


@pytest.mark.parametrize("model_type", ["deepseek_v3", "llama4_text", "aria_text"])
def test_what_is_exported_for_fused_experts_verifies(tmp_path: Path, model_type: str) -> None:
    kind = registry.model_class(model_type).config_class
    config, mapping = tmp_path / "config.json", tmp_path / "mapping"
    config.write_text(json.dumps({"model_type": model_type} | registry.tiny_sizes(kind)))
    model, example = build(load_config(str(config)))
    groups = scale_groups(model, example)
    for form in [form for form in FORMATS[::-1] if form != "text"]:
        mapping.write_text(mappings_as(form, model, groups))
        checks = verify_mapping(model, example, entries_in(mapping), groups=groups)
        assert {str(check) for check in checks if not check.exact} == set()
    assert any("experts.3.up_proj" in check.smooth_layer for check in checks)  # of the last form, json


@pytest.mark.parametrize("model_type", ["deepseek_v3", "llama4_text", "aria_text", "granitemoe", "gpt_oss"])
def test_entries_for_single_experts_are_measured(model_type: str) -> None:
    model, example = registry.tiny_model(model_type)
    groups = scale_groups(model, example)
    exported = groups_to_awq_mappings(groups)
    checks = verify_mapping(model, example, exported, groups=groups)
    assert {str(check) for check in checks if not check.exact} == set()
    outside = next(entry for entry in exported if any("experts.3" in name for name in entry["balance_layers"]))
    *others, left_out = outside["balance_layers"]
    (check,) = verify_mapping(model, example, [outside | {"balance_layers": others}], groups=groups)
    assert (check.verdict, check.omitted) == ("not exact", (f"{left_out}.weight",))
    inside = [(f"{left_out[:-7]}{half}_proj", left_out.replace("up_proj", "down_proj")) for half in ("up", "gate")]
    exact = [{"smooth_layer": smooth, "balance_layers": [read]} in exported for smooth, read in inside]
    assert exact == [model_type != "gpt_oss", False]
    assert [check.exact for check in verify_mapping(model, example, inside, groups=groups)] == exact


def test_notes_say_which_calls_are_not_covered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, mapping = tmp_path / "config.json", tmp_path / "mapping.json"
    kind = registry._module("transformers").CONFIG_MAPPING["mistral3"]
    config.write_text(json.dumps({"model_type": "mistral3"} | registry.tiny_sizes(kind)))
    assert main(["mappings", str(config), "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert "does not use 'vision_tower" in shown.err or "does not use 'model.vision_tower" in shown.err
    assert "such as text with images" in shown.err
    mapping.write_text(shown.out)
    assert main(["verify", str(config), str(mapping)]) == 0
    shown = capsys.readouterr()
    assert {line.partition(": ")[2] for line in shown.out.splitlines()} == {"holds on this input: see the notes"}
    assert "such as text with images" in shown.err


def test_a_model_without_mappings_of_this_form_says_so(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config / "config.json").write_text(json.dumps({"model_type": "nanochat", **SIZES, "num_key_value_heads": 2}))
    assert main(["mappings", str(config), "--format", "awq"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "[\n]\n"
    assert shown.err == "none of the 2 free groups has this form: see --format text\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["groups", "nowhere/at/all"], "expected a configuration of transformers"),
        (["groups", "{config}/empty"], "No such file or directory"),
        (["groups", "{config}/text.json"], "config.json with a known model_type"),
        (["groups", "{config}/list.json"], "got JSON without a model_type"),
        (["groups", "{config}/unknown.json"], "got model_type 'nosuch', which transformers"),
        (["verify", "{config}", "{config}/text.json"], "got text that is neither"),
        (["verify", "{config}", "{config}/list.json"], "got an empty list"),
        (["groups", "{bad}"], "not a multiple of the number of attention heads (5)"),
        (["verify", "{config}", "nothing.json"], "nothing.json' to hold what `pathcond mappings` prints"),
        (["check", "--registry", "no-library"], "expected --registry to be one of"),
    ],
)
def test_wrong_input_is_one_line(
    config: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = config / "bad.json"
    bad.write_text(json.dumps({"model_type": "llama", **SIZES, "num_attention_heads": 5}))
    (config / "empty").mkdir()
    for name, text in {"text": "- a: b", "list": "[]", "unknown": '{"model_type": "nosuch"}'}.items():
        (config / f"{name}.json").write_text(text)
    assert main([argument.format(config=config, bad=bad) for argument in arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("pathcond: expected")
    assert message in shown

"""Exports resolved by the quantization libraries themselves, and checks of the lists that these ship."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("llmcompressor")
from llmcompressor.modifiers.transform.awq import AWQMapping
from loguru import logger

import pathcond
from pathcond import registry

logger.remove()
pytestmark = [pytest.mark.registry, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parents[2] / "docs/mappings.md"
ARCHITECTURES = [
    "llama", "qwen3", "gemma2", "phi3", "cohere", "olmo2", "mixtral", "qwen2_moe", "deepseek_v3", "gpt_oss",
]  # fmt: skip


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_library_resolves_exported_mappings_and_they_are_exact(model_type: str) -> None:
    awq = registry.REGISTRIES["llm-compressor awq"]
    model, example_input = registry.tiny_model(model_type)
    exported = pathcond.groups_to_awq_mappings(pathcond.scale_groups(model, example_input))
    assert len(exported) >= 3
    awq.prepare(model)
    with awq.context(model):
        resolved = [pair for mapping in exported for pair in awq.resolve(model, AWQMapping(**mapping))]
        assert [(m["smooth_layer"], sorted(m["balance_layers"])) for m in exported] == [
            (smooth, sorted(balance)) for smooth, balance in resolved
        ]
        checks = pathcond.verify_mapping(model, example_input, resolved, offset=awq.offset)
    assert {str(check) for check in checks if not check.exact} == set()


CHECKS = {
    ("llm-compressor awq", "llama"): {},
    ("llm-compressor smoothquant", "gemma2"): {"post_attention_layernorm": ()},
    ("llm-compressor awq", "qwen2_moe"): {
        "post_attention_layernorm": (
            "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", "mlp.shared_expert_gate.weight"),
    },
    ("auto-round awq", "qwen3"): {},
}  # fmt: skip


@pytest.mark.parametrize(("name", "model_type"), CHECKS)
def test_entries_that_change_the_function(name: str, model_type: str) -> None:
    found = registry.check_registry(name, model_type)
    assert found
    assert all(finding.listed for finding in found)
    wrong = {finding.smooth: finding.omitted for finding in found if finding.verdict == "not exact"}
    assert {smooth: tuple(sorted(omitted)) for smooth, omitted in wrong.items()} == CHECKS[name, model_type]


def test_reproducers_on_the_page_need_nothing_of_this_library() -> None:
    page = PAGE.read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(programs) >= 3
    assert all(len(program.splitlines()) <= 15 and "pathcond" not in program for program in programs)
    printed = [float(number) for number in re.findall(r"^It prints (\d+(?:\.\d+)?)", page, re.M)]
    assert len(printed) == len(programs)
    for program, stored in list(zip(programs, printed, strict=True))[:: len(programs) // 3]:
        shown = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
        assert float(shown.stdout.split()[-1]) == pytest.approx(stored, rel=0.1, abs=0.01), shown.stderr

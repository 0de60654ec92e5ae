"""Check the mappings of quantization libraries and write the findings to ``docs/mappings.md``.

``python tools/mappings.py --check`` checks all architectures that the libraries list, and some that they do not, and
records the findings in ``benchmarks/records/mappings.json``; without ``--check`` it writes the page from the record.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import textwrap
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks/records/mappings.json", ROOT / "docs/mappings.md"
PACKAGES = ("llmcompressor", "auto-round", "compressed-tensors", "transformers", "torch")
UNLISTED = ("gpt_oss", "minimax_m2", "gemma3n_text", "olmoe", "granitemoe")  # they get a default
OFFSET = ("gemma2", "gemma3_text", "qwen3_next", "qwen3_5")  # gains are used as 1 + weight
TRANSPOSED = ("gpt_oss",)  # experts have their inputs along the first axis
_PULL = "https://github.com/vllm-project/llm-compressor/pull/"
_ROUTER = "the pull requests {0}2768, {0}2923 and {0}2938 describe the omitted router as a trade-off"
UPSTREAM = {  # by list and architecture: what was found in the library's issues and pull requests
    ("smoothquant", "gemma2"): f"none found; the entry came with {_PULL}2174",
    ("smoothquant", "gemma3_text"): f"none found; the entry came with {_PULL}2174",
    ("smoothquant", "qwen3_5_moe_text"): f"none found; the entry came with {_PULL}2718",
    ("awq", "qwen2_moe"): f"none found for the shared expert; {_PULL}2451 added the router",
    ("awq", "glm_moe_dsa"): f"none found for the indexer; {_PULL}2418 and {_PULL}2923 do not name it",
    **{("awq", name): _ROUTER.format(_PULL) for name in ("deepseek_v2", "glm4_moe_lite", "cohere2_moe")},
    ("smoothquant", "cohere2_moe"): _ROUTER.format(_PULL),
}


def record() -> None:
    """Check every architecture, and write the findings with versions and date."""
    from pathcond import registry

    found: list[dict[str, Any]] = []
    for name in registry.REGISTRIES:
        for model_type in dict.fromkeys((*registry.listed_types(name), *UNLISTED)):
            print(name, model_type, flush=True)
            found += [asdict(finding) for finding in registry.check_registry(name, model_type)]
            save(found)


def save(found: list[dict[str, Any]]) -> None:
    """Write findings with versions and date."""
    facts = {"date": datetime.date.today().isoformat(), "versions": {name: version(name) for name in PACKAGES}}
    lines = ",\n".join(json.dumps(finding) for finding in found)
    RECORD.write_text(f'{{"facts": {json.dumps(facts)},\n"findings": [\n{lines}\n]}}\n')


_NO_SHAPE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "use_cache", "max_position_embeddings",
             "sliding_window")  # fmt: skip


def reproducer(finding: dict[str, Any]) -> str:
    """A program of at most fifteen lines that shows the change with torch and transformers alone."""
    from pathcond import registry

    given = registry.tiny_sizes(finding["model_type"])
    left_out = {*_NO_SHAPE, *(("num_experts", "num_local_experts") if "n_routed_experts" in given else ())}
    left_out |= {key for key, value in given.items() if isinstance(value, list) and len(set(value)) == 1}
    sizes = ", ".join(f"{key}={value!r}" for key, value in given.items() if key not in left_out)
    config = f'config = transformers.AutoConfig.for_model("{finding["model_type"]}", {sizes})'
    readers = [re.sub(r"experts\.\*\.(gate|up)_proj", "experts.gate_up_proj", name) for name in finding["balance"]]
    names = [name if name.endswith("gate_up_proj") else f"{name}.weight" for name in dict.fromkeys(readers)]
    smooth = f"model.layers.1.{finding['smooth']}.weight"
    sum_is_scaled = finding["model_type"].startswith(OFFSET)
    columns = "s[:, None]" if finding["model_type"] in TRANSPOSED else "s"
    lines = [
        "import torch, transformers",
        *textwrap.wrap(config, 150, subsequent_indent="    "),
        "torch.manual_seed(0)",
        'model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()',
        "with torch.no_grad():",
        "    for p in model.parameters(): p.add_(torch.randn_like(p), alpha=0.1)",
        f'    x, gain = torch.randint(3, 64, (2, 16)), model.get_parameter("{smooth}")',
        "    before, s = model(x).logits, 2.0 ** torch.randint(-2, 3, gain.shape)",
        f"    gain.copy_({'(1 + gain) / s - 1' if sum_is_scaled else 'gain / s'})",
        *textwrap.wrap(f"for name in {json.dumps(names)}:", 124, initial_indent="    ", subsequent_indent="        "),
        f'        model.get_parameter("model.layers.1." + name).mul_({columns})',
        "    print(float((model(x).logits - before).norm() / before.norm()))",
    ]
    return "\n".join(lines)


def _arrow(finding: dict[str, Any]) -> str:
    return f"`{finding['smooth']}` → {', '.join(f'`{name}`' for name in finding['balance'])}"


def _report(finding: dict[str, Any]) -> str:
    kind = finding["registry"].split()[-1]
    none = "none found" if finding["listed"] else "the library has no entry: a default is used without an error"
    return UPSTREAM.get((kind, finding["model_type"]), none)


def page(facts: dict[str, Any], found: list[dict[str, Any]]) -> str:
    """The page: what changes the function, what is exact, what was not applied."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    wrong = [f for f in found if f["verdict"] == "not exact"]
    parts = [
        "# Mappings of quantization libraries",
        "AWQ and SmoothQuant move scales from one layer to the layers that read it, along lists of module names that "
        "quantization libraries keep for each architecture. An entry is exact if it names all of these layers: the "
        "function then stays the same. This page checks the lists themselves, before any quantization.",
        f"Checked on {facts['date']} with {versions}; made by `make mappings`. Each architecture is a tiny model with "
        "random weights, built from its configuration class: layers of each kind, sequences longer than the top-k of "
        "sparse attention, query heads that share values and, for entries that are skipped there, heads with values "
        "of their own. The library's own code resolves its entries; experts are made linear by llm-compressor. The "
        "scales are random powers of two. `change` is the largest change of an output, relative to the largest output, "
        "in float64.",
        "`exact` means that the scales agree with the graph of the model, in eval and in training mode, and that no "
        "change was measured ([scale groups](scale-groups.md)). To check your own list: `pathcond verify CONFIG "
        "MAPPING`; to get an exact one for a model: `pathcond mappings CONFIG`.",
        _counts(found),
        *([f"Not checked yet: {facts['missing']}."] if "missing" in facts else []),
        "## Entries that change the function",
        _wrong_table(wrong),
        "Programs that show it without this library, and mappings that are exact (programs print the relative "
        "change of the output in the 2-norm; on the text models of transformers the experts are one parameter):",
    ]
    for finding in _one_per_layer([f for f in wrong if f["correct"] or f["omitted"]]):
        parts += [
            f"### {finding['registry']}: {finding['model_type']}, {finding['smooth']}",
            f"{_arrow(finding)}. {_because(finding)}",
            "Exact: " + ("; ".join(f"`{text}`" for text in finding["correct"]) or "none of this form") + ".",
            f"Upstream: {_report(finding)}.",
            f"```python\n{reproducer(finding)}\n```",
        ]
    others = {
        "## Entries that hold on the inputs tried": "holds on this input",
        "## Entries that the library refuses": "refused",
        "## Entries that cannot be applied": "cannot be applied",
        "## Architectures that were not built": "not built",
    }
    for title, verdict in others.items():
        these = [f for f in found if f["verdict"] == verdict]
        lines = [
            f"- {f['registry']}, {f['model_type']}: {_arrow(f) if f['smooth'] else ''} {_first(f['reason'])}"
            for f in these
        ]
        parts += [title, "\n".join(dict.fromkeys(lines))] if lines else []
    return "\n\n".join(parts) + "\n"


def _first(reason: str) -> str:
    return reason if len(reason) < 240 else reason[:240] + " ..."


def _because(finding: dict[str, Any]) -> str:
    if finding["omitted"]:
        return (
            "Not scaled, though they read the same channels: " + ", ".join(f"`{n}`" for n in finding["omitted"]) + "."
        )
    return "The smooth layer does not make the channels that these layers read."


def _one_per_layer(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One finding for each list, architecture and smooth layer: the one with the largest change."""
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for finding in sorted(found, key=lambda f: -(f["change"] or 0.0)):
        best.setdefault((finding["registry"], finding["model_type"], finding["smooth"]), finding)
    return [finding for finding in found if finding in best.values()]


def _wrong_table(found: list[dict[str, Any]]) -> str:
    rows = ["| list | architecture | entry | change | omitted |", "| --- | --- | --- | --- | --- |"]
    for f in found:
        name = f["model_type"] if f["listed"] else f"{f['model_type']} (default)"
        missing = "the smooth layer feeds other layers" if "not free" in f["reason"] else "not recorded"
        omitted = ", ".join(f"`{n.removesuffix('.weight')}`" for n in f["omitted"]) or missing
        rows.append(f"| {f['registry']} | {name} | {_arrow(f)} | {f['change']:.2f} | {omitted} |")
    return "\n".join(rows)


def _counts(found: list[dict[str, Any]]) -> str:
    verdicts = ("exact", "holds on this input", "not exact", "cannot be applied", "refused", "not applicable")
    rows = [f"| list | architectures | {' | '.join(verdicts)} |", "| --- " * (len(verdicts) + 2) + "|"]
    for name in dict.fromkeys(f["registry"] for f in found):
        own = [f for f in found if f["registry"] == name]
        types = {f["model_type"] for f in own if f["verdict"] != "not built"}
        counts = [str(sum(f["verdict"] == verdict for f in own)) for verdict in verdicts]
        rows.append(f"| {name} | {len(types)} | {' | '.join(counts)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Check if asked to, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="check again; takes most of an hour on two cores")
    if parser.parse_args(arguments).check:
        record()
    kept = json.loads(RECORD.read_text())
    PAGE.write_text(page(kept["facts"], kept["findings"]))


if __name__ == "__main__":
    main()

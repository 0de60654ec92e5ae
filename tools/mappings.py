"""Check the mappings of quantization libraries and write the findings to ``docs/mappings.md``.

``python tools/mappings.py --check`` checks all architectures that the libraries list, and some that they do not, and
records the findings in ``benchmarks/records/mappings.json``; without ``--check`` it writes the page from the record.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks/records/mappings.json", ROOT / "docs/mappings.md"
PACKAGES = ("llmcompressor", "auto-round", "compressed-tensors", "transformers", "torch")
UNLISTED = ("gpt_oss", "minimax_m2", "gemma3n_text", "olmoe", "granitemoe")  # they get a default
OFFSET = re.compile("gemma2|gemma3(_text)?$|qwen3_next|qwen3_5")  # types whose gains are used as 1 + weight
_PULL = "https://github.com/vllm-project/llm-compressor/pull/"
_ROUTER = (
    f"the router is left out on purpose in {_PULL}2768 (its resolver cannot group layers with and without one) and "
    f"{_PULL}1455 (it is not quantized); a review of {_PULL}2609 names the effect, and {_PULL}2451 adds it elsewhere"
)
_SHARED = f"none found for the shared expert; {_PULL}2451 added the router"
UPSTREAM = {  # by list and architecture: what was found in the issues and pull requests, searched on 2026-11-18
    **{("smoothquant", name): f"none found; the entry came with {_PULL}2174" for name in ("gemma2", "gemma3_text")},
    ("smoothquant", "qwen3_5_moe_text"): f"none found; the entry came with {_PULL}2718",
    ("smoothquant", "qwen3_5_moe"): f"none found; the entry came with {_PULL}2718",
    ("awq", "qwen2_moe"): _SHARED,
    ("awq", "glm_moe_dsa"): f"none found for the indexer; {_PULL}2418 and {_PULL}2923 do not name it",
}


def record() -> None:
    """Check every architecture, run the reproducers, and write what was found with versions and date."""
    from pathcond import registry

    found: list[dict[str, Any]] = []
    for name in registry.REGISTRIES:
        for model in (*registry.listed_models(name), *UNLISTED):
            print(name, model, flush=True)
            found += [asdict(finding) for finding in registry.check_registry(name, model)]
    save(found)
    for finding, *_ in _alike([f for f in found if f["verdict"] == "not exact"]):
        finding["program"] = reproducer(finding, finding["smooth"], finding["balance"])
        finding["printed"] = [printed(finding["program"])]
        for entry in finding["correct"][:1]:
            smooth, _, readers = entry.partition(" -> ")
            finding["printed"].append(printed(reproducer(finding, smooth, readers.split(", "))))
        print(finding["registry"], finding["model_type"], finding["smooth"], *finding["printed"], flush=True)
    save(found)


def save(found: list[dict[str, Any]]) -> None:
    """Write findings with versions and date."""
    facts = {"date": datetime.date.today().isoformat(), "versions": {name: version(name) for name in PACKAGES}}
    lines = ",\n".join(json.dumps(finding) for finding in found)
    RECORD.write_text(f'{{"facts": {json.dumps(facts)},\n"findings": [\n{lines}\n]}}\n')


def printed(program: str) -> float:
    """What a reproducer prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(program, {})  # noqa: S102 - it was written by this file
    return float(shown.getvalue().split()[-1])


_NO_SHAPE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "use_cache", "max_position_embeddings",
             "sliding_window", "rotary_dim", "model_type")  # fmt: skip


def _arguments(kind: Any, special: dict[str, Any]) -> str:
    """The arguments of a configuration that shape the model."""
    from pathcond import registry

    def needed(sizes: dict[str, Any]) -> dict[str, Any]:
        left_out = {*_NO_SHAPE, *(("num_experts", "num_local_experts") if "n_routed_experts" in sizes else ())}
        left_out |= {key for key, value in sizes.items() if isinstance(value, list) and len(set(value)) == 1}
        kept = {key: value for key, value in sizes.items() if key not in left_out}
        return {key: needed(value) if isinstance(value, dict) else value for key, value in kept.items()}

    return ", ".join(f"{key}={value!r}" for key, value in needed(registry.tiny_sizes(kind, **special)).items())


def reproducer(finding: dict[str, Any], smooth: str, readers: Sequence[str]) -> str:
    """A program of at most fifteen lines that shows the change without this library."""
    from pathcond import registry

    model = registry.model_class(finding["model_class"])
    kind, speech = model.config_class, model.main_input_name == "input_features"
    tokens = "torch.randint(3, 64, (2, 16))"
    x = f"dict(input_features=torch.randn(2, 8, 32), decoder_input_ids={tokens})" if speech else tokens
    call = "model(**x).logits" if speech else "model(x).logits"
    linear = "experts" in smooth  # the library makes experts linear layers; else their one parameter is scaled
    places = [
        name if linear else re.sub(r"experts\.\*\.(gate|up)_proj", "experts.gate_up_proj", name) for name in readers
    ]
    places = [re.escape(name).replace(r"\*", "0") for name in dict.fromkeys(places)]
    pattern = f"{re.escape(finding['layer'])}({'|'.join(places)})(.weight)?"
    name = finding["layer"] + smooth.replace("*", "0")
    sum_is_scaled = OFFSET.match(finding["model_type"]) and "norm" in smooth
    gain = "(1 + p) / s - 1" if sum_is_scaled else "(p.mT / s).mT if p.ndim > 1 else p / s"
    columns = "s if p.shape[-1] == len(s) else s[:, None]" if "gate_up_proj" in pattern else "s"
    lines = [
        "import re, torch, transformers",
        *(["from llmcompressor.modeling.moe.linearize import linearize_moe"] if linear else []),
        *textwrap.wrap(
            f"config = transformers.{kind.__name__}({_arguments(kind, finding['sizes'])})",
            180,
            subsequent_indent="    ",
        ),
        "torch.manual_seed(0)",
        f"model = transformers.{finding['model_class']}(config).eval()",
        *(["linearize_moe(model)"] if linear else []),
        "with torch.no_grad():",
        "    for p in model.parameters(): p.add_(torch.randn_like(p), alpha=0.1)",
        f'    x, layer = {x}, model.get_submodule("{name}")',
        f"    before, s = {call}, 2.0 ** torch.randint(-2, 3, layer.weight.shape[:1])",
        f"    for p in layer.parameters(): p.copy_({gain})",
        "    for name, p in model.named_parameters():",
        f'        if re.fullmatch(r"{pattern}", name): p.mul_({columns})',
        f"    print(float(({call} - before).norm() / before.norm()))",
    ]
    return "\n".join(lines)


def _arrow(finding: dict[str, Any]) -> str:
    return f"`{finding['smooth']}` → {', '.join(f'`{name}`' for name in finding['balance'])}"


def _report(finding: dict[str, Any]) -> str:
    kind = finding["registry"].removeprefix("llm-compressor ")
    routers = [name for name in finding["omitted"] if re.search(r"(mlp\.gate|router)", name)]
    if not finding["listed"]:
        return f"{finding['registry'].split()[0]} has no entry, and uses a default without an error"
    if kind != finding["registry"] and len(routers) == len(finding["omitted"]) > 0:
        return _ROUTER
    return UPSTREAM.get((kind, finding["model_type"]), f"none found for {finding['registry']}")


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
        "in float32, where products with powers of two are not rounded.",
        "`exact` means that the scales agree with the graph of the model, in eval and in training mode, and that no "
        "change was measured ([scale groups](scale-groups.md)). To check your own list: `pathcond verify CONFIG "
        "MAPPING`; to get an exact one for a model: `pathcond mappings CONFIG`.",
        _counts(found),
        "`(default)`: the library does not list the architecture and uses a default without an error. The other "
        "architectures that a list does not have are left empty.",
        "## Entries that change the function",
        _wrong_table(wrong),
        "Programs that show it without this library, and mappings that are exact. The programs print the relative "
        "change of the output in the 2-norm, in float32. Experts are one parameter in the models of transformers.",
    ]
    for same in _alike(wrong):
        first = same[0]
        lists = ", ".join(dict.fromkeys(f["registry"] for f in same))
        after = [f"the same program with the exact mapping prints {value:.0e}" for value in first["printed"][1:]]
        parts += [
            f"### {first['model_type']}: {first['smooth']}",
            f"{lists}: {_arrow(first)}. {_because(first)}",
            "Exact: " + ("; ".join(f"`{text}`" for text in first["correct"]) or "none of this form") + ".",
            "Upstream: " + "; ".join(dict.fromkeys(map(_report, same))) + ".",
            f"```python\n{first['program']}\n```",
            "; ".join([f"It prints {first['printed'][0]:.2f}", *after]) + ".",
        ]
    others = {
        "## Entries that hold on the inputs tried": "holds on this input",
        "## Entries that the library refuses": "refused",
        "## Entries that cannot be applied": "cannot be applied",
        "## Entries for which the library finds no modules": "not applicable",
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
    return finding["reason"] + "."


def _alike(found: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Findings on the same layers of the same architecture in several lists, together."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for finding in found:
        kinds.setdefault((finding["model_class"], finding["smooth"], *sorted(finding["balance"])), []).append(finding)
    return list(kinds.values())


def _wrong_table(found: list[dict[str, Any]]) -> str:
    rows = ["| list | architecture | entry | change | omitted, or why |", "| --- | --- | --- | --- | --- |"]
    for f in found:
        name = f["model_type"] if f["listed"] else f"{f['model_type']} (default)"
        other = "the smooth layer feeds other layers" if "no scale group" in f["reason"] else _first(f["reason"])
        omitted = ", ".join(f"`{n.removesuffix('.weight')}`" for n in f["omitted"]) or other
        rows.append(f"| {f['registry']} | {name} | {_arrow(f)} | {f['change']:.2f} | {omitted} |")
    return "\n".join(rows)


def _counts(found: list[dict[str, Any]]) -> str:
    """Tables of the verdicts, by list and by architecture."""
    verdicts = ("exact", "holds on this input", "not exact", "cannot be applied", "refused", "not applicable")
    lists = list(dict.fromkeys(f["registry"] for f in found))
    rows = [f"| list | architectures | {' | '.join(verdicts)} |", "| --- " * (len(verdicts) + 2) + "|"]
    for name in lists:
        own = [f for f in found if f["registry"] == name and f["verdict"] in verdicts]
        counts = [str(sum(f["verdict"] == verdict for f in own)) for verdict in verdicts]
        rows.append(f"| {name} | {len({f['model_type'] for f in own})} | {' | '.join(counts)} |")
    rows += ["", f"| architecture | {' | '.join(lists)} |", "| --- " * (len(lists) + 1) + "|"]
    by_kind: dict[str, dict[str, Counter[str]]] = {}
    for f in found:
        by_list = by_kind.setdefault(f["model_type"] or f["model_class"], {name: Counter() for name in lists})
        by_list[f["registry"]][f["verdict"] + ("" if f["listed"] else " (default)")] += 1
    for kind, by_list in sorted(by_kind.items()):
        cells = (", ".join(f"{n} {verdict}" for verdict, n in sorted(found.items())) for found in by_list.values())
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> None:
    """Check if asked to, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="check again: ten minutes on one core")
    if parser.parse_args(arguments).check:
        record()
    kept = json.loads(RECORD.read_text())
    PAGE.write_text(page(kept["facts"], kept["findings"]))


if __name__ == "__main__":
    main()

"""What to tell a user whose forward pass could not be recorded."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from torch import nn

from pathcond.errors import RecordError

_VALUE_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode")
_ADVICE = {
    "Inference tensors do not track": "The forward pass enters torch.inference_mode; let it use torch.no_grad instead.",
    "does not require grad": "The forward pass takes derivatives, which are not recorded; pass the part without.",
    "BatchedTensorImpl": "torch.vmap is not recorded; write that part for batches, or pass the model without it.",
    "HigherOrderOperator": "torch.cond and its kin are not recorded; pass the model without that part.",
}
_OTHERWISE = (
    "Check that model(example_input) runs; if it does, the code above needs real values or an operation that knows no "
    "fake tensors: pass the part of the model without it, or register a fake version of the operation."
)


def place_of(error: Exception, module_names: Mapping[int, str]) -> str:
    """The module and the line of the user's code where an error was raised, in words."""
    place, module = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in module_names:
            module = module_names[id(owner)] or type(owner).__name__
        package = frame.f_globals.get("__name__", "").split(".")[0]
        if package not in ("torch", "pathcond", "contextlib"):
            summary = traceback.extract_stack(frame, limit=1)[0]
            source = (summary.line or "").strip()
            place = f"{summary.filename.rsplit('/', 1)[-1]}:{line}: `{source}`"
    return (f" in module '{module}'" if module else "") + (f", at {place}" if place else "")


def explain(error: Exception, module_names: Mapping[int, str], hint: str) -> str:
    """Name the line of the user's code that stopped the recording, and the way out."""
    at = place_of(error, module_names)
    if isinstance(error, RecordError):
        return str(error)
    if type(error).__name__ in _VALUE_DEPENDENT:
        return (
            f"cannot record this model: its control flow depends on the values of a tensor{at} ({error}). Expected a "
            "forward pass whose calls depend on shapes only. Pass a submodule without that branch, or replace the "
            "branch by tensor operations such as torch.where."
        )
    advice = next((advice for words, advice in _ADVICE.items() if words in str(error)), None)
    return (
        f"the forward pass failed while it was recorded on fake tensors{at}: {type(error).__name__}: {error}. {hint}"
        + (advice or ("" if "holds no tensor" in hint else _OTHERWISE))
    )

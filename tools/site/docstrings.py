"""An extension of mkdocstrings: Sphinx references in docstrings become Markdown, names of defaults their values."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|attr|mod):`([^`]+)`")


class Roles(griffe.Extension):
    """Link names of the library, show other names as code, and mark examples."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Show the value of a default that is a constant of its module."""
        for parameter in func.parameters:
            constant = func.module.members.get(str(parameter.default))
            if isinstance(constant, griffe.Attribute) and constant.value is not None:
                parameter.default = constant.value

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is None:
            return
        text = ROLE.sub(lambda found: _link(found[1]), obj.docstring.value)
        obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _link(name: str) -> str:
    return f"[`{name}`][{name}]" if re.fullmatch(r"pathcond\.\w+", name) else f"`{name}`"

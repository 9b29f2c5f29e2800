"""The card in a part's folder: what it is, for people and for hubs."""

from __future__ import annotations

import json

from dovetail.core.plain import to_plain
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.origin import Origin
from dovetail.parts.recipe import Recipe

__all__ = ["card"]


def card(contract: Contract, recipe: Recipe, origin: Origin, digest: str) -> str:
    """A README with the YAML head that model hubs read.

    >>> from dovetail.parts.recipe import Build
    >>> print(card(Contract(), Build("mlp"), Origin(how="build"), "1f" * 32).splitlines()[1])
    library_name: dovetail
    """
    head = ["---", "library_name: dovetail", "tags:", "- dovetail"]
    if origin.task:
        head += ["datasets:", f"- {json.dumps(origin.task)}"]
    rows = [
        *(f"| takes | {_port(port)} |" for port in contract.takes),
        *(f"| gives | {_port(port)} |" for port in contract.gives),
    ]
    if contract.classes:
        rows.append(f"| classes | {_cell(', '.join(contract.classes))} |")
    rows.append(f"| made by | {_cell(origin.how)} |")
    if origin.task:
        rows.append(f"| task | {_cell(origin.task)} |")
    rows += [f"| parent | `{parent[:12]}` |" for parent in origin.parents]
    rows += [f"| {_cell(name)} | {value:.4g} |" for name, value in origin.measured.items()]
    rows.append(f"| weights | sha256 `{digest[:12]}` |")
    return "\n".join(
        [
            *head,
            "---",
            "",
            "# A part made by dovetail",
            "",
            "| | |",
            "|---|---|",
            *rows,
            "",
            "Recipe:",
            "",
            "```json",
            json.dumps(to_plain(recipe), indent=2, sort_keys=True),
            "```",
            "",
            "Load it with `dovetail.from_pretrained(folder)`.",
            "",
        ]
    )


def _port(port: Port) -> str:
    after = "" if port.activation == "identity" else f", after {port.activation}"
    space = f", space `{_cell(port.space)}`" if port.space else ""
    return f"{shown_shape(port.shape)} {port.dtype}{after}{space}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

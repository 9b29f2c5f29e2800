"""Write docs/settings.md from the declarations in ``dovetail.settings``.

python scripts/settings_docs.py
"""

from __future__ import annotations

from pathlib import Path

from dovetail.core.settings import Settings
from dovetail.settings.adapt import Adapt
from dovetail.settings.common import Common, Reading
from dovetail.settings.export import Export
from dovetail.settings.inspect import Inspect
from dovetail.settings.join import Cut, Join, Recombine
from dovetail.settings.pack import Pack, Unpack
from dovetail.settings.rank import Rank
from dovetail.settings.reuse import USES
from dovetail.settings.shelf import ACTIONS
from dovetail.settings.show import Data, Demo, Predict, Report
from dovetail.settings.train import WAYS, Steps

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

HEAD = """\
# Settings

Every setting is declared once, in `dovetail.settings`: the Python argument, its default, its
limits, the flag and this page come from there (`python scripts/settings_docs.py` writes it). An
argument and its flag have one name, `batch_size` and `--batch-size`, unless the table says another.
"""

COMMANDS = {
    "cut": Cut,
    "join": Join,
    "recombine": Recombine,
    "rank": Rank,
    "adapt": Adapt,
    "inspect": Inspect,
    "predict": Predict,
    "pack": Pack,
    "unpack": Unpack,
    **{f"shelf {action}": settings for action, settings in ACTIONS.items() if action != "find"},
    "report": Report,
    "data get": Data,
    "demo": Demo,
}


def table(settings: type[Settings], without: type[Settings] | None = None) -> str:
    """A row a setting; those that are the same in ``without`` are left out."""
    known = {} if without is None else without.declared
    rows = ["| argument | default | limits | what it is |", "|---|---|---|---|"]
    for name, one in settings.declared.items():
        if known.get(name) is one:
            continue
        limits = [f"≥ {one.least:g}"] if one.least is not None else []
        limits += [f"> {one.above:g}"] if one.above is not None else []
        limits += [f"≤ {one.most:g}"] if one.most is not None else []
        limits += [f"`{choice}`" for choice in one.choices]
        flag = "" if one.flag == f"--{name.replace('_', '-')}" else f" (`{one.flag}`)"
        usual = "" if one.default in (None, ()) else f"`{one.plain}`"
        rows.append(f"| `{name}`{flag} | {usual} | {', '.join(limits)} | {one.help} |")
    return "\n".join(rows) + "\n"


def _first_line(settings: type[Settings]) -> str:
    return (settings.__doc__ or "").partition("\n")[0]


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Every command on tasks and parts\n", table(Common)]
    parts += ["How a task is read from files:\n", table(Reading)]
    for command, settings in COMMANDS.items():
        parts += [f"## `{command}`\n", f"{_first_line(settings)}\n", table(settings)]
    parts += ["## Every training in steps\n", table(Steps)]
    for way in WAYS.values():
        stepwise = issubclass(way.settings, Steps)
        also = " Beside those above:" if stepwise else ""
        parts += [f"## `train --how {way.name}`\n", f"{way.help}{also}\n"]
        parts.append(table(way.settings, Steps if stepwise else None))
    for use, (settings, _) in USES.items():
        words = f"{_first_line(settings)} Beside those of every training:\n"
        parts += [f"## `reuse {use}`\n", words]
        parts.append(table(settings, Steps))
    parts += ["## `export`\n", f"{Export.__doc__}\n", table(Export)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE)

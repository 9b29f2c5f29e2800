"""The picture in the design, enforced: imports point down, and among the verbs to the left."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

import dovetail

PACKAGE = Path(dovetail.__file__).parent
ROWS = (
    ("core",),
    ("settings",),
    ("objectives", "linalg", "pack"),
    ("parts",),
    ("tasks", "shelf", "dist"),
    ("measure",),
    ("train", "closed_form", "adapt", "ranking", "lens", "reuse"),
    ("jobs",),
    ("cli", "web"),
)
VERBS = next(row for row in ROWS if "train" in row)
BESIDE = {"report": {"core"}}
FREE = {"__init__", "testing", "__main__"}
LONGEST = 500


def row_of(room):
    return next((i for i, rooms in enumerate(ROWS) if room in rooms), None)


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """``dovetail.parts.zoo.mlp`` lives in ``parts``; ``dovetail`` itself in ``__init__``."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "__init__"


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def statements(tree):
    """Every node, except those that only a type checker runs."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            for other in node.orelse:
                yield other
                yield from statements(other)
            continue
        yield node
        yield from statements(node)


def imports_of(source, module, is_package=False):
    """The dovetail modules a file names in its imports, inside functions too."""
    found = set()
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*here[: len(here) - node.level + 1], *filter(None, [base])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(str(node.args[0].value))
    return {name for name in found if name == "dovetail" or name.startswith("dovetail.")}


def violations(module, imported):
    """Sentences, one for each import that points up, sideways or among the verbs to the right."""
    room = room_of(module)
    if room in FREE:
        return []
    if row_of(room) is None and room not in BESIDE:
        return [f"{module} is in no row: add {room!r} to the picture"]
    found = []
    for other in sorted(imported):
        theirs = room_of(other)
        if theirs == room or other in ("dovetail", "dovetail.__version__"):
            continue
        if room in BESIDE:
            allowed = theirs in BESIDE[room]
        elif theirs in BESIDE:
            allowed = row_of(room) > row_of("train")
        elif row_of(theirs) is None:
            allowed = False
        elif room in VERBS and theirs in VERBS:
            allowed = VERBS.index(theirs) < VERBS.index(room)
        else:
            allowed = row_of(theirs) < row_of(room)
        if not allowed:
            found.append(f"{module} imports {other}")
    return found


def cycle_in(graph):
    """One cycle as a list of names, or nothing."""
    state, path = {}, []

    def visit(name):
        state[name] = "open"
        path.append(name)
        for other in sorted(graph.get(name, ())):
            if state.get(other) == "open":
                return [*path[path.index(other) :], other]
            if other not in state and (found := visit(other)):
                return found
        path.pop()
        state[name] = "done"
        return None

    return next(
        (found for name in sorted(graph) if name not in state and (found := visit(name))), None
    )


def undocumented(source):
    """Functions and classes that others may use, and that are defined here without a docstring."""
    tree = ast.parse(source)
    if not ast.get_docstring(tree):
        return ["the module itself"]
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    public = [node for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"]
    return sorted({node.name for node in public} - {n.name for n in public if explained(n)})


def explained(node):
    overload = any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
    return overload or ast.get_docstring(node) is not None


FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def imports_in(path):
    return imports_of(path.read_text(), module_name(path), path.name == "__init__.py")


def test_imports_point_down():
    found = (violations(module_name(path), imports_in(path)) for path in FILES)
    assert [sentence for sentences in found for sentence in sentences] == []


def test_files_are_short_and_public_names_explained():
    sources = {module_name(path): path.read_text() for path in FILES}
    assert [name for name, source in sources.items() if len(source.splitlines()) > LONGEST] == []
    unsaid = {name: undocumented(source) for name, source in sources.items()}
    assert {name: names for name, names in unsaid.items() if names} == {}


def test_no_module_imports_itself_in_a_circle():
    names = {module_name(path): path for path in FILES}
    graph = {
        name: {other for other in imports_in(path) if other in names and other != name}
        for name, path in names.items()
        if name != "dovetail"
    }
    assert cycle_in(graph) is None


# The checker checked ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "source", "caught"),
    [
        ("dovetail.parts.new", "from dovetail.core.errors import nearest", False),
        ("dovetail.parts.new", "import dovetail.train.loop", True),
        ("dovetail.parts.new", "from dovetail import train", True),
        ("dovetail.parts.new", "from ..train import loop", True),
        ("dovetail.parts.new", "from . import part", False),
        ("dovetail.parts.new", "def f():\n    from dovetail.shelf import store", True),
        ("dovetail.parts.new", "def f():\n    import_module('dovetail.cli.main')", True),
        ("dovetail.parts.new", "if TYPE_CHECKING:\n    from dovetail.shelf import store", False),
        (
            "dovetail.parts.new",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import dovetail.shelf",
            True,
        ),
        ("dovetail.parts.new", "import torch", False),
        ("dovetail.core.new", "from dovetail.linalg import ridge", True),
        ("dovetail.tasks.new", "from dovetail.shelf import store", True),
        ("dovetail.lens.new", "from dovetail.train import loop", False),
        ("dovetail.train.new", "from dovetail.lens import similarity", True),
        ("dovetail.reuse.new", "from dovetail.adapt import probe", False),
        ("dovetail.lens.new", "from dovetail.measure import features", False),
        ("dovetail.report.new", "from dovetail.core import views", False),
        ("dovetail.report.new", "from dovetail.parts import part", True),
        ("dovetail.train.new", "from dovetail.report import page", True),
        ("dovetail.jobs.new", "from dovetail.report import page", False),
        ("dovetail.cli.new", "from dovetail.web import app", True),
        ("dovetail.measure.recombine", "from dovetail.adapt import probe", True),
        ("dovetail.measure.recombine", "from dovetail.measure import evaluate", False),
        ("dovetail.basement.new", "", True),
        ("dovetail.core.new", "from dovetail.basement import x", True),
        ("dovetail.testing", "from dovetail.cli import main", False),
        ("dovetail", "from dovetail.cli import main", False),
    ],
)
def test_the_checker_sees_what_it_should(module, source, caught):
    assert bool(violations(module, imports_of(source, module))) == caught


def test_the_checker_sees_circles():
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_the_checker_sees_names_without_a_word():
    assert undocumented('"""Doc."""\ndef f():\n    pass\n') == ["f"]
    assert undocumented('"""Doc."""\ndef f():\n    """Say."""\ndef _g():\n    pass\n') == []
    assert undocumented("x = 1\n") == ["the module itself"]

"""Who may import whom: the rooms of the house are stacked, and no import points upward.

    ledger < trace < render         ledger < layers < models, loading < engine (its torch half) < llm
    ledger < fuzz
    session above llm and trace     widgets above render and session     exercises above widgets     command line on top
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "nanovllm_edu"

LEDGER = {"events", "free_queue", "block_manager", "prefix", "sequence", "scheduler", "cache_stats", "invariants"}
BASE = {"base", "ledger"}  # base: errors and plain parameter objects, which everyone may use
ENGINE = BASE | {"layers", "models", "loading", "engine"}
LIVE = ENGINE | {"llm", "trace", "session"}
ALLOWED = {
    "base": {"base"},
    "ledger": BASE,
    "fuzz": BASE | {"fuzz"},
    "trace": BASE | {"trace"},
    "render": BASE | {"trace", "render"},
    "layers": BASE | {"layers"},
    "models": BASE | {"layers", "models", "loading"},
    "loading": BASE | {"layers", "models", "loading"},
    "engine": ENGINE,
    "llm": ENGINE | {"llm"},
    "session": LIVE,
    "widgets": LIVE | {"render", "widgets"},
    "exercises": LIVE | {"fuzz", "render", "widgets", "exercises"},
    "command line": LIVE | {"fuzz", "render", "widgets", "exercises", "command line"},
}
TOP_LEVEL = {
    "errors": "base", "sampling_params": "base", "config": "base", "llm": "llm",
    "__main__": "command line", "start": "command line", "doctor": "command line", "bench": "command line",
    "ledger_bench": "command line",
}
# One arrow is drawn upward on purpose: `Trace.to_html` is a method that people look for on the trace, and its page is
# made of widgets. It must be taken inside the function, so that loading traces loads no widgets.
LAZY_UPWARD = {("trace", "widgets")}
TORCH_FREE = ("base", "ledger", "fuzz", "trace", "render")
HEAVY = ("torch", "transformers")


def room(module: str) -> str | None:
    """The room that a module of the package lives in; None for the package itself, whose names load lazily."""
    parts = module.split(".")[1:]
    if not parts:
        return None
    if parts[0] == "engine":
        return "ledger" if len(parts) == 1 or parts[1] in LEDGER else "engine"
    if parts[0] in TOP_LEVEL:
        return TOP_LEVEL[parts[0]]
    assert parts[0] in ALLOWED, f"{module} is in no room of the law: say in {Path(__file__).name} where it belongs"
    return parts[0]


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node that runs, and whether it stands in a function; what only a type checker reads is left out."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            continue
        inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from walk(child, inside)


def imports(module: str, source: str, is_package: bool) -> Iterator[tuple[str, bool, int]]:
    """(imported module, inside a function?, line) of one file, relative and by-name imports resolved."""
    here = module if is_package else module.rpartition(".")[0]
    for node, lazy in walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, lazy, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            target = "." * node.level + (node.module or "")
            target = importlib.util.resolve_name(target, here) if node.level else target
            for alias in node.names:
                full = f"{target}.{alias.name}"
                if target == PACKAGE and full not in MODULES:
                    full = public_home(alias.name)
                yield (full if full in MODULES else target), lazy, node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield importlib.util.resolve_name(str(node.args[0].value), here), lazy, node.lineno


def public_home(name: str) -> str:
    """Where `from nanovllm_edu import name` really leads."""
    import nanovllm_edu

    return nanovllm_edu._HOME.get(name, PACKAGE)


def breaches(module: str, source: str, is_package: bool = False) -> list[str]:
    """One sentence for every import of this source that breaks the law."""
    mine, found = room(module), []
    if mine is None:
        return []
    for target, lazy, line in imports(module, source, is_package):
        if mine in TORCH_FREE and target.split(".")[0] in HEAVY:
            found.append(f"{module}:{line} ({mine}) imports {target}, and {mine} must work without torch")
        if target.split(".")[0] != PACKAGE:
            continue
        theirs = room(target)
        if theirs is None or theirs in ALLOWED[mine] or (lazy and (mine, theirs) in LAZY_UPWARD):
            continue
        found.append(f"{module}:{line} ({mine}) imports {target} ({theirs}), which is above it")
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_points_upward(module):
    path = MODULES[module]
    assert breaches(module, path.read_text("utf-8"), path.name == "__init__.py") == []


@pytest.mark.parametrize(("module", "source", "expected"), [
    ("nanovllm_edu.engine.scheduler", "from nanovllm_edu.trace import record", "(trace), which is above it"),
    ("nanovllm_edu.engine.scheduler", "from ..trace import record", "(trace), which is above it"),
    ("nanovllm_edu.engine.scheduler", "def f():\n from .model_runner import x", "(engine), which is above it"),
    ("nanovllm_edu.engine.scheduler", "from nanovllm_edu import LLM", "(llm), which is above it"),
    ("nanovllm_edu.render.svg", "import torch.nn", "must work without torch"),
    ("nanovllm_edu.trace.reducer", "from nanovllm_edu.widgets import watch", "(widgets), which is above it"),
    ("nanovllm_edu.llm", "import importlib\nimportlib.import_module('nanovllm_edu.session')", "(session)"),
])
def test_the_walker_sees_an_upward_arrow(module, source, expected, monkeypatch):
    for name in ("engine.model_runner", "trace", "widgets", "llm", "session"):
        monkeypatch.setitem(MODULES, f"{PACKAGE}.{name}", ROOT)
    (found,) = breaches(module, source)
    assert expected in found


@pytest.mark.parametrize("source", [
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from nanovllm_edu.llm import LLM",
    "def to_html():\n    from nanovllm_edu.widgets import html",
    "from nanovllm_edu.engine import Block",
])
def test_the_walker_lets_lawful_imports_pass(source):
    assert breaches("nanovllm_edu.trace.reducer", source) == []


@pytest.mark.parametrize("names", ["nanovllm_edu", "nanovllm_edu.engine", "nanovllm_edu.trace", "nanovllm_edu.render",
                                   "nanovllm_edu.fuzz"])
def test_importing_loads_no_torch(names):
    """In a fresh interpreter, since this one may have torch already."""
    heavy = "{'torch', 'transformers', 'ipywidgets'}"
    probe = f"import sys, {names}; sys.exit(', '.join({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_public_name_is_there():
    import nanovllm_edu

    for name in nanovllm_edu.__all__:
        assert getattr(nanovllm_edu, name) is not None
    assert set(nanovllm_edu.__all__) <= set(dir(nanovllm_edu))


def test_an_unknown_name_lists_the_public_ones():
    import nanovllm_edu

    with pytest.raises(AttributeError, match="no attribute 'LLMM'; public names: LLM, "):
        nanovllm_edu.LLMM  # noqa: B018

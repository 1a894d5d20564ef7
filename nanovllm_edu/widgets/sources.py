"""The source of the functions that made a run's events, as the code panel shows it.

An event says file name, function and line. Here the text is found: among the engine's modules, the file or notebook
cell of the engine's own block manager, and the cells of this kernel.
"""
from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from .. import engine

ENGINE = Path(engine.__file__).parent


class Sources:
    """``known``: "file:function" to ``{"first_line": n, "lines": [...]}``, for the functions met so far that are found.

    ``block_manager_class`` is the class that a learner plugged in; its file comes before the engine's own of that name.
    """

    def __init__(self, block_manager_class: type | None = None) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self._own = sorted(_files_of(block_manager_class)) if block_manager_class else []
        self._seen: set[tuple[str, str, int]] = set()
        self._unknown: set[str] = set()

    def learn(self, rows: Iterable[dict[str, Any]]) -> bool:
        """Look at the lines of some rows. Whether ``known`` is another one now (the old dict is left as it was)."""
        new = {tuple(row["e"]["at"]) for row in rows if row["e"]["at"]} - self._seen
        self._seen |= new
        before = self.known
        for file, function, line in sorted(new):
            key = f"{file}:{function}"
            if key in self._unknown:
                continue
            source = self.known.get(key) or self._find(file, function)
            if source is None or not _fits(source, line):  # then another line of it would be shown wrong as well
                self._unknown.add(key)
                if key in self.known:
                    self.known = {k: v for k, v in self.known.items() if k != key}
            elif key not in self.known:
                self.known = {**self.known, key: {"first_line": source["first_line"], "lines": source["lines"]}}
        return self.known is not before

    def _find(self, file: str, function: str) -> dict[str, Any] | None:
        for path in self._paths(file):
            try:
                lines = [line.rstrip("\n") for line in linecache.getlines(path)]
                node = _functions("\n".join(lines)).get(function)
            except (SyntaxError, ValueError):
                continue
            if node is not None:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return {"first_line": first, "lines": lines[first - 1:node.end_lineno]}
        return None

    def _paths(self, file: str) -> Iterator[str]:
        """Where a file of that name may be. Only places whose code ran here: a trace file may name anything."""
        yield from (path for path in self._own if Path(path).name == file)
        if Path(file).name == file and (ENGINE / file).is_file():
            yield str(ENGINE / file)
        for path in list(linecache.cache):  # the cells of a notebook
            if Path(path).name == file and "ipykernel" in path:
                yield path


def _files_of(cls: type) -> set[str]:
    return {method.__code__.co_filename for base in cls.__mro__ for method in vars(base).values()
            if isinstance(method, FunctionType) and not method.__code__.co_filename.startswith("<")}


def _fits(source: dict[str, Any], line: int) -> bool:
    """Whether the line can be meant: the engine's code tells of a change on the line right below it."""
    at = line - source["first_line"]
    if not 0 <= at < len(source["lines"]):
        return False
    emits = any("emit(" in text for text in source["lines"])
    return not emits or (at + 1 < len(source["lines"]) and "emit(" in source["lines"][at + 1])


def _functions(text: str) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in a module by its qualified name."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[prefix + child.name] = child
                walk(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(ast.parse(text), "")
    return found

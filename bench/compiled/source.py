"""Source of a module as mypyc makes the most of it: it means the same.

mypyc takes no decorator of ours for a dataclass, leaves the `__init__` of dataclasses to the interpreter, and
makes instances that pickle cannot make again. So values become plain dataclasses, and what `dataclass` would
write is written out. Nothing is frozen at run time any more: the type checker has seen to that already.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Edit = tuple[int, int, list[str]]
"""(first line, line after the last, lines instead), from 0."""

FUTURE = "from __future__ import annotations"
IMPORT = "from dataclasses import dataclass"


def rewritten(source: str) -> str:
    lines = source.split("\n")
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    edits = [edit for node in classes for edit in _edits(node)]
    if not edits:
        return source
    for start, end, instead in sorted(edits, reverse=True):
        lines[start:end] = instead
    lines.insert(lines.index(FUTURE) + 1, IMPORT)
    return "\n".join(lines)


def _edits(node: ast.ClassDef) -> Iterator[Edit]:
    for decorator in node.decorator_list:
        if (thawed := _thawed(decorator)) is not None:
            yield decorator.lineno - 1, decorator.end_lineno or 0, [f"@{ast.unparse(thawed)}"]
            end = node.body[-1].end_lineno or 0
            yield end, end, _methods(node)


def _thawed(decorator: ast.expr) -> ast.expr | None:
    """The decorator of a dataclass that is not frozen; None: it is none of a dataclass."""
    if isinstance(decorator, ast.Name) and decorator.id == "value":
        return ast.parse("dataclass(slots=True, unsafe_hash=True)", mode="eval").body
    if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "dataclass":
        return None
    for keyword in decorator.keywords:
        if keyword.arg == "frozen":
            keyword.arg = "unsafe_hash"
    return decorator


@dataclass(frozen=True, slots=True)
class _Field:
    """default, factory: source; "": none. asked: whether `__init__` takes it."""

    name: str
    kind: str
    default: str
    factory: str
    asked: bool

    @property
    def argument(self) -> str:
        if self.factory:
            return f"{self.name}: {self.kind} | None = None"
        return f"{self.name}: {self.kind}" + (f" = {self.default}" if self.default else "")

    @property
    def assignment(self) -> str:
        made = f"({self.factory})()" if self.factory else self.default
        if not self.asked:
            return f"self.{self.name} = {made}" if made else ""
        given = f"{made} if {self.name} is None else {self.name}" if self.factory else self.name
        return f"self.{self.name} = {given}"


def _methods(node: ast.ClassDef) -> list[str]:
    """`__init__` as `dataclass` would make it, and `__reduce__` where that is enough to make it again."""
    there = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    fields = list(_fields(node))
    if "__init__" in there or node.bases or not fields:
        return []
    arguments = ", ".join(["self", *(field.argument for field in fields if field.asked)])
    body = [field.assignment for field in fields if field.assignment]
    if "__post_init__" in there:
        body.append("self.__post_init__()")
    written = ["", f"    def __init__({arguments}) -> None:", *(f"        {line}" for line in body)]
    if all(field.asked for field in fields):
        values = "".join(f"self.{field.name}, " for field in fields)
        written += ["", f"    def __reduce__(self) -> tuple[type[{node.name}], tuple[object, ...]]:"]
        written += [f"        return {node.name}, ({values})"]
    return written


def _fields(node: ast.ClassDef) -> Iterator[_Field]:
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        kind = ast.unparse(each.annotation)
        if kind.startswith("ClassVar"):
            continue
        default, factory, asked = "" if each.value is None else ast.unparse(each.value), "", True
        if isinstance(each.value, ast.Call) and ast.unparse(each.value.func) == "field":
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in each.value.keywords}
            default, factory = said.get("default", ""), said.get("default_factory", "")
            asked = said.get("init") != "False"
        yield _Field(each.target.id, kind, default, factory, asked)

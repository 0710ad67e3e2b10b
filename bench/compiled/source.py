"""Source of a module as mypyc makes the most of it: it means the same.

mypyc takes no decorator of ours for a dataclass, leaves named tuples and the `__init__` of dataclasses to the
interpreter, and makes instances that pickle cannot make again. So values and named tuples become plain
dataclasses, and what `dataclass` would write is written out. Nothing is frozen at run time any more: the type
checker has seen to that already, and refuses what needs a tuple. Literals that have names are put where they
are used if said to be final. `zip` becomes a loop without `strict`, and so does a sum of `map(mul, ...)`, as
only the interpreter is quicker with it. `replace` goes by no table of fields.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

Edit = tuple[int, int, list[str]]
"""(first line, line after the last, lines instead), from 0."""

FUTURE = "from __future__ import annotations"
IMPORTS = ["from dataclasses import dataclass", "from typing import Final"]
REPLACE = "from baton.bench.compiled.again import replace"
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
LITERAL = ast.Constant, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator
VALUE = "dataclass(slots=True, unsafe_hash=True)"
DOT = re.compile(r"sum\(map\(mul, ([\w.]+), ([\w.]+)\)\)")


def rewritten(source: str) -> str:
    lines = source.split("\n")
    edits = [edit for node in ast.parse(source).body for edit in _edits(node)]
    if edits:
        for start, end, instead in sorted(edits, reverse=True):
            lines[start:end] = instead
        place = lines.index(FUTURE) + 1
        lines[place:place] = IMPORTS
    text = re.sub(r", strict=(True|False)\)", ")", "\n".join(lines))
    text = DOT.sub(r"sum((each * other for each, other in zip(\1, \2)), 0.0)", text)
    return re.sub(r"^from dataclasses import (.*?)(, )?replace$", _with_ours, text, flags=re.MULTILINE)


def _with_ours(line: re.Match[str]) -> str:
    return f"from dataclasses import {line[1]}\n{REPLACE}" if line[1] else REPLACE


def _edits(node: ast.stmt) -> Iterator[Edit]:
    if isinstance(node, ast.ClassDef):
        yield from _of_class(node)
    elif constants := _constants(node):
        final = [f"{name}: Final = {ast.unparse(made)}" for name, made in constants]
        yield node.lineno - 1, node.end_lineno or 0, final


def _constants(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """(name, value) of what an assignment of literals to names of constants makes."""
    match node:
        case ast.Assign(targets=[ast.Name(name)], value=made):
            found = [(name, made)]
        case ast.Assign(targets=[ast.Tuple(targets)], value=ast.Tuple(values)):
            found = [(ast.unparse(each), made) for each, made in zip(targets, values, strict=True)]
        case _:
            return []
    return found if all(CONSTANT.fullmatch(name) and _is_literal(made) for name, made in found) else []


def _is_literal(made: ast.expr) -> bool:
    return all(isinstance(part, LITERAL) for part in ast.walk(made))


def _of_class(node: ast.ClassDef) -> Iterator[Edit]:
    end = node.body[-1].end_lineno or 0
    if [ast.unparse(base) for base in node.bases] == ["NamedTuple"]:
        yield node.lineno - 1, node.lineno, [f"@{VALUE}", f"class {node.name}:"]
        yield end, end, _methods(node)
    for decorator in node.decorator_list:
        if (thawed := _thawed(decorator)) is not None:
            yield decorator.lineno - 1, decorator.end_lineno or 0, [f"@{ast.unparse(thawed)}"]
            yield end, end, [] if node.bases else _methods(node)


def _thawed(decorator: ast.expr) -> ast.expr | None:
    """The decorator of a dataclass that is not frozen; None: it is none of a dataclass."""
    if isinstance(decorator, ast.Name) and decorator.id == "value":
        return ast.parse(VALUE, mode="eval").body
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
    if "__init__" in there or not fields:
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

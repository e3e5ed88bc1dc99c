"""Options of configurations that are classes with annotated fields: dataclasses, pydantic's.

They are read from sources and never imported: `of_classes(tree, "module:GRPOConfig")` is option ->
kind for the fields of that class, and by dotted names for those of classes within it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rltrace.testing.inside.hooks import split_target
from tests.adapters.sources import Tree

PLAIN = ("int", "float", "bool", "str")

Kind = tuple[str, str]
"""Module and name of a class (with a * where it is of a mapping's values), or "" and a kind."""


def _kinds(tree: Tree, module: str, node: ast.expr) -> Iterator[Kind]:
    """What an annotation allows. None is left out: it is what is not given."""
    match node:
        case ast.BinOp():
            yield from _kinds(tree, module, node.left)
            yield from _kinds(tree, module, node.right)
        case ast.Constant():
            if isinstance(node.value, str):
                yield from _kinds(tree, module, ast.parse(node.value, mode="eval").body)
        case ast.Subscript():
            yield from _of_generic(tree, module, node)
        case ast.Name():
            place = tree.named(module, node.id)
            if place is None:
                yield "", node.id if node.id in PLAIN else "any"
            elif isinstance(place[1], ast.ClassDef):
                yield place[0], place[1].name
            else:
                yield from _kinds(tree, *place)
        case _:
            yield "", "any"


def _of_generic(tree: Tree, module: str, node: ast.Subscript) -> Iterator[Kind]:
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = ast.unparse(node.value).rpartition(".")[2]
    if name in ("Optional", "Annotated"):
        yield from _kinds(tree, module, inner[0])
    elif name in ("dict", "Dict"):
        yield from ((home, f"{each}*") for home, each in _kinds(tree, module, inner[-1]) if home)
        yield "", "any"
    elif name == "Union":
        for each in inner:
            yield from _kinds(tree, module, each)
    elif name == "Literal":
        yield "", str([each.value for each in inner if isinstance(each, ast.Constant)])
    else:
        yield "", "any"


def _fields(tree: Tree, module: str, name: str) -> Iterator[tuple[str, str, ast.expr]]:
    """The fields of a class, those that it inherits first: where, name, annotation."""
    place = tree.named(module, name)
    if place is None or not isinstance(place[1], ast.ClassDef):
        return
    for base in place[1].bases:
        if isinstance(base, ast.Name):
            yield from _fields(tree, place[0], base.id)
    for field in place[1].body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield place[0], field.target.id, field.annotation


def _both(kind: str, other: str) -> str:
    """The kind of an option that two classes have, of which either may be meant."""
    if kind.startswith("[") and other.startswith("["):
        choices = ast.literal_eval(kind)
        return str(choices + [one for one in ast.literal_eval(other) if one not in choices])
    return kind if kind == other else "any"


def of_classes(tree: Tree, root: str) -> dict[str, str]:
    """The options of the class that is named as a hook's target is; none where it is not there."""
    found: dict[str, str] = {}

    def walk(module: str, name: str, prefix: str, within: tuple[str, ...]) -> None:
        for where, field, annotation in _fields(tree, module, name):
            kinds = list(_kinds(tree, where, annotation))
            for home, inner in kinds:
                named, own = inner.removesuffix("*"), "<name>." if inner.endswith("*") else ""
                if home and named not in within:
                    walk(home, named, f"{prefix}{field}.{own}", (*within, named))
            one = kinds[0][1] if len(kinds) == 1 and not kinds[0][0] else "any"
            option = f"{prefix}{field}"
            found[option] = _both(found[option], one) if option in found else one

    walk(*split_target(root), "", (root,))
    return found

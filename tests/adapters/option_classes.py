"""Options of configurations that are classes with annotated fields: dataclasses, pydantic's.

They are read from source files and never imported: `of_classes(files, "GRPOConfig")` is option ->
kind for the fields of that class, and by dotted names for those of classes within it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

PLAIN = ("int", "float", "bool", "str")


class _Module:
    """One file: its classes, what its other names stand for, and where it imports names from."""

    def __init__(self, file: Path) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.values: dict[str, ast.expr] = {}
        self.imports: dict[str, str] = {}
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                origin = (node.module or "").rpartition(".")[2]
                self.imports |= {alias.asname or alias.name: origin for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.values |= {ast.unparse(target): node.value for target in targets}


class _Classes:
    """The classes of some files; a name is looked for where it is used, then where that imports it
    from."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.modules = {file.stem: _Module(file) for file in files}

    def home(self, place: str, name: str) -> str | None:
        """The file that defines a class or another name, as one file knows it."""
        module = self.modules[place]
        if name in module.classes or name in module.values:
            return place
        if name not in module.imports:
            return None
        origin = module.imports[name]
        if origin in self.modules and origin != place:
            return self.home(origin, name)
        owners = [stem for stem, each in self.modules.items() if name in each.classes]
        return owners[0] if len(owners) == 1 else None  # a package's own name for one of its files

    def kinds(self, place: str, node: ast.expr) -> Iterator[tuple[str, str]]:
        """What an annotation allows: file and name of a class (with a * where it is that of a
        mapping's values), or "" and a kind. None is left out: it is what is not given."""
        if isinstance(node, ast.BinOp):
            yield from self.kinds(place, node.left)
            yield from self.kinds(place, node.right)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield from self.kinds(place, ast.parse(node.value, mode="eval").body)
        elif isinstance(node, ast.Subscript):
            yield from self._of_generic(place, node)
        elif isinstance(node, ast.Name):
            home = self.home(place, node.id)
            if home is None:
                yield "", node.id if node.id in PLAIN else "any"
            elif node.id in self.modules[home].classes:
                yield home, node.id
            else:
                yield from self.kinds(home, self.modules[home].values[node.id])
        else:
            yield "", "any"

    def _of_generic(self, place: str, node: ast.Subscript) -> Iterator[tuple[str, str]]:
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = ast.unparse(node.value).rpartition(".")[2]
        if name in ("Optional", "Annotated"):
            yield from self.kinds(place, inner[0])
        elif name in ("dict", "Dict"):
            yield from ((home, f"{each}*") for home, each in self.kinds(place, inner[-1]) if home)
            yield "", "any"
        elif name == "Union":
            for each in inner:
                yield from self.kinds(place, each)
        elif name == "Literal":
            yield "", str([each.value for each in inner if isinstance(each, ast.Constant)])
        else:
            yield "", "any"

    def fields(self, place: str, name: str) -> Iterator[tuple[str, str, ast.expr]]:
        """The fields of a class, those that it inherits first: where, name, annotation."""
        node = self.modules[place].classes[name]
        for base in node.bases:
            home = self.home(place, ast.unparse(base))
            if home is not None and ast.unparse(base) in self.modules[home].classes:
                yield from self.fields(home, ast.unparse(base))
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                yield place, field.target.id, field.annotation


def _both(kind: str, other: str) -> str:
    """The kind of an option that two classes have, of which either may be meant."""
    if kind.startswith("[") and other.startswith("["):
        choices = ast.literal_eval(kind)
        return str(choices + [one for one in ast.literal_eval(other) if one not in choices])
    return kind if kind == other else "any"


def of_classes(files: Sequence[Path], root: str) -> dict[str, str]:
    """The options of the class `root`, which one of the files has."""
    classes = _Classes(files)
    found: dict[str, str] = {}

    def walk(place: str, name: str, prefix: str, within: tuple[str, ...]) -> None:
        for where, field, annotation in classes.fields(place, name):
            kinds = list(classes.kinds(where, annotation))
            for home, inner in kinds:
                named, own = inner.removesuffix("*"), "<name>." if inner.endswith("*") else ""
                if home and named not in within:
                    walk(home, named, f"{prefix}{field}.{own}", (*within, named))
            one = kinds[0][1] if len(kinds) == 1 and not kinds[0][0] else "any"
            option = f"{prefix}{field}"
            found[option] = _both(found[option], one) if option in found else one

    [place] = [stem for stem, module in classes.modules.items() if root in module.classes]
    walk(place, root, "", (root,))
    return found

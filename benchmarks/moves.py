"""Would a move of modules break tests? Twenty of them move, and only `rltrace/` is told.

    python -m benchmarks.moves [--seed 0] [--count 20] [-- -m "not slow" -n 3 --dist loadfile]

Each drawn module of a copy goes into a new folder beside it, and whatever names it under
`rltrace/` names its new place: imports, strings, entry points. Then the tests run, without an edit,
but for the one file that is the module's own: the imports of the one that imports from it.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
from pathlib import Path

from benchmarks.trees import copied, run_tests


def move(copy: Path, seed: int, count: int) -> None:
    """Moves them."""
    pages = [*sorted((copy / "docs").rglob("*.md")), copy / "pyproject.toml"]  # what is installed
    told = "".join(page.read_text() for page in pages)
    found = [
        file
        for file in sorted((copy / "rltrace").rglob("*.py"))
        if file.stem not in ("__init__", "__main__") and "testing" not in file.parts
        if len(file.relative_to(copy).parts) > 2  # those above are the API
        # What the documents name or show is told of there.
        if _name(copy, file) not in told and str(file.relative_to(copy)) not in told
        if "(__file__)" not in file.read_text()  # it reads what lies beside it, and stays there
    ]
    moved: dict[str, str] = {}
    for file in random.Random(seed).sample(found, count):
        folder = file.parent / "moved_there"  # no module has that name
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        file.rename(folder / file.name)
        moved[_name(copy, file)] = _name(copy, folder / file.name)
    names = re.compile("|".join(rf"\b{re.escape(old)}\b" for old in moved))
    startup = (copy / ".venv").rglob("rltrace.pth")
    own = own_tests(copy, moved)
    print(*moved, "own tests, whose imports are edited:", *own, sep="\n")
    for file in [*(copy / "rltrace").rglob("*.*"), copy / "pyproject.toml", *startup, *own]:
        if file.suffix in (".py", ".toml", ".pth"):
            text = file.read_text()
            if file.suffix == ".py":
                text = _apart(text, moved)
            file.write_text(names.sub(lambda found: moved[found.group()], text))


def _name(copy: Path, file: Path) -> str:
    return ".".join(file.relative_to(copy).with_suffix("").parts)


def _apart(text: str, moved: dict[str, str]) -> str:
    """The same with each `from package import module` of a moved one apart from the others."""
    lines = text.splitlines(keepends=True)
    for node in reversed(list(ast.walk(ast.parse(text)))):
        if not isinstance(node, ast.ImportFrom):
            continue
        of = {id(one): f"{node.module}.{one.name}" for one in node.names}
        gone = [one for one in node.names if of[id(one)] in moved]
        if not gone:
            continue
        both = {
            node.module: [ast.unparse(one) for one in node.names if one not in gone],
            f"{node.module}.moved_there": [ast.unparse(one) for one in gone],
        }
        said = "; ".join(f"from {at} import {', '.join(of)}" for at, of in both.items() if of)
        begin, end = node.lineno - 1, node.end_lineno or node.lineno
        lines[begin:end] = [" " * node.col_offset + said + "\n", *["\n"] * (end - begin - 1)]
    return "".join(lines)


def own_tests(copy: Path, moved: dict[str, str]) -> list[Path]:
    """The test files that import a moved module themselves."""
    return [
        file
        for file in sorted((copy / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        and not moved.keys().isdisjoint(
            {str(node.module), *(f"{node.module}.{one.name}" for one in node.names)}
        )
    ]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --")
    asked = parser.parse_args()
    copy = copied(Path())
    move(copy, asked.seed, asked.count)
    code, out = run_tests(copy, *asked.pytest, limit_s=None)
    print(out[-4000:])
    shutil.rmtree(copy)
    return code or 0


if __name__ == "__main__":
    raise SystemExit(main())

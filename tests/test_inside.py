"""A module can move: only its own test imports from it."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def is_module(dotted: str) -> bool:
    """Whether a dotted name is a module of rltrace below a floor, and no package."""
    path = ROOT.joinpath(*dotted.split(".")).with_suffix(".py")
    return dotted.count(".") >= 2 and path.is_file()


def asked_of(file: Path) -> set[str]:
    """The modules of rltrace that a test imports from."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("rltrace."):
            continue
        for alias in node.names:
            if is_module(f"{node.module}.{alias.name}"):
                found.add(f"{node.module}.{alias.name}")
            elif is_module(str(node.module)):
                found.add(str(node.module))
    return found


def test_a_module_is_asked_for_by_its_own_test_and_no_other() -> None:
    by_module: dict[str, set[Path]] = defaultdict(set)
    for folder in ("tests", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            if "third_party" in file.parts:  # a user's: it names what is documented
                continue
            for module in asked_of(file):
                if not module.startswith("rltrace.testing."):
                    by_module[module].add(file.relative_to(ROOT))
    shared = {module: sorted(files) for module, files in by_module.items() if len(files) > 1}
    assert not shared, "import these from rltrace.testing.inside: " + str(shared)

"""What the documents promise is held by a test each, and by no more than can be read in one go."""

from __future__ import annotations

import ast
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

TESTS = Path(__file__).parent
ROWS = {
    (page, promise): held
    for page, promises in tomllib.loads((TESTS / "promises.toml").read_text()).items()
    for promise, held in promises.items()
}


def test_each_promise_has_its_page_and_its_test() -> None:
    assert 0 < len(ROWS) <= 120
    for (page, promise), held in ROWS.items():
        file, _, name = held.partition("::")
        assert (TESTS.parent / page).is_file(), page
        assert (TESTS / file).is_file(), promise
        tree = ast.parse((TESTS / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in names, (promise, held)


def test_each_page_promises_something() -> None:
    found = (TESTS.parent / "docs").glob("*/*.md")
    # A walk-through promises nothing that the pages behind it do not.
    pages = {str(page.relative_to(TESTS.parent)) for page in found if page.parent.name != "start"}
    assert pages <= {page for page, _ in ROWS}

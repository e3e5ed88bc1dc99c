"""Would the tests notice? Seeded mutations of `rltrace/`, the same in two trees.

    git worktree add /tmp/before SOME_COMMIT
    python -m benchmarks.mutations choose mutants.json --trees /tmp/before .
    python -m benchmarks.mutations map mutants.json --tree /tmp/before > before.json  # all tests
    python -m benchmarks.mutations run mutants.json --tree /tmp/before --map before.json
    ... the same for the other tree

A mutation changes one expression in a function (DeMillo, Lipton, Sayward 1978): a comparison,
`and` and `or`, an arithmetic operator, a number, a truth value, a `not`. It is tried against the
tests that evaluate this expression, in their process or in one that they start, those of its own
floor first, for a minute at most; at the first failure it is killed. A failure that comes without
the mutation, too, kills nothing. `map` and `run` work on copies; a tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.trees import copied, run_tests

LIMIT_S = 60.0
_NOT_OURS = ("rltrace/testing/", "rltrace/dashboards/")
_OTHER: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.And: "or", ast.Or: "and",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
}  # fmt: skip
_PROBE = """
import os
seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in seen:
        seen.add((number, test))
        with open(os.path.join({folder!r}, str(os.getpid())), "a") as file:
            file.write(f"{{number}}\\t{{test}}\\n")
    return True
"""


class Mutant(NamedTuple):
    """An expression: the `nth` of this text in the line of this text, of which there is one in the
    file; and what comes in its place."""

    file: str
    line: str
    nth: int
    old: str
    new: str

    def spot(self, text: str) -> tuple[int, int] | None:
        """Where it begins and ends in a file's text; None where that has not just one such line."""
        lines = text.splitlines(keepends=True)
        found = [i for i, line in enumerate(lines) if line.strip() == self.line]
        if len(found) != 1:
            return None
        start = sum(map(len, lines[: found[0]]))
        for _ in range(self.nth + 1):
            start = text.index(self.old, start) + 1
        return start - 1, start - 1 + len(self.old)

    def put(self, text: str, new: str) -> str:
        """The file's text with something else there."""
        start, end = self.spot(text) or (0, 0)
        return text[:start] + new + text[end:]


def mutants_of(tree: Path, name: str) -> Iterator[Mutant]:
    """Each mutation of a file that lies in one line, the only one of its text, in a function."""
    text = (tree / name).read_text()
    lines = text.splitlines()
    same = Counter(map(str.strip, lines))
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        told = {
            id(part)
            for node in ast.walk(function)
            for field in ("annotation", "returns", "format_spec")
            if isinstance(said := getattr(node, field, None), ast.AST)
            for part in ast.walk(said)
        }
        for node in (node for statement in function.body for node in ast.walk(statement)):
            if not isinstance(node, ast.expr) or id(node) in told:
                continue
            if node.lineno != node.end_lineno:
                continue
            line = lines[node.lineno - 1]
            new = _mutated(line, node)
            if new is not None and same[line.strip()] == 1:
                old, before = _text(line, node), line.encode()[: node.col_offset].decode()
                nth = sum(before.startswith(old, i) for i in range(len(before)))
                if line[len(before) :].startswith(old):  # not within an f-string
                    yield Mutant(name, line.strip(), nth, old, new)


def _text(line: str, node: ast.expr) -> str:
    return line.encode()[node.col_offset : node.end_col_offset].decode()


def _mutated(line: str, node: ast.expr) -> str | None:
    def of(part: ast.expr) -> str:
        return f"({_text(line, part)})"

    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return f"({of(left)} {_OTHER[type(op)]} {of(right)})"
        case ast.BoolOp(op=boolean, values=values):
            return "(" + f" {_OTHER[type(boolean)]} ".join(map(of, values)) + ")"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OTHER:
            return f"({of(left)} {_OTHER[type(operator)]} {of(right)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return of(operand)
        case ast.Constant(value=bool(truth)):
            return str(not truth)
        case ast.Constant(value=int(number) | float(number)):
            return str(number + 1)
    return None


def choose(trees: list[Path], seed: int, count: int) -> list[Mutant]:
    """So many mutations of the last tree that all trees have, drawn evenly."""
    *others, last = trees
    names = sorted(str(file.relative_to(last)) for file in (last / "rltrace").rglob("*.py"))
    ours = (name for name in names if not name.startswith(_NOT_OURS))
    pool = list(dict.fromkeys(mutant for name in ours for mutant in mutants_of(last, name)))
    random.Random(seed).shuffle(pool)
    chosen: list[Mutant] = []
    lines: set[tuple[str, str]] = set()
    for mutant in pool:
        files = [tree / mutant.file for tree in others]
        shared = all(file.exists() and mutant.spot(file.read_text()) for file in files)
        if shared and (mutant.file, mutant.line) not in lines and _compiles(mutant, last):
            lines.add((mutant.file, mutant.line))
            chosen.append(mutant)
        if len(chosen) == count:
            break
    return chosen


def _compiles(mutant: Mutant, tree: Path) -> bool:
    """Not within an f-string, where a call with quotes is none (before Python 3.12)."""
    try:
        ast.parse(mutant.put((tree / mutant.file).read_text(), _call(0, mutant)))
    except SyntaxError:
        return False
    return True


def _call(number: int, mutant: Mutant) -> str:
    """The expression, whose test is noted as it is evaluated."""
    hit = '__import__("rltrace.probe_of_mutants", fromlist=["hit"]).hit'
    return f"({hit}({number}) and ({mutant.old}))"


def tests_by_mutant(mutants: list[Mutant], tree: Path, *more: str) -> dict[int, list[str]]:
    """The tests that evaluate each mutant's expression."""
    copy = copied(tree)
    with tempfile.TemporaryDirectory() as folder:
        (copy / "rltrace/probe_of_mutants.py").write_text(_PROBE.format(folder=folder))
        for number, mutant in enumerate(mutants):
            file = copy / mutant.file
            file.write_text(mutant.put(file.read_text(), _call(number, mutant)))
        code, out = run_tests(copy, "tests", *more, limit_s=None)
        print(out[-2000:], file=sys.stderr)
        if code not in (0, 1):  # some failed: they were run
            sys.exit(f"the suite was not run whole: pytest ended with {code}")
        found: dict[int, dict[str, None]] = {number: {} for number in range(len(mutants))}
        for each in sorted(Path(folder).iterdir()):
            for line in each.read_text().splitlines():
                number, test = line.split("\t")
                if test.startswith("tests/"):  # others are pytest's own within a test
                    found[int(number)][test] = None
    shutil.rmtree(copy)
    return {number: sorted(tests) for number, tests in found.items()}


def outcome(mutant: Mutant, tests: list[str], copy: Path) -> str:
    """killed, survived, no test, or time: cut off after a minute without a failure."""
    folder = mutant.file.split("/")[1:-1]
    own, floor = f"tests/{'/'.join(folder)}/", f"tests/{(*folder, '')[0]}/"
    tests = sorted(tests, key=lambda test: (not test.startswith(own), not test.startswith(floor)))
    file = copy / mutant.file
    sound, until = file.read_text(), time.monotonic() + LIMIT_S
    while tests:
        file.write_text(mutant.put(sound, mutant.new))
        left_s = until - time.monotonic()
        try:
            code, out = run_tests(copy, "-x", "-m", "", *tests, limit_s=left_s)
        finally:
            file.write_text(sound)
        failed = [
            line.split(" - ")[0].split(maxsplit=1)[1]
            for line in out.splitlines()
            if line.startswith(("FAILED tests/", "ERROR tests/"))
        ]
        if code is None or code == 0:
            return "survived" if code == 0 else "time"
        if not failed:  # pytest itself could not begin
            failed = ["--collect-only", *tests]
        if run_tests(copy, "-m", "", *failed, limit_s=2 * LIMIT_S)[0] == 0:
            return "killed"
        tests = [test for test in tests if test not in failed]
    return "no test"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["choose", "map", "run"])
    parser.add_argument("mutants", type=Path)
    parser.add_argument("--trees", type=Path, nargs="+")
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--map", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--pytest", default="", help="more arguments of the suite's one run")
    asked = parser.parse_args()
    if asked.what == "choose":
        drawn = choose(asked.trees, asked.seed, asked.count)
        asked.mutants.write_text(json.dumps(drawn, indent=1))
        return
    mutants = [Mutant(*values) for values in json.loads(asked.mutants.read_text())]
    if asked.what == "map":
        print(json.dumps(tests_by_mutant(mutants, asked.tree, *asked.pytest.split())))
        return
    tests: dict[str, Any] = json.loads(asked.map.read_text())
    copy, counted = copied(asked.tree), dict[str, int]()
    for number, mutant in enumerate(mutants):
        what = outcome(mutant, tests[str(number)], copy)
        counted[what] = counted.get(what, 0) + 1
        print(number, what, mutant.file, f"{mutant.old} -> {mutant.new}", flush=True)
    print(json.dumps(counted))
    shutil.rmtree(copy)


if __name__ == "__main__":
    main()

"""Nothing that a trace, a log or a settings file holds is run, or unpacked to where it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import rltrace

PACKAGE = Path(rltrace.__file__).parent

UNTRUSTED = {
    *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"),
    *("tarfile", "zipfile", "patoolib", "py7zr"),
}
"""Modules that make objects, and so code, of bytes; and those whose archives name the files that
they are unpacked to."""

RUNS = {"eval", "exec", "compile", "__import__"}

THE_JOBS_OWN = {("main_module.py", "exec"), ("main_module.py", "compile")}
"""The program of the job, which is the user's and would have run anyway."""
OUR_OWN = {("wrapper_code.py", "compile"), ("boot.py", "__import__")}
"""Replacements, made of what stands in that file; modules of ours and of adapters, by the tables
there and by what `wrap` put into the environment."""

ONLY_TENSORS = "weights_only"
"""The argument of `torch.load` that has it read tensors and nothing else."""


def suspicious(source: str) -> Iterator[str]:
    """What in a module could run or unpack what it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in UNTRUSTED)
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").partition(".")[0]
            if not node.level and root in UNTRUSTED:
                yield root
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            last = name.rpartition(".")[2]
            if (
                name in RUNS
                or last in ("unpack_archive", "extractall")
                or name.startswith("runpy.")
                or (name == "torch.load" and given.get(ONLY_TENSORS) != "True")
                or (name.startswith("yaml.") and last.endswith("load") and last != "safe_load")
                or given.get("allow_pickle") == "True"
            ):
                yield name


def test_nothing_that_is_read_is_run_or_unpacked() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found |= {(path.name, what) for what in suspicious(path.read_text("utf-8"))}
    assert found == THE_JOBS_OWN | OUR_OWN

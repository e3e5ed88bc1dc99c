"""What rltrace says of the same runs before and after a change of the analysis.

    python -m benchmarks.goldens make RUNS              # once: the runs (some minutes)
    python -m benchmarks.goldens ask RUNS before.json   # what each command says of them
    python -m benchmarks.goldens differ before.json after.json

The runs: those in tests/fixtures, a known job of each placement, the jobs of examples/walls, an
import, and a known job as it was in its middle, which goes on. All figures are held, of the report,
`compare`, `whatif`, a baseline, metrics, the live view and `query`; what is only said is not. Of
the page, it is told which parts are others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from pyarrow import ipc

from benchmarks.synthetic.truth import known_job
from benchmarks.synthetic.workload import PLACEMENTS
from benchmarks.walls import FILES, ROOT
from rltrace.testing.inside.trace import update_run_json

_SAME = 1e-9  # of a figure: the order of a sum may change
_QUERIES = ("step_breakdown", "stage_share", "lag_histogram", "tail_by_step", "tokens_per_second")
_WORDS = {"headline", "because", "evidence", "says", "detail", "missing", "warnings", "symptom"}


def make(runs: Path) -> None:
    """Makes the runs that are not there yet."""
    runs.mkdir(exist_ok=True)
    for fixture in sorted((ROOT / "tests/fixtures").glob("run-*")):
        if fixture.is_dir() and not (runs / fixture.name).exists():
            shutil.copytree(fixture, runs / fixture.name)
    for placement in PLACEMENTS:
        if not (runs / placement).exists():
            known_job(runs / placement, placement=placement, steps=12)
    if not (runs / "going-on").exists():
        run, _ = known_job(runs / "going-on", placement="async", steps=40)
        update_run_json(str(run.path), end_real_ns=None, exit_code=None)
        _cut(run.path, 0.6)
    rltrace = (sys.executable, "-m", "rltrace")
    if not (runs / "imported").exists():
        log = ROOT / "tests/importers/fixtures/v1_sync.jsonl"
        subprocess.run([*rltrace, "import", "verl", log, "--out", runs / "imported"], check=True)
    for file in sorted(FILES.glob("*.toml")):
        if not (out := runs / f"wall-{file.stem}").exists():
            job = (sys.executable, ROOT / "examples/train.py", "--config", file)
            subprocess.run([*rltrace, "wrap", "--out", out, "--", *job], check=True)


def _cut(run: Path, share: float) -> None:
    """Leaves of a run what there was when that share of its spans had begun."""
    tables = {
        path: ipc.open_stream(path.read_bytes()).read_all() for path in run.glob("*/*.arrows")
    }
    begun = [table[0].to_numpy() for path, table in tables.items() if path.parent.name == "spans"]
    now_ns = int(np.quantile(np.concatenate(begun), share))
    for path, table in tables.items():
        there = table.filter(pc.less_equal(table[0], now_ns))
        if "end_ns" in table.column_names:
            place, ends = table.column_names.index("end_ns"), there["end_ns"]
            still = pc.if_else(pc.greater(ends, now_ns), -1, ends)
            there = there.set_column(place, table.schema.field(place), still)
        with ipc.new_stream(path, table.schema) as segment:
            segment.write_table(there)


def ask(runs: Path) -> dict[str, Any]:
    """All that is said of them, by run and command."""
    said: dict[str, Any] = {}
    folders = sorted(folder for folder in runs.iterdir() if (folder / "run.json").exists())
    for folder in folders:
        baseline, page = runs / "baseline.json", runs / "page.html"
        lever = ("--lever", "train_speed=2")
        commands = {
            "report": ("report", folder),
            "compare": ("compare", runs / "wall-rollout", folder),
            "whatif": ("whatif", folder, *lever),
            "metrics": ("export", "prometheus", folder, "--once"),
            "top": ("top", folder, "--once"),
            "baseline": ("baseline", folder, "--anyway", "-o", baseline),
            **{name: ("query", folder, f"@{name}") for name in _QUERIES},
        }
        of_run: dict[str, Any] = {}
        for name, command in commands.items():
            of_run[name] = _said(*command, "--json")
        of_run["baseline"] = json.loads(baseline.read_text()) if baseline.exists() else None
        baseline.unlink(missing_ok=True)
        _said("report", folder, "--html", page)
        parts = re.split(r"(?=<section)", page.read_text() if page.exists() else "")
        of_run["page"] = {of[:60]: hashlib.sha256(of.encode()).hexdigest() for of in parts}
        page.unlink(missing_ok=True)
        said[folder.name] = of_run
        print(folder.name, file=sys.stderr, flush=True)
    return said


def _said(*command: str | Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "rltrace", *command], capture_output=True, text=True, check=False
    )
    if done.returncode == 2:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"exit code": done.returncode}


def differences(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two answers differ, and how."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            if key not in _WORDS:
                yield from differences(before.get(key), after.get(key), f"{where}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}/{i}")
    elif isinstance(before, float | int) and isinstance(after, float | int):
        if not math.isclose(before, after, rel_tol=_SAME, abs_tol=1e-12):
            yield where, before, after
    elif before != after:
        yield where, before, after


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["make", "ask", "differ"])
    parser.add_argument("paths", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.what == "make":
        make(asked.paths[0])
    elif asked.what == "ask":
        asked.paths[1].write_text(json.dumps(ask(asked.paths[0]), indent=1))
    else:
        found = list(differences(*(json.loads(path.read_text()) for path in asked.paths)))
        for where, before, after in found:
            print(where, str(before)[:60], "->", str(after)[:60])
        return int(bool(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Are weights that did not arrive found? Silent faults in the built-in trainer, and none at all.

    python -m benchmarks.prove_silent [--only NAME ...] [--faults | --clean] [--keep FOLDER]

Twelve jobs in each of which something goes wrong between learner and engines from one version of
the weights on (`benchmarks/silent_faults`), and nothing fails: an alarm has to name the engine, or
all of them, and the version, by what is recorded up to the third update that the fault has part in.
Then jobs without a fault: each placement at several seeds and learning rates, and the jobs of
examples/walls/, where no such alarm may be. `--keep` leaves the runs in a folder; what is there
already and ended well is judged as it is.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

import rltrace
from benchmarks.silent_faults.sitecustomize import ALL, EVERYWHERE
from benchmarks.walls import FILES, ROOT, ended_well
from rltrace.testing.inside.analysis import RunAnalysis
from rltrace.testing.inside.trainer import PLACEMENTS

BEGINS = 8  # the version with which a fault begins: seven updates came before
WITHIN = 3  # updates
NEEDED = 10  # faults that have to be found
RUN_LIMIT_SECONDS = 600
CLEAN = dict(zip(PLACEMENTS, ((1, 1e-3), (2, 3e-3), (3, 1e-4), (4, 0.0)), strict=True))
"""Placement -> the seed and learning rate that it begins with: each meets each."""


@dataclass(frozen=True)
class Row:
    """A job, what its alarms had to say of weights, and what they said."""

    name: str
    expected: str
    said: tuple[str, ...]
    holds: bool


def fault(name: str, run: Path) -> Row:
    """Errors: `ClickException` where the job fails."""
    victim = run.with_suffix(".victim")
    if not ended_well(run):
        victim.unlink(missing_ok=True)
        wrap(run, fault_settings(name, victim), "--steps", str(BEGINS + WITHIN))
    analysis = RunAnalysis(rltrace.open_run(run))
    gaps = analysis.engine_gaps
    pid = int(victim.read_text())
    ranks = [one.rank for one in analysis.run.processes if one.pid == pid]
    engine = None if name in EVERYWHERE else f"rollout {ranks[0]}"
    found = [one for one in gaps.departures if one.engine == engine]
    holds = any(one.version in range(BEGINS, BEGINS + WITHIN) for one in found)
    others = [one for one in gaps.departures if one not in found]
    expected = f"{engine or 'all engines'} from version {BEGINS} on"
    return Row(name, expected, _said(analysis), holds and not others)


def fault_settings(name: str, victim: Path) -> dict[str, str]:
    """The environment of a job that has the fault."""
    return {
        "PYTHONPATH": str(ROOT / "benchmarks" / "silent_faults"),
        "SILENT_FAULT": name,
        "SILENT_FAULT_FROM": str(BEGINS),
        "SILENT_FAULT_VICTIM": str(victim),
    }


def clean_jobs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of jobs in which nothing is wrong, and their settings."""
    for placement, (seed, rate) in itertools.product(PLACEMENTS, CLEAN.values()):
        more = ("--minibatches", "1", "--rollout-workers", "3") if seed % 2 else ()
        job = ("--placement", placement, "--seed", str(seed), "--lr", str(rate), *more)
        yield f"{placement}, seed {seed}, learning rate {rate:g}", (*job, "--steps", "30")
    for path in sorted(FILES.glob("*.toml")):
        yield f"examples/walls/{path.name}", ("--config", str(path))


def clean(name: str, job: tuple[str, ...], run: Path) -> Row:
    """Errors: `ClickException` where the job fails."""
    if not ended_well(run):
        wrap(run, {}, *job)
    said = _said(RunAnalysis(rltrace.open_run(run)))
    return Row(name, "nothing", said, not said)


def _said(analysis: RunAnalysis) -> tuple[str, ...]:
    kinds = ("weights", "digests")
    return tuple(one.says for one in analysis.health.alarms if one.kind in kinds)


def wrap(run: Path, environment: Mapping[str, str], *job: str) -> None:
    """Errors: `ClickException` where the job fails."""
    command = (sys.executable, "-m", "rltrace", "wrap", "--out", str(run), "--", sys.executable)
    done = subprocess.run(
        [*command, str(ROOT / "examples" / "train.py"), *job],
        env={**os.environ, "RAY_memory_monitor_refresh_ms": "0", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise click.ClickException(done.stderr)


@click.command()
@click.option("--only", "names", multiple=True, help="Names that have this in them. Repeatable.")
@click.option("--faults/--clean", "faulty", default=None, help="These jobs only.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Leave the runs here; take what is there."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def main(names: tuple[str, ...], faulty: bool | None, keep: Path | None, as_json: bool) -> None:
    """Exits 1 where fewer faults than are needed are found, or where there is a false alarm."""
    found: dict[str, list[Row]] = {"faults": [], "clean": []}
    with tempfile.TemporaryDirectory() as folder:
        where = (keep or Path(folder)).resolve()
        where.mkdir(parents=True, exist_ok=True)
        jobs = [("faults", name, ()) for name in ALL if faulty is not False]
        jobs += [("clean", *one) for one in clean_jobs() if faulty is not True]
        for kind, name, job in jobs:
            if names and not any(one in name for one in names):
                continue
            run = where / "".join(c if c.isalnum() else "-" for c in name)
            row = fault(name, run) if kind == "faults" else clean(name, job, run)
            found[kind].append(row)
            click.echo(f"{'✓' if row.holds else '✗'} {name}: {row.expected}", err=as_json)
            for line in row.said or ("nothing was said",):
                click.echo(f"    {line}", err=as_json)
    if as_json:
        plain = {kind: [dataclasses.asdict(one) for one in rows] for kind, rows in found.items()}
        click.echo(json.dumps(plain, indent=1))
    good = {kind: sum(one.holds for one in rows) for kind, rows in found.items()}
    says = f"{good['faults']} of {len(found['faults'])} faults found"
    says += f"; {len(found['clean']) - good['clean']} false alarms in {len(found['clean'])} jobs"
    click.echo(says, err=as_json)
    missed = len(found["faults"]) - good["faults"]
    sys.exit(0 if missed <= len(ALL) - NEEDED and good["clean"] == len(found["clean"]) else 1)


if __name__ == "__main__":
    main()

"""Who is named where a job hangs, and does it end as it would once it is let go?

    python -m benchmarks.stuck [--only KIND ...] [--json]

Each hang of `benchmarks.stuck.hangs` runs under `rltrace wrap --stuck-after 5s`. What the agent
writes down has to name the kind, the process and, where one is known, the place of the culprit.
Then the job is let go, and has to end as it does untraced: with exit code 0.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.stuck.hangs import KINDS
from rltrace.testing.inside.analysis import Stuck, stuck_of

WITHIN_S = 90.0


@dataclass(frozen=True)
class Outcome:
    """What became of one hang: `missed` is what the finding lacks ("": nothing)."""

    kind: str
    found_s: float
    exit_code: int | None
    missed: str
    says: str


def run(kind: str, folder: Path, after: str = "5s") -> Outcome:
    """Runs one hang under `rltrace wrap`, lets it go once it was found, or after `WITHIN_S`."""
    release = folder / "release"
    os.mkfifo(release)
    environment = dict(os.environ, RAY_memory_monitor_refresh_ms="0")
    environment["RLTRACE_TEST_RAY_TMP"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    traced = [sys.executable, "-m", "rltrace", "wrap", "--out", str(folder / "run")]
    command = [
        *traced,
        "--stuck-after",
        after,
        "--",
        sys.executable,
        "-m",
        "benchmarks.stuck.hangs",
    ]
    with (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            [*command, kind, str(folder)], stdout=log, stderr=log, env=environment
        )
    culprit: dict[str, object] = {}
    found, since = None, time.monotonic()
    while job.poll() is None and time.monotonic() - since < WITHIN_S:
        if not culprit and (folder / "culprit.json").exists():
            culprit, since = json.loads((folder / "culprit.json").read_text()), time.monotonic()
        if culprit and (found := _found(folder / "run", int(str(culprit["at_ns"])))) is not None:
            break
        time.sleep(0.2)
    found_s = time.monotonic() - since
    missed = _missed(culprit, found)
    try:
        if job.poll() is None:
            _open_and_close(release)
        job.wait(60)
    except (subprocess.TimeoutExpired, OSError):
        job.kill()
    return Outcome(kind, found_s, job.poll(), missed, found.sentence if found else "")


def _found(run: Path, since_ns: int) -> Stuck | None:
    """What was seen after a moment: a slow machine may stand still before."""
    for path in (run / "nodes").glob("*.json"):
        with suppress(ValueError):
            found = stuck_of(json.loads(path.read_text()).get("stuck"))
            if found is not None and found.seen_ns - int(1e9) > since_ns:
                return found
    return None


def _missed(culprit: dict[str, object], found: Stuck | None) -> str:
    if found is None:
        return "nothing was found"
    named = found.culprit
    if named.kind != culprit["kind"]:
        return f"the kind is {named.kind}, not {culprit['kind']}"
    if named.pid != culprit["pid"]:
        return f"the process is {named.pid}, not {culprit['pid']}"
    if str(culprit.get("place", "")) not in named.place:
        return f"the place is {named.place}"
    return "" if str(culprit.get("says", "")) in named.says else f"it says {named.says!r}"


def _open_and_close(pipe: Path) -> None:
    """Lets go whoever reads the pipe. Errors: OSError where nobody does."""
    until = time.monotonic() + 5
    while True:
        try:
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(sorted(KINDS)))
@click.option("--json", "as_json", is_flag=True)
def main(only: tuple[str, ...], as_json: bool) -> None:
    """Runs the hangs, and says of each who was named."""
    outcomes = []
    for kind in only or KINDS:
        with tempfile.TemporaryDirectory(prefix="stuck-") as folder:
            outcomes.append(run(kind, Path(folder)))
        if not as_json:
            one = outcomes[-1]
            said = one.missed or f"named after {one.found_s:.0f} s, exit code {one.exit_code}"
            click.echo(f"{kind:<24}{said}\n    {one.says}")
    named = sum(not one.missed for one in outcomes)
    ended = sum(one.exit_code == 0 for one in outcomes)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in outcomes], indent=1))
    else:
        click.echo(f"named: {named} of {len(outcomes)}; ended as they would: {ended}")
    sys.exit(not named == ended == len(outcomes))


if __name__ == "__main__":
    main()

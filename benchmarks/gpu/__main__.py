"""All that is measured on a GPU, one after the other, with what was found as JSON.

    python -m benchmarks.gpu [--cpu] [--only PART ...] [--out FOLDER]

About six minutes on an H100. Exits with 1 where a part misses a limit or does not run. The machine
needs torch, transformers, triton and what rltrace needs; no network, no Ray.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import click

PARTS = {
    "beside": (110, ()),
    "nvml": (70, ()),
    "truth": (200, ("--json",)),
    "overhead": (200, ("--json",)),
    "sync": (260, ()),
}
"""The most seconds that each may take, and its options; one that does not print JSON writes it."""


def run(part: str, cpu: bool, out: Path) -> tuple[str, float]:
    """Runs a part: how it ended, and seconds."""
    limit_s, options = PARTS[part]
    command = [sys.executable, "-m", f"benchmarks.gpu.{part}", *options, *(["--cpu"] * cpu)]
    if not options:
        command += ["--json", str(out / f"{part}.json")]
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        how, said, failed = f"exit code {done.returncode}", done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        how = f"not done after {limit_s} s"
        said, failed = (
            str(text or b"", "utf-8", "replace") for text in (error.stdout, error.stderr)
        )
    if options:
        (out / f"{part}.json").write_text(said)
        said = "\n".join(_lines(said))
    print(f"\n== {part}: {how}\n{said}{failed[-3000:]}", flush=True)
    return how, time.monotonic() - begun


def _lines(said: str) -> list[str]:
    """A benchmark's JSON (`benchmarks.measuring`) in lines; what is none stays as it is."""
    try:
        told = json.loads(said)
    except json.JSONDecodeError:
        return [said]
    rows = [
        f"{name}: {row['median']:.2f} {told['unit']} ({row['low']:.2f} to {row['high']:.2f},"
        f" n = {row['count']})"
        for name, row in told["rows"].items()
    ]
    notes = [f"{name}: {note}" for name, note in told["notes"].items()]
    checks = [
        f"{'kept' if check['holds'] else 'MISSED'} {check['what']}: {check['figure']:.4g}"
        f" {check['unit']}, limit {check['limit']:g}"
        for check in told["checks"]
    ]
    return [told["title"], *rows, *notes, *checks]


@click.command()
@click.option("--cpu", is_flag=True)
@click.option("--only", multiple=True, type=click.Choice(sorted(PARTS)))
@click.option("--out", type=click.Path(path_type=Path), default=Path("gpu-figures"))
def main(cpu: bool, only: tuple[str, ...], out: Path) -> None:
    """Runs the parts, and says how each ended."""
    out.mkdir(parents=True, exist_ok=True)
    ended = {part: run(part, cpu, out) for part in only or PARTS}
    print("\n" + "\n".join(f"{part}: {how}, {took:.0f} s" for part, (how, took) in ended.items()))
    sys.exit(int(any(how != "exit code 0" for how, _ in ended.values())))


if __name__ == "__main__":
    main()

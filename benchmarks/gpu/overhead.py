"""What tracing costs a job on a GPU: steps of the GRPO loop, traced against untraced, in turns.

    python -m benchmarks.gpu.overhead [--launches 4] [--pairs 20] [--cpu] [--json]

All jobs are up at once, on the same device; while one takes its step the others wait. Two are
untraced: their ratio is what two processes differ by on their own. On the CPU
the steps take milliseconds, so that the ratio says nothing of a job; what is looked at there is
that it runs.
"""

from __future__ import annotations

import sys

import click

from benchmarks.overhead import compare

MOST = 1.01


@click.command()
@click.option("--launches", default=4, show_default=True)
@click.option("--pairs", default=20, show_default=True, help="Steps of each job and launch.")
@click.option("--cpu", is_flag=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def main(launches: int, pairs: int, cpu: bool, as_json: bool) -> None:
    """Step time of the loop, traced / untraced; exits 1 when a limit is missed."""

    def paced(descriptor: int, steps: int) -> list[str]:
        told = ["benchmarks.gpu.grpo", "--paced", str(descriptor), "--steps", str(steps)]
        return [*told, *(["--cpu"] if cpu else ["--size", "0.1B"])]

    result = compare(paced, launches, pairs, "A step of GRPO", MOST, control=True)
    if cpu:
        result.checks.clear()
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()

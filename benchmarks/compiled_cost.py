"""What a hooked function and a span cost inside of `torch.compile`: a call beside one without them.

    python -m benchmarks.compiled_cost [--rounds 60] [--json]

The same step three times, each compiled as one graph (`fullgraph=True`): plain, with a hooked
function inside, and with a span of the API inside; with a run and without. CPU time, in turns.
"""

from __future__ import annotations

import sys
import tempfile

import click
import numpy as np
import torch

import rltrace
from benchmarks.measuring import Check, Result, cpu_ns_each, spread, take_turns
from rltrace.testing.inside.hooks import Hook, Observer, recorder, wrap
from rltrace.testing.inside.trace import create_run

LAYERS, CALLS = 8, 300
LIMIT = 1.02
PLAIN = "plain"


def act(x: torch.Tensor) -> torch.Tensor:
    """A leaf of the step."""
    return torch.relu(x) + 1


def spanned(x: torch.Tensor) -> torch.Tensor:
    """The same, with a span around it."""
    with rltrace.span("train"):
        return torch.relu(x) + 1


def measure(rounds: int) -> dict[str, list[float]]:
    """CPU ns of a call, by what is inside."""
    torch.set_num_threads(1)
    weights = [torch.eye(64) for _ in range(LAYERS)]
    x = torch.ones(16, 64)
    turns = {}
    for name, leaf in (
        (PLAIN, act),
        ("hooked", wrap(act, Observer(Hook("x:act", "train")))),
        ("span", spanned),
    ):

        def step(x: torch.Tensor, ws: list[torch.Tensor], leaf: object = leaf) -> torch.Tensor:
            for w in ws:
                x = leaf(x @ w)  # type: ignore[operator]
            return x.sum()

        compiled = torch.compile(step, backend="eager", fullgraph=True)

        def run(count: int, compiled: object = compiled) -> None:
            for _ in range(count):
                compiled(x, weights)  # type: ignore[operator]

        run(20)
        turns[name] = cpu_ns_each(run, CALLS)
    return take_turns(turns, rounds)


@click.command()
@click.option("--rounds", default=60, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, as_json: bool) -> None:
    """Measures; exits 1 when the limit is missed."""
    result = Result("A call of a compiled step", "µs of CPU")
    with tempfile.TemporaryDirectory() as folder:
        for place in ("no run", "traced"):
            if place == "traced":
                create_run(f"{folder}/run", [], {}, "0")
                recorder.start(f"{folder}/run")
            taken = measure(rounds)
            for name, values in taken.items():
                result.rows[f"{place}: {name}"] = spread([value / 1e3 for value in values])
                if name != PLAIN:
                    ratio = float(np.median(np.array(values) / np.array(taken[PLAIN])))
                    result.checks.append(Check(f"{place}: {name}", ratio, LIMIT, "times plain"))
    sys.exit(result.finish(as_json))


if __name__ == "__main__":
    main()

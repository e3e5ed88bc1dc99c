"""Commands that ask before there is a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, RunFolder, print_json
from rltrace.cli.output import show
from rltrace.trace.errors import WrongUsage

_WHOLE, _NUMBER = int, float


@command(short_help="A design for a workload, before any GPU is rented.")
@click.argument("workload", required=False, type=click.Path(path_type=Path))
@click.option("--model", metavar="NAME", help="A known model.")
@click.option("--params", metavar="70B", help="Its size, instead; with --active of a mixture.")
@click.option("--active", metavar="22B", help="Parameters that a token passes.")
@click.option("--gpus", metavar="32xH100", help="How many GPUs of which kind.")
@click.option("--prompts", type=_WHOLE, help="Prompts of a step.")
@click.option("--group", type=_WHOLE, help="Samples of each prompt.")
@click.option("--mean-tokens", type=_NUMBER, help="Mean length of a response, cut ones too.")
@click.option("--cap", type=_NUMBER, help="Tokens at which responses are cut.")
@click.option("--prompt-tokens", type=_NUMBER, help="Mean length of a prompt.")
@click.option("--tail", type=_NUMBER, help="Standard deviation of uncut lengths over their mean.")
@click.option("--updates", type=_WHOLE, help="Optimizer updates of a step.")
@click.option("--env-latency", metavar="8s", help="Mean time of a tool call.")
@click.option("--env-calls", type=_NUMBER, help="Tool calls of a trajectory.")
@click.option("--env-workers", type=_WHOLE, help="Sandboxes at once.")
@click.option("--reward-latency", metavar="250ms", help="Time of a verdict.")
@click.option("--reward-workers", type=_WHOLE, help="Verdicts at once.")
@click.option("--staleness", metavar="strict|bounded|loose|N", help="Lag allowed, in versions.")
@click.option("--reference/--no-reference", default=None, help="A reference pass.")
@click.option("--logprob/--no-logprob", default=None, help="A pass for old log-probs.")
@click.option("--critic/--no-critic", default=None, help="A critic.")
@click.option("--sync", metavar="MECHANISM", help="How weights travel (docs/plan.md).")
@click.option("--split", metavar="24:8", help="Devices of rollout : training.")
@click.option("--price", type=_NUMBER, metavar="USD", help="Of a GPU, an hour.")
@click.option("--stack", metavar="hf|fsdp|megatron|nvidia", help="What your team is near to.")
@click.option(
    "--from-run",
    type=RunFolder(path_type=Path),
    metavar="RUN",
    help="Calibrate with what was measured: lengths, pace of generation, training and tools.",
)
@click.option("--sweep", metavar="gpus=16..256", help="The best design for each of many values.")
@JSON
def plan(
    workload: Path | None,
    from_run: Path | None,
    sweep: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """A design for a workload, before any GPU is rented: what each stage takes and why, what fits,
    placements side by side, what binds, lags, and last a framework with settings to launch it.

    \b
    rltrace plan --model Qwen/Qwen2.5-32B --gpus 32xH100 --mean-tokens 6000 --cap 32768
    rltrace plan examples/workloads/long-cot.toml --sweep gpus=16..256
    """
    from rltrace.analysis.plan.of_run import calibrated
    from rltrace.analysis.plan.reading import merged, read_workload, spec_of

    tables = read_workload(workload) if workload is not None else {}
    tables = merged(tables, _tables(flags))
    measured = _measured(from_run) if from_run is not None else None
    if measured is not None:
        tables = merged(measured.tables, tables)

    def made(tables: dict[str, dict[str, Any]]) -> Any:
        spec = spec_of(tables, str(workload or ""))
        return spec if measured is None else calibrated(spec, measured)

    if sweep is not None:
        _sweep(tables, made, sweep, as_json)
        return
    from rltrace.analysis.plan.advice import advise
    from rltrace.analysis.plan.plan import plan as plan_

    found = plan_(made(tables))
    advice = advise(found)
    if as_json:
        from rltrace.report.to_json import of_plan

        print_json(of_plan(found, advice))
        return
    from rltrace.report import plan_section

    show(plan_section.sections(found, advice))


def _measured(path: Path) -> Any:
    from rltrace.analysis.plan.of_run import measure
    from rltrace.analysis.run_analysis import RunAnalysis
    from rltrace.run.location import find_run
    from rltrace.run.reading import open_readable

    return measure(RunAnalysis(open_readable(find_run(path))))


def _sweep(tables: Any, made: Any, text: str, as_json: bool) -> None:
    from rltrace.analysis.plan.plan import asked, sweep

    what, values = asked(text)
    points = sweep(tables, what, values, made)
    if as_json:
        from rltrace.report import to_json

        print_json({"swept": what, "points": to_json.plain(points)})
        return
    from rltrace.report import plan_section

    show([plan_section.swept(points, what)])


def _tables(flags: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Flags as the tables of a workload file."""
    from rltrace.analysis.plan.reading import seconds

    found: dict[str, dict[str, Any]] = {}
    for name, value in flags.items():
        if value is None:
            continue
        if value == "" and name in ("model", "gpus"):
            raise WrongUsage(f"--{name} is empty")
        table, key = _FLAGS[name]
        if name.endswith("_latency"):
            found.setdefault(table, {})[key] = seconds(value, f"--{name.replace('_', '-')}")
        else:
            found.setdefault(table, {})[key] = value
    if "name" in found.get("model", {}) and "parameters" in found["model"]:
        raise WrongUsage("give --model or --params, not both")
    return found


_FLAGS = {
    "model": ("model", "name"),
    "params": ("model", "parameters"),
    "active": ("model", "active"),
    "gpus": ("gpus", "kind"),
    "price": ("gpus", "usd_per_hour"),
    "split": ("gpus", "split"),
    "prompts": ("batch", "prompts"),
    "group": ("batch", "group"),
    "updates": ("batch", "updates"),
    "mean_tokens": ("lengths", "mean_tokens"),
    "cap": ("lengths", "cap_tokens"),
    "prompt_tokens": ("lengths", "prompt_tokens"),
    "tail": ("lengths", "variation"),
    "env_latency": ("environment", "latency_s"),
    "env_calls": ("environment", "calls"),
    "env_workers": ("environment", "workers"),
    "reward_latency": ("reward", "latency_s"),
    "reward_workers": ("reward", "workers"),
    "staleness": ("", "staleness"),
    "reference": ("passes", "reference"),
    "logprob": ("passes", "logprob"),
    "critic": ("passes", "critic"),
    "sync": ("sync", "mechanism"),
    "stack": ("prefers", "stack"),
}
"""Where a flag stands in a workload file."""

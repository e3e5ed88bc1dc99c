"""`rltrace triage`: rough seconds, or four words, before there is a run."""

from __future__ import annotations

import math
from typing import Any

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, print_json
from rltrace.cli.output import show
from rltrace.trace.errors import WrongUsage

_SECONDS = click.FLOAT
_MOST_SEQUENCES = 1024


@command(short_help="What binds, from rough seconds of the stages or four words.")
@click.option("--rollout", type=_SECONDS, help="Seconds of generation, its longest sample too.")
@click.option("--throughput", type=_SECONDS, help="The same without waiting for the longest.")
@click.option("--reward", type=_SECONDS, help="Seconds of verdicts.")
@click.option("--env", type=_SECONDS, help="Seconds of tools beyond generation.")
@click.option("--reference", type=_SECONDS, help="Seconds of the reference pass.")
@click.option("--logprob", type=_SECONDS, help="Seconds of the pass for old log-probs.")
@click.option("--value", type=_SECONDS, help="Seconds of the critic's pass.")
@click.option("--train", type=_SECONDS, help="Seconds of training.")
@click.option("--sync", type=_SECONDS, help="Seconds of moving weights.")
@click.option("--switch", type=_SECONDS, help="Seconds of sleep, wake and offload.")
@click.option("--overlap", type=_SECONDS, help="Part of an update that other work hides (0.55).")
@click.option("--reference-side", metavar="learner|actor", help="Whose chain the reference is in.")
@click.option("--placement", metavar="colocated|one-step-off|async", help="Of the job as it is.")
@click.option(
    "--params",
    metavar="7B",
    help="The model's size; with --tokens and devices, seconds that cannot be are refused.",
)
@click.option("--tokens", type=_SECONDS, help="Tokens that a step trains on.")
@click.option("--learner-gpus", metavar="4xH100", help="Devices that train.")
@click.option("--rollout-gpus", metavar="4xH100", help="Devices that generate.")
@click.option("--output", metavar="short|cot|agent", help="Instead of seconds: what is generated,")
@click.option("--environment", metavar="low|medium|high", help="how dear environments are,")
@click.option("--staleness", metavar="strict|bounded|loose", help="and how much lag is allowed.")
@click.option("--stack", metavar="hf|fsdp|megatron|nvidia", help="What your team is near to.")
@JSON
def triage(as_json: bool, **given: Any) -> None:
    """What binds, from rough seconds of the stages of a step, or from four words on a workload.

    \b
    rltrace triage --rollout 360 --reward 80 --train 120 --sync 35
    rltrace triage --params 70B --output cot --environment low --staleness bounded
    """
    known = {name: value for name, value in given.items() if value is not None}
    words = {"output", "environment", "staleness", "stack"} & set(known)
    if words:
        _design(known, as_json)
        return
    _seconds(known, as_json)


def _seconds(known: dict[str, Any], as_json: bool) -> None:
    from rltrace.analysis.plan.triage import Stages, first_fix
    from rltrace.analysis.plan.triage import triage as triage_

    placement = known.pop("placement", "colocated")
    _refuse_impossible(known)
    side = known.get("reference_side", "learner")
    if side not in ("learner", "actor"):
        raise WrongUsage(f"--reference-side must be learner or actor, not {side!r}")
    found = triage_(Stages(**{"rollout": 0.0, **known}), placement)
    fix = first_fix(found)
    if as_json:
        from rltrace.report import to_json

        print_json(
            {
                **to_json.plain(found),
                "fix": to_json.plain(fix),
                "binding": [wall.wall for wall in found.binding],
                "colocated_over_async": found.gain,
            }
        )
        return
    from rltrace.report import plan_section

    show([plan_section.triaged(found, fix)])


def _refuse_impossible(known: dict[str, Any]) -> None:
    """Errors: `RltraceError` for seconds in which no hardware does what is stated."""
    from rltrace.analysis.plan.hardware import counted
    from rltrace.analysis.plan.learner import refuse_bandwidth, refuse_mfu
    from rltrace.analysis.plan.shapes import by_size, parameters

    size, tokens = known.pop("params", None), known.pop("tokens", None)
    learner, rollout = known.pop("learner_gpus", None), known.pop("rollout_gpus", None)
    if (size, tokens, learner, rollout) == (None, None, None, None):
        return
    if size is None or tokens is None or (learner is None and rollout is None):
        raise WrongUsage(
            "give --params and --tokens with --learner-gpus or --rollout-gpus: together they say "
            "what cannot be"
        )
    if not 0 < tokens < math.inf:
        raise WrongUsage(f"--tokens must be a number above 0, not {tokens:g}")
    total = parameters(size)
    if learner is not None:
        count, kind = counted(learner)
        seconds = known.get("train", math.nan)
        refuse_mfu(6 * total * tokens, count, kind, seconds)
    generating_s = known.get("throughput", known.get("rollout", 0.0))
    if rollout is not None and generating_s > 0:
        count, kind = counted(rollout)
        # The most that an engine runs at once, with caches that cost nothing to read.
        rate, batch = tokens / generating_s, _MOST_SEQUENCES * count
        refuse_bandwidth(rate, by_size(total), kind, count, batch, 0.0)


def _design(known: dict[str, Any], as_json: bool) -> None:
    from rltrace.analysis.plan.shapes import parameters
    from rltrace.analysis.plan.triage import select

    needed = ("params", "output", "environment", "staleness")
    missing = [f"--{name}" for name in needed if name not in known]
    if missing:
        raise WrongUsage(f"a design needs {', '.join(missing)}, too")
    others = sorted(set(known) - {*needed, "stack"})
    if others:
        raise WrongUsage(
            f"give seconds or words, not both: --{others[0].replace('_', '-')} is a figure"
        )
    found = select(
        parameters(known["params"]), known["output"], known["environment"], known["staleness"],
        known.get("stack", ""),
    )  # fmt: skip
    if as_json:
        from rltrace.report import to_json

        print_json(to_json.plain(found))
        return
    from rltrace.report import plan_section

    show(plan_section.designed(found))

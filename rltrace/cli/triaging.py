"""`rltrace triage`: rough seconds, before there is a run."""

from __future__ import annotations

from typing import Any

import click

from rltrace.cli.manual import command
from rltrace.cli.options import JSON, print_json
from rltrace.cli.output import show
from rltrace.trace.errors import WrongUsage

_SECONDS = click.FloatRange(0, 1e8)


@command(short_help="What binds, from rough seconds of the stages.")
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
@click.option("--overlap", type=float, default=0.55, show_default=True,
              help="Part of an update that other work hides.")  # fmt: skip
@click.option("--placement", metavar="colocated|one-step-off|async", default="colocated",
              help="Of the job as it is.")  # fmt: skip
@click.option("--params", metavar="7B", help="The model's size; with --tokens and --learner-gpus, "
              "training that cannot be so fast is refused.")  # fmt: skip
@click.option("--tokens", type=float, help="Tokens that a step trains on.")
@click.option("--learner-gpus", metavar="4xH100", help="Devices that train.")
@JSON
def triage(
    throughput: float | None,
    overlap: float,
    placement: str,
    params: str | None,
    tokens: float | None,
    learner_gpus: str | None,
    as_json: bool,
    **stages: float | None,
) -> None:
    """What binds, from rough seconds of the stages of a step.

    \b
    rltrace triage --rollout 360 --reward 80 --train 120 --sync 35
    """
    from rltrace.analysis.plan.triage import first_fix
    from rltrace.analysis.plan.triage import triage as triage_

    tables: dict[str, Any] = {
        "placement": placement,
        "stages": {name: seconds for name, seconds in stages.items() if seconds is not None},
        "sync": {"overlap": overlap},
    }
    if not tables["stages"].get("rollout") and not tables["stages"].get("train"):
        raise WrongUsage("give at least --rollout or --train, in seconds")
    if throughput is not None:
        tables["rollout"] = {"throughput_s": throughput}
    if (params, tokens, learner_gpus) != (None, None, None):
        _refuse_impossible(tables, params, tokens, learner_gpus)
    found = triage_(tables)
    fix = first_fix(found)
    if as_json:
        from rltrace.report.to_json import plain

        print_json({**plain(found), "fix": plain(fix), "binding": found.binding})
        return
    from rltrace.report import plan_section

    show([plan_section.triaged(found, fix)])


def _refuse_impossible(
    tables: dict[str, Any], params: str | None, tokens: float | None, gpus: str | None
) -> None:
    """Errors: `RltraceError` for training that no hardware does in the seconds stated."""
    from rltrace.analysis.plan.hardware import counted
    from rltrace.analysis.plan.shapes import parameters
    from rltrace.analysis.whatif.stated import stated

    if params is None or tokens is None or gpus is None:
        raise WrongUsage(
            "give --params, --tokens and --learner-gpus: they say what can be together"
        )
    count, kind = counted(gpus)
    figures = {
        "model": {"parameters": parameters(params)},
        "devices": {"train": count, "name": kind.name.partition("-")[0]},
        "useful_tokens": tokens,
    }
    stated({**tables, **figures}, "the stages")

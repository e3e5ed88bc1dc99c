"""What can be changed, each change on its own, by the names of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rltrace.analysis.whatif import learner_levers as learner
from rltrace.analysis.whatif import placement_levers as placing
from rltrace.analysis.whatif import sample_levers as samples
from rltrace.analysis.whatif.lever import ON, Lever
from rltrace.analysis.whatif.physics import MECHANISMS
from rltrace.analysis.whatif.workload import PLACEMENTS
from rltrace.trace.errors import WrongUsage
from rltrace.trace.vocabulary import Stage

_NAMED = (
    Lever("placement", "who runs when", placing.placement, PLACEMENTS, 0, worded=True),
    Lever("split", "devices of rollout : training, at the same total", placing.split, (), 0,
          worded=True),
    Lever("devices", "all devices, a number or a factor like x2", placing.devices, ("x2",)),
    Lever("rollout_workers", "rollout workers (devices), a number or a factor like x2",
          placing.rollout_workers, ("x2",)),
    Lever("learner_workers", "training devices, a number or a factor like x2",
          placing.learner_workers, ("x2",)),
    Lever("samples", "samples of each prompt, a number or a factor like x2", samples.samples, ()),
    Lever("slots", "sequences that a worker runs at once", samples.slots, ("x2",)),
    Lever("chunks", "parts in which the learner takes a batch as it comes", placing.chunks, ("4",)),
    Lever("no_barrier", "generation never waits for its longest sample", placing.no_barrier, ON),
    Lever("tail_cap", "responses are cut at so many tokens, or at a quantile like p95",
          samples.tail_cap, ("p95",), worded=True),
    Lever("repack", "the last sequences of a batch are moved together", samples.repack, ON),
    Lever("partial_rollout", "groups begun for each one needed; unfinished ones are kept",
          placing.partial_rollout, ("1.5",)),
    Lever("reward_parallel", "workers that judge, a number or a factor",
          samples.reward_parallel, ("x4",)),
    Lever("reward_cache", "part of the verdicts that a cache gives",
          samples.reward_cache, ("0.5",)),
    Lever("reward_async", "a verdict begins as its sample ends", samples.reward_async, ON),
    Lever("reward_latency", "factor on the time of a verdict", samples.reward_latency, ("0.5",)),
    Lever("env_latency", "factor on the time of tools", samples.env_latency, ("0.5",)),
    Lever("env_failures", "share of samples that still fail", samples.env_failures, ("0",)),
    Lever("sync", "how weights travel: " + ", ".join(MECHANISMS) + ", then :part hidden",
          learner.sync, ("bucketed", "relay", "delta", "direct"), worded=True),
    Lever("sync_speed", "how many times faster weights travel", learner.sync_speed, ()),
    Lever("train_speed", "how many times faster the training stage is",
          learner.train_speed, ("1.5",)),
    Lever("drop_logprob", "rollout's own log-probs, not a pass of their own",
          learner.drop_logprob, ON),
    Lever("drop_reference", "no reference pass", learner.drop_reference, ON),
    Lever("reference_side", "the reference pass in the actors' chain", learner.reference_side,
          ("actor",), worded=True),
    Lever("no_switch", "no sleep, wake and offload", learner.no_switch, ON),
    Lever("speculative", "speculative decoding, by how many sequences run",
          samples.speculative, ON),
    Lever("lag_bound", "versions that a sample may be late",
          placing.lag_bound, ("0", "1", "2", "4")),
)  # fmt: skip

_WITHIN = {
    Stage.ROLLOUT: ("rollout_workers", "slots", "tail_cap", "repack", "speculative"),
    Stage.REWARD: ("reward_parallel", "reward_cache", "reward_async", "reward_latency"),
    Stage.ENV: ("env_latency",),
    Stage.TRAIN: ("learner_workers", "train_speed"),
    Stage.LOGPROB: ("drop_logprob",),
    Stage.REFERENCE: ("drop_reference",),
    Stage.SYNC: ("sync", "sync_speed"),
    Stage.SWITCH: ("no_switch",),
}
_STAGE_OF = {name: stage for stage, names in _WITHIN.items() for name in names}

LEVERS: Mapping[str, Lever] = {
    lever.name: replace(lever, within=_STAGE_OF.get(lever.name)) for lever in _NAMED
}
"""All levers by the name that they have on the command line."""


def lever(name: str) -> Lever:
    """The lever of that name. Errors: `RltraceError` with the names there are."""
    if name not in LEVERS:
        raise WrongUsage(f"there is no lever {name!r}; there are {', '.join(LEVERS)}")
    return LEVERS[name]


def moves(words: Sequence[str]) -> list[tuple[str, str]]:
    """Levers and values of words like `placement=async`. Errors: `RltraceError` for a word that is
    no lever with its value, and for a lever that is there twice."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and name in LEVERS and LEVERS[name].tries != ON:
            raise WrongUsage(f"--lever {word!r} must be {name}=VALUE")
        lever(name)
        if name in found:
            raise WrongUsage(f"--lever {name} is there twice: give one value")
        found[name] = value or (ON[0] if LEVERS[name].tries == ON else "")
    return list(found.items())

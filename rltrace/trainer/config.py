"""What one training run does: a frozen record, checked where it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.errors import did_you_mean
from rltrace.trace.untrusted_files import parsed_toml, text_given

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")
TASKS = ("sort", "reverse", "copy", "repeat", "expression", "lookup")
OBJECTIVES = ("grpo", "decoupled", "tis")
SIDES = ("actor", "learner")
_WALL = ("wall", "metric", "warm_up", "without", "control")  # what a job file says of a wall
SYNCS = ("naive", "bucketed", "relay", "delta")


class TrainerError(Exception):
    """A wrong setting or a missing requirement; the message is one sentence for the user."""

    exit_code = 2  # of a command that ends with it


class RunFailed(TrainerError):
    """The run lost what it cannot do without."""

    exit_code = 1


class Unreadable(TrainerError):
    """The checkpoint to go on from is missing or broken."""

    exit_code = 4


def _setting(default: Any, help: str, unit: str = "", **bounds: Any) -> Any:
    """A setting, what its number counts (`unit`), its bounds, and the words that it may be."""
    about = {"help": help, "unit": unit, "least": 0, "most": math.inf, "known": (), **bounds}
    if about["known"]:
        about["help"] += f": {', '.join(about['known'])}."
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of a run. Errors: `TrainerError` for a value that cannot work."""

    steps: int = _setting(100, "Learner steps.", least=1)
    seed: int = _setting(0, "Same seed, same run (where nothing overlaps).", least=-math.inf)
    placement: str = _setting("colocated", "Who runs when", known=PLACEMENTS)

    # the task
    task: str = _setting("sort", "What is learned", known=TASKS)
    symbols: int = _setting(6, "Different symbols in a prompt.", least=2, most=26)
    shortest: int = _setting(2, "Shortest prompt.", "SYMBOLS", least=1)
    longest: int = _setting(6, "Longest prompt.", "SYMBOLS")
    mean_length: float = _setting(8.0, "repeat: mean length of an answer.", "TOKENS", least=1)
    length_tail: float = _setting(0.5, "repeat: its standard deviation over its mean.")
    merges: int = _setting(0, "Pairs of symbols that also have a token of their own.")
    pass_mark: float = _setting(
        0.0, "Reward 1 from this grade on, else 0; 0 rewards the grade.", most=1
    )
    warm_start: int = _setting(0, "Supervised updates before the first step.")
    max_response: int = _setting(16, "A response is cut off at this length.", "TOKENS", least=1)

    # a step's batch
    prompts: int = _setting(12, "Prompts, hence groups, in a step.", least=1)
    samples: int = _setting(12, "Samples of each prompt: the group size K.", least=2)
    oversample: float = _setting(
        1.0, "Groups begun for each one needed; the last are cut. Not async.", least=1
    )
    max_running: int = _setting(8, "Sequences that one rollout worker decodes at once.", least=1)

    # the policy
    model_size: float = _setting(0.6, "Parameters of the policy.", "MILLIONS")
    layers: int = _setting(3, "Its layers.", least=1)
    heads: int = _setting(4, "Its attention heads.", least=1)

    # the objective
    objective: str = _setting("grpo", "What is maximised", known=OBJECTIVES)
    learning_rate: float = _setting(1e-3, "Learning rate.")
    minibatches: int = _setting(4, "Optimizer updates in a step.", least=1)
    clip: float = _setting(0.2, "Ratios are held within 1 - clip to 1 + clip.")
    truncate: float = _setting(2.0, "Importance weights are cut off at this value.", least=1)
    kl_coefficient: float = _setting(0.01, "Weight of the KL divergence from the reference.")
    recompute_old: bool = _setting(False, "Recompute the log-probs of the policy before the step.")
    reference_side: str = _setting("actor", "Chain that the reference pass is on", known=SIDES)
    drop_truncated: bool = _setting(False, "Do not train on responses that were cut off.")

    # freshness
    max_lag: int = _setting(4, "async: oldest version trained on.", "VERSIONS")
    partial_rollout: bool = _setting(
        True, "async: what is being generated goes on under new weights, as tool users always do."
    )
    timeout: float = _setting(0.0, "A trajectory is aborted after this; 0: never.", "SECONDS")

    # weights
    sync: str = _setting(
        "naive",
        "How weights travel (by Ray's object store, by shared memory of one host, from host to"
        " host, or only what changed)",
        known=SYNCS,
    )

    # causes of walls
    reward_latency: float = _setting(0.0, "Time that one verdict takes at least.", "SECONDS")
    env_latency: float = _setting(0.0, "Mean time of a tool call.", "SECONDS")
    env_tail: float = _setting(0.0, "Its standard deviation over its mean (lognormal).")
    env_failure_rate: float = _setting(0.0, "Share of tool calls that fail.", most=1)
    link_gbps: float = _setting(0.0, "Weights travel at this rate; 0: unpaced.", "GBIT/S")
    retokenize: bool = _setting(False, "Rollout returns text only: token ids are made anew.")
    decode_floor: float = _setting(0.0, "A decode step takes at least this.", "SECONDS")
    update_floor: float = _setting(0.0, "An optimizer update takes at least this.", "SECONDS")

    # processes
    rollout_workers: int = _setting(2, "Rollout actors.", least=1)
    reward_workers: int = _setting(1, "Reward actors.", least=1)
    joined_cluster: str = _setting("", "A running Ray cluster; none: start one.", "ADDRESS")

    # recovery
    checkpoint: str = _setting("", "Where the state of the run is kept.", "FILE")
    checkpoint_every: int = _setting(10, "Steps from one checkpoint to the next.", least=1)
    resume: bool = _setting(
        False,
        "Go on from the checkpoint; task, batch, policy, objective and seed must be the same, where"
        " and when the work is done may change.",
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, about = getattr(self, field.name), field.metadata
            if known := about["known"]:
                self._must(field.name, value in known, f"must be one of {', '.join(known)}")
            elif not isinstance(value, (bool, str)):
                least, most = about["least"], about["most"]
                self._must(field.name, abs(value) < math.inf, "must be finite")
                self._must(field.name, value >= least, f"must be at least {least}")
                self._must(field.name, value <= most, f"must be at most {most}")
        self._must("seed", abs(self.seed) < 2**63, "must fit into 64 bits")
        self._must("longest", self.longest >= self.shortest, f"must be at least {self.shortest}")
        self._must("clip", 0 < self.clip < 1, "must lie between 0 and 1")
        self._must("model_size", self.model_size > 0, "must be positive")
        self._must("merges", self.merges < self.symbols, "must be fewer than symbols")
        begins_batches = self.placement != "async"
        said = "must be 1 where placement is async, which begins no batches"
        self._must("oversample", self.oversample == 1 or begins_batches, said)
        said = "must be off where objective is tis, which has no use for it"
        self._must("recompute_old", not self.recompute_old or self.objective != "tis", said)
        self._must("resume", not self.resume or bool(self.checkpoint), "needs a checkpoint")

    def _must(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise TrainerError(f"{name} {rule}, not {getattr(self, name)!r}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TrainerConfig:
        """Settings by name, dashes or underscores. Errors: `TrainerError`: unknown name or type."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in settings.items():
            name = key.replace("-", "_")
            if name not in known:
                raise TrainerError(f"there is no setting {key!r}{did_you_mean(name, *known)}")
            kind: type = type(known[name].default)
            given = float if kind is float and type(value) is int else type(value)
            if given is not kind:
                raise TrainerError(f"{key} must be of type {kind.__name__}, not {value!r}")
            values[name] = value
        return cls(**values)

    @property
    def width(self) -> int:
        """Width of the policy: a transformer has about `12 * layers * width ** 2` parameters."""
        width = math.sqrt(self.model_size * 1e6 / (12 * self.layers))
        return self.heads * max(1, round(width / self.heads))


def load_job(path: str | Path, without_cause: bool = False) -> dict[str, Any]:
    """The settings in a file, by name. Errors: `TrainerError` where it cannot be read."""
    try:
        tables = parsed_toml(text_given(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TrainerError(f"cannot read settings from {path}: {why}") from None
    for name in tables.keys() - {"job", *_WALL}:
        raise TrainerError(f"{path} has no use for {name!r}: settings stand in [job] or [without]")
    settings: dict[str, Any] = {}
    for name in ("job", "without") if without_cause else ("job",):
        table = tables.get(name)
        if not isinstance(table, dict):
            raise TrainerError(f"{path} has no [{name}] table with settings")
        settings |= {key.replace("-", "_"): value for key, value in table.items()}
    return settings

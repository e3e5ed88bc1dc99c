"""What one training run does: a frozen record that is checked where it is made.

Every setting carries its own help and unit, so that a command line can be made from this file.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrace.trace.given_files import text_given
from rltrace.trace.texts import parsed_toml

PLACEMENTS = ("colocated", "disaggregated", "one-step-off", "async")
TASKS = ("sort", "reverse", "copy", "repeat", "expression", "lookup")
OBJECTIVES = ("grpo", "decoupled", "tis")
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


def _setting(default: Any, help: str, unit: str = "") -> Any:
    """A setting and what a command line says of it; `unit` is what its number counts."""
    return dataclasses.field(default=default, metadata={"help": help, "unit": unit})


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of a run. Errors: `TrainerError` for a value that cannot work."""

    steps: int = _setting(100, "Learner steps.")
    seed: int = _setting(0, "Same seed, same run (where nothing overlaps).")
    placement: str = _setting("colocated", f"Who runs when: {', '.join(PLACEMENTS)}.")

    # the task
    task: str = _setting("sort", f"What is learned: {', '.join(TASKS)}.")
    symbols: int = _setting(6, "Different symbols in a prompt.")
    shortest: int = _setting(2, "Shortest prompt.", "SYMBOLS")
    longest: int = _setting(6, "Longest prompt.", "SYMBOLS")
    mean_length: float = _setting(8.0, "repeat: mean length of an answer.", "TOKENS")
    length_tail: float = _setting(0.5, "repeat: its standard deviation over its mean.")
    merges: int = _setting(0, "Pairs of symbols that also have a token of their own.")
    pass_mark: float = _setting(0.0, "Reward 1 from this grade on, else 0; 0 rewards the grade.")
    warm_start: int = _setting(0, "Supervised updates before the first step.")
    max_response: int = _setting(16, "A response is cut off at this length.", "TOKENS")

    # a step's batch
    prompts: int = _setting(12, "Prompts, hence groups, in a step.")
    samples: int = _setting(12, "Samples of each prompt: the group size K.")
    oversample: float = _setting(
        1.0, "Groups begun for each one needed; the last are cut. Not async."
    )
    max_running: int = _setting(8, "Sequences that one rollout worker decodes at once.")

    # the policy
    model_size: float = _setting(0.6, "Parameters of the policy.", "MILLIONS")
    layers: int = _setting(3, "Its layers.")
    heads: int = _setting(4, "Its attention heads.")

    # the objective
    objective: str = _setting("grpo", f"What is maximised: {', '.join(OBJECTIVES)}.")
    learning_rate: float = _setting(1e-3, "Learning rate.")
    minibatches: int = _setting(4, "Optimizer updates in a step.")
    clip: float = _setting(0.2, "Ratios are held within 1 - clip to 1 + clip.")
    truncate: float = _setting(2.0, "Importance weights are cut off at this value.")
    kl_coefficient: float = _setting(0.01, "Weight of the KL divergence from the reference.")
    recompute_old: bool = _setting(False, "Recompute the log-probs of the policy before the step.")
    reference_side: str = _setting("actor", "Chain that the reference pass is on: actor, learner.")
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
        "How weights travel: naive (Ray's object store), bucketed (shared memory of one host),"
        " relay (from host to host), delta (only what changed).",
    )

    # causes of walls
    reward_latency: float = _setting(0.0, "Time that one verdict takes at least.", "SECONDS")
    env_latency: float = _setting(0.0, "Mean time of a tool call.", "SECONDS")
    env_tail: float = _setting(0.0, "Its standard deviation over its mean (lognormal).")
    env_failure_rate: float = _setting(0.0, "Share of tool calls that fail.")
    link_gbps: float = _setting(0.0, "Weights travel at this rate; 0: unpaced.", "GBIT/S")
    retokenize: bool = _setting(False, "Rollout returns text only: token ids are made anew.")
    decode_floor: float = _setting(0.0, "A decode step takes at least this.", "SECONDS")
    update_floor: float = _setting(0.0, "An optimizer update takes at least this.", "SECONDS")

    # processes
    rollout_workers: int = _setting(2, "Rollout actors.")
    reward_workers: int = _setting(1, "Reward actors.")
    joined_cluster: str = _setting("", "A running Ray cluster; none: start one.", "ADDRESS")

    # recovery
    checkpoint: str = _setting("", "Where the state of the run is kept.", "FILE")
    checkpoint_every: int = _setting(10, "Steps from one checkpoint to the next.")
    resume: bool = _setting(
        False,
        "Go on from the checkpoint; task, batch, policy, objective and seed must be the same, where"
        " and when the work is done may change.",
    )

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole = not isinstance(value, float)
            _require(whole or math.isfinite(value), f"{name} must be finite", value)
        for name in (
            "steps", "shortest", "max_response", "prompts", "max_running", "layers", "heads",
            "minibatches", "rollout_workers", "reward_workers", "checkpoint_every", "mean_length",
            "oversample", "truncate",
        ):  # fmt: skip
            _require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        for name in (
            "learning_rate", "kl_coefficient", "length_tail", "merges", "warm_start", "max_lag",
            "timeout", "reward_latency", "env_latency", "env_tail", "link_gbps", "decode_floor",
            "update_floor",
        ):  # fmt: skip
            value = getattr(self, name)
            _require(value >= 0, f"{name} must not be negative", value)
        _require(abs(self.seed) < 2**63, "seed must fit into 64 bits", self.seed)
        for name, known in (
            ("placement", PLACEMENTS), ("task", TASKS), ("objective", OBJECTIVES),
            ("reference_side", ("actor", "learner")), ("sync", SYNCS),
        ):  # fmt: skip
            value = getattr(self, name)
            _require(value in known, f"{name} must be one of {', '.join(known)}", value)
        _require(2 <= self.symbols <= 26, "symbols must be 2 to 26", self.symbols)
        _require(self.samples >= 2, "samples must be at least 2: GRPO compares them", self.samples)
        _require(
            self.longest >= self.shortest, f"longest must be at least {self.shortest}", self.longest
        )
        _require(0 < self.clip < 1, "clip must lie between 0 and 1", self.clip)
        _require(self.model_size > 0, "model_size must be positive", self.model_size)
        for name in ("pass_mark", "env_failure_rate"):
            value = getattr(self, name)
            _require(0 <= value <= 1, f"{name} must lie between 0 and 1", value)
        _require(self.merges < self.symbols, "merges must be fewer than symbols", self.merges)
        _require(
            self.oversample == 1 or self.placement != "async",
            "oversample must be 1 where placement is async, which begins no batches",
            self.oversample,
        )
        _require(
            not self.recompute_old or self.objective != "tis",
            "recompute_old must be off where objective is tis, which has no use for it",
            self.recompute_old,
        )
        _require(
            not self.resume or bool(self.checkpoint), "resume needs a checkpoint", self.checkpoint
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TrainerConfig:
        """Settings by name, dashes or underscores. Errors: `TrainerError` for a name or a type that
        does not exist."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in settings.items():
            name = key.replace("-", "_")
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f": did you mean {near[0]}?" if near else ""
                raise TrainerError(f"there is no setting {key!r}{hint}")
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


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise TrainerError(f"{rule}, not {value!r}")


# --- jobs as TOML files: `[job]` holds settings, `[without]` those that take a wall's cause away,
# `[control]` those that relieve another stage; what is said of a wall stands above.

_WALL = ("wall", "metric", "warm_up", "without", "control")


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

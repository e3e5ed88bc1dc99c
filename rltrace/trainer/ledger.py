"""The trainer's own books: what each step did, to check a trace by."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rltrace.trace.run_dir import dumps
from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.trajectory import Sample, TrainReport, Trajectory, Use, use_of


@dataclass(frozen=True)
class RatioRecord:
    """Trained samples of one lag; w is the ratio of learner to sampler probability of a token."""

    tokens: int
    clipped: float
    sum_w: float
    sum_w_squared: float


@dataclass(frozen=True)
class StepRecord:
    """From one step's end to the next. Tokens are the policy's, seconds the controller's clock."""

    step: int
    version: int  # policy version that the step trained, before its sync
    reward: float | None  # mean verdict; None where there was none
    samples: int  # trajectories that ended
    prompt_tokens: int
    tokens_generated: int
    tokens_trained: int
    optimizer_updates: int
    finish: Mapping[str, int]  # samples by the reason why generation ended
    lags: Mapping[int, int]  # trained samples by lag, in policy versions
    lags_in_flight: Mapping[int, int]  # the part of it from first to last token
    lags_in_queue: Mapping[int, int]  # and from the last token to the step
    clip_share: float | None  # of the trained tokens: those that the objective cut off
    ess: float | None  # effective sample size over the trained tokens: (Σw)² / (n Σw²)
    ratios: Mapping[int, RatioRecord]  # by lag, over the trained samples
    groups: int  # of which at least two samples got a verdict
    groups_with_signal: int  # whose verdicts differ
    drops: Mapping[str, int]  # samples that were not trained on, by reason
    lost: int  # samples that a dying worker took along; they were asked for again or given up
    loss: float | None  # None where no sample carried a signal
    kl: float | None  # nats a token
    sync_bytes: int  # read by all rollout workers together
    seconds: float


@dataclass
class Ledger:
    config: TrainerConfig
    parameters: int = 0  # of the policy, once it is made
    steps: list[StepRecord] = field(default_factory=list)
    seconds: float = 0.0  # from the first step's start to the last step's end
    unused: int = 0  # samples that had ended when the run did, and were neither trained nor dropped
    events: list[str] = field(default_factory=list)  # what went wrong and what was done about it
    after: StepRecord | None = None  # what came in once the last step had ended; its step is -1

    def __post_init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._since = time.perf_counter()
        self._counts: Counter[str] = Counter()
        self._finish: Counter[str] = Counter()
        self._verdicts: list[float] = []
        self._uses: list[Use] = []
        self._report: TrainReport | None = None

    def begin(self) -> None:
        self._clear()
        self._begun = self._since

    def generated(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self.unused += 1
            self._finish[trajectory.finish] += 1
            self._counts["prompt_tokens"] += len(trajectory.prompt)
            self._counts["tokens_generated"] += trajectory.response_tokens

    def scored(self, samples: Iterable[Sample]) -> None:
        groups: dict[str, list[float]] = {}
        for sample in samples:
            if not math.isnan(sample.reward):
                self._verdicts.append(sample.reward)
                groups.setdefault(sample.trajectory.group, []).append(sample.reward)
        judged = [rewards for rewards in groups.values() if len(rewards) > 1]
        self._counts["groups"] += len(judged)
        self._counts["groups_with_signal"] += sum(max(r) > min(r) for r in judged)

    def lost(self, samples: int) -> None:
        self._counts["lost"] += samples

    def drop(self, trajectories: Iterable[Trajectory], fate: str, version: int) -> list[Use]:
        uses = [use_of(trajectory, fate, version) for trajectory in trajectories]
        self._uses += uses
        self.unused -= len(uses)
        return uses

    def trained(self, report: TrainReport) -> None:
        self._report = report
        self._uses += report.uses
        self.unused -= len(report.uses)

    def received(self, bytes: int) -> None:
        self._counts["sync_bytes"] += bytes

    def close(self, step: int, version: int) -> StepRecord:
        record = self._record(step, version)
        self.steps.append(record)
        self._clear()
        self.seconds = self._since - self._begun
        return record

    def end(self, version: int) -> None:
        self.after = self._record(-1, version)

    def _record(self, step: int, version: int) -> StepRecord:
        trained = [use for use in self._uses if use.fate == "trained"]
        whole = _ratios(trained)
        squares = whole.tokens * whole.sum_w_squared
        report = self._report
        signal = report is not None and report.updates > 0
        names = ("prompt_tokens", "tokens_generated", "lost", "sync_bytes")
        counts = dict.fromkeys((*names, "groups", "groups_with_signal"), 0)
        numbers: dict[str, Any] = {**counts, **self._counts}
        return StepRecord(
            step=step,
            version=version,
            reward=sum(self._verdicts) / len(self._verdicts) if self._verdicts else None,
            samples=self._finish.total(),
            finish=dict(self._finish),
            tokens_trained=whole.tokens,
            optimizer_updates=report.updates if report else 0,
            lags=dict(Counter(use.lag for use in trained)),
            lags_in_flight=dict(Counter(use.in_flight for use in trained)),
            lags_in_queue=dict(Counter(use.in_queue for use in trained)),
            clip_share=whole.clipped / whole.tokens if whole.tokens else None,
            ess=whole.sum_w**2 / squares if squares else None,
            ratios={
                lag: _ratios([use for use in trained if use.lag == lag])
                for lag in sorted({use.lag for use in trained})
            },
            drops=dict(Counter(use.fate for use in self._uses if use.fate != "trained")),
            loss=report.loss if report and signal else None,
            kl=report.kl if report and signal else None,
            seconds=time.perf_counter() - self._since,
            **numbers,
        )

    def reward_rise(self, window: int = 5) -> float:
        """Mean reward of the last `window` steps, at most half, minus the first; NaN: none."""
        rewards = [record.reward for record in self.steps if record.reward is not None]
        window = max(1, min(window, len(rewards) // 2))
        first, last = rewards[:window], rewards[-window:]
        return sum(last) / len(last) - sum(first) / len(first) if rewards else float("nan")

    def to_json(self) -> str:
        """The whole run as JSON; what is not finite in a run that diverged is null."""
        return json.dumps(json.loads(dumps(asdict(self))), indent=1) + "\n"


def _ratios(uses: list[Use]) -> RatioRecord:
    return RatioRecord(
        tokens=sum(use.tokens for use in uses),
        clipped=sum(use.clip_share * use.tokens for use in uses),
        sum_w=sum(use.sum_w for use in uses),
        sum_w_squared=sum(use.sum_w_squared for use in uses),
    )

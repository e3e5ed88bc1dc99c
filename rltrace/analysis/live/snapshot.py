"""A run at one moment. Seconds, Unix ns; NaN: not known."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rltrace.analysis.figures.devices import Devices
from rltrace.analysis.figures.goodput import Trained
from rltrace.analysis.stuck.observed import Stuck

STARTING, RUNNING, SILENT = "starting", "running", "silent"
ENDED, FAILED, KILLED, DELETED = "ended", "failed", "killed", "deleted"


@dataclass(frozen=True)
class Job:
    """`state` is one of the words above, `sentence` says it with its reason; `exit_code` is None
    where nobody saw one. `since_ns` to `until_ns` is how long the job runs, or ran."""

    id: str
    path: str
    command: str
    framework: str
    state: str
    sentence: str
    exit_code: int | None
    since_ns: int
    until_ns: int

    @property
    def is_over(self) -> bool:
        return self.state not in (STARTING, RUNNING, SILENT)

    @property
    def elapsed_s(self) -> float:
        return (self.until_ns - self.since_ns) / 1e9


@dataclass(frozen=True)
class StepNow:
    """A step that has not ended; `usual_s` is the mean of the last complete ones."""

    step: int
    start_ns: int
    elapsed_s: float
    usual_s: float


@dataclass(frozen=True)
class StageTime:
    """Mean seconds a step of the window: `tau_s` is the union of the stage's intervals over all
    processes, `exposed_s` the part that held the step up, `share` that part of the step."""

    stage: str
    symbol: str
    tau_s: float
    exposed_s: float
    share: float


@dataclass(frozen=True)
class StepDone:
    """A complete step: seconds by stage (`tau_s`), and what was trained on in it."""

    step: int
    end_ns: int
    step_s: float
    tau_s: dict[str, float]
    generated_tokens: int
    trained_tokens: int
    trained_samples: int
    mean_lag: float


@dataclass(frozen=True)
class Lags:
    """Lag from the first token, in policy versions, of trajectories with each version that trained
    on them; `by_lag`: a lag (None: unknown) and how many have it. None known: NaN, `largest` -1."""

    mean: float
    p95: float
    largest: int
    by_lag: tuple[tuple[int | None, int], ...]


@dataclass(frozen=True)
class UpdateFigures:
    """Weight updates that began in the window: how long any participant was at work in one, its
    bytes (those that the sources sent, else the most that one sink took)."""

    updates: int
    per_minute: float
    update_s: float
    bytes: float
    bytes_per_s: float
    latest_version: int


@dataclass(frozen=True)
class LiveWindow:
    """The figures of the last steady steps, from the first one's begin to the last one's end.
    `trained` is None where no learner said what it trained on, `lags` and `updates` where nothing
    was recorded. Latencies are of the trajectories that ended in it. `recent` are the last complete
    steps, warm-up ones too, which are not in the other figures."""

    since_ns: int
    until_ns: int
    steps: int
    step_s: float
    stages: tuple[StageTime, ...]
    untraced_s: float
    generated_samples: int
    generated_tokens: int
    latency_p50_s: float
    latency_p95_s: float
    trained: Trained | None
    lags: Lags | None
    updates: UpdateFigures | None
    recent: tuple[StepDone, ...]

    @property
    def window_s(self) -> float:
        return (self.until_ns - self.since_ns) / 1e9

    @property
    def generated_tokens_per_s(self) -> float:
        """Response tokens of the trajectories that ended in it."""
        return self.generated_tokens / self.window_s if self.window_s else math.nan

    @property
    def trained_tokens_per_s(self) -> float:
        return self.trained.tokens / self.window_s if self.trained and self.window_s else math.nan


@dataclass(frozen=True)
class RoleNow:
    """The processes of one role: how many are known to live, and of how many nobody here can tell.
    `doing` is how many are in which stage now, `busy_shares` the share of the processes' time in
    the last `BUSY_OVER_S` that went to each stage."""

    role: str
    processes: int
    living: int
    unknown: int
    doing: dict[str, int]
    busy_shares: dict[str, float]


@dataclass(frozen=True)
class InFlight:
    trajectory: int
    role: str
    rank: int | None
    elapsed_s: float
    has_first_token: bool
    first_version: int


@dataclass(frozen=True)
class Dead:
    """A process that ended in the middle of something: its innermost open span."""

    role: str
    rank: int | None
    pid: int
    host: str
    doing: str


@dataclass(frozen=True)
class SilentProcess:
    """A process that stopped recording: `at_ns` (Unix; None: not known), `silent_s` until the
    snapshot or the job's end (NaN: not known), and why. What it did since is in no figure."""

    role: str
    rank: int | None
    pid: int
    host: str
    at_ns: int | None
    silent_s: float
    detail: str


@dataclass(frozen=True)
class Reading:
    """The latest reading of a counter; `per_s`: growth of a cumulative one (joules, seconds)."""

    counter: str
    host: str
    device: int
    value: float
    per_s: float


@dataclass(frozen=True)
class Totals:
    """Since the run began; a sample counts once, and these never fall. `lost` are samples that the
    learner dropped, by reason."""

    steps: int
    generated_samples: int
    generated_tokens: int
    trained_samples: int
    trained_tokens: int
    lost: dict[str, int]


@dataclass(frozen=True)
class Snapshot:
    """A run at `time_ns`. `queue` is how many samples no learner has met yet, of those that are not
    older than what it trains on (None: no learner says what it does with them). `in_flight` is how
    many are being generated, `slowest` the oldest of them; `processes` are those of the job that
    were traced so far, `stopped` those that stopped recording, `stuck` is who the job waits for
    where nothing moves.
    """

    time_ns: int
    job: Job
    placement: str
    step: StepNow | None
    window: LiveWindow | None
    totals: Totals
    roles: tuple[RoleNow, ...]
    queue: int | None
    in_flight: int
    waiting_for_first_token: int
    slowest: tuple[InFlight, ...]
    devices: Devices
    readings: tuple[Reading, ...]
    dead: tuple[Dead, ...]
    processes: int
    stopped: tuple[SilentProcess, ...] = ()
    stuck: Stuck | None = None

    @property
    def goodput(self) -> float:
        """Useful tokens for each second of each device of the window, as in the report."""
        trained = self.window.trained if self.window else None
        device_s = self.devices.count * self.window.window_s if self.window else 0.0
        return trained.useful_tokens / device_s if trained and device_s else math.nan

"""Which of verl's trainers wrote a log: told by the metrics there are, as few logs say it."""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.importers.log import Log

TIMING = "timing_s/"

LEGACY, V1, ONE_STEP_OFF, FULLY_ASYNC, UNKNOWN = (
    "RayPPOTrainer",
    "V1",
    "one-step-off",
    "fully async",
    "unknown trainer",
)


_LAGS = (
    "training/off_policy/trajectory_staleness/max",
    "training/off_policy/trajectory_staleness_worst/max",
)
_PLACEMENTS = {"sync": "colocated", "colocate_async": "colocated", "separate_async": "async"}


@dataclass(frozen=True)
class Trainer:
    """Which of verl's trainers wrote the log. `mode` is V1's, empty where it is not known;
    `generates_aside`: `gen` is how long the loop waited for what other processes generate."""

    name: str
    mode: str
    version: str
    placement: str
    generates_aside: bool
    checkpoint_after: bool

    @property
    def words(self) -> str:
        """Its name and mode, for people."""
        return f"{self.name} {self.mode}".strip()


def trainer_of(log: Log) -> Trainer:
    """Told by which metrics there are, and by the configuration where the log shows it."""
    names = {name for record in log.records for name in record.metrics}
    lag = [v for r in log.records for name, v in r.metrics.items() if name in _LAGS]
    mode = log.settings.get("trainer_mode", "")
    if f"{TIMING}timing_s/param_sync" in names or any(n.startswith("fully_async/") for n in names):
        return Trainer(FULLY_ASYNC, "", "", "async", True, True)
    if names & {f"{TIMING}sync_rollout_weights", f"{TIMING}generate_async"}:
        return Trainer(ONE_STEP_OFF, "", "", "one-step-off", True, True)
    if lag or (mode and log.settings.get("use_v1") == "True"):
        if not mode and f"{TIMING}switch_to_trainer" in names:
            mode = "separate_async"  # the only one with engines that change sides
        aside = mode == "separate_async" or (not mode and max(lag, default=0) > 0)
        placement = _PLACEMENTS.get(mode, "")
        return Trainer(V1, mode, "0.9 or later", placement, aside, False)
    if any(n.startswith((f"{TIMING}agent_loop/", f"{TIMING}generation_timing/")) for n in names):
        if f"{TIMING}update_weights" not in names:
            return Trainer(LEGACY, "", "0.6 or older", "colocated", False, True)
        newer = f"{TIMING}agent_loop/compute_score/mean" in names
        version = "0.8 or later" if newer else "0.7 or later"
        return Trainer(LEGACY, "", version, "colocated", False, False)
    return Trainer(UNKNOWN, "", "", "", False, False)

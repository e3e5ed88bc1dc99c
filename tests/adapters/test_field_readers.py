"""What the tables read, in small jobs with functions where the frameworks have them.

Each job is a process of one wrapped run, with its own idea of the framework: timers that time as
the framework's do, and the one or two functions that know a quantity.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest

import rltrace
from tests.hooks.conftest import WRAP, clean_environment

TENSOR = """
class Tensor:
    def __init__(self, size): self.size = size
    def numel(self): return self.size
    def element_size(self): return 2
"""

JOBS: dict[str, dict[str, str]] = {
    "slime": {
        "slime/observability/timer.py": """
            class Timer:
                started = {}
                def start(self, name): self.started[name] = 1
                def end(self, name): del self.started[name]
        """,
        "slime/observability/logging_utils.py": "def log(args, metrics, step_key): pass",
        "slime/rollout/sglang_rollout.py": """
            from slime.rollout.rm_hub import async_rm
            async def generate(args, sample, sampling_params):
                sample.weight_versions += ["3", "4"]
                sample.response_length = 7
                sample.status = "completed"
            async def generate_and_rm(args, sample, sampling_params, evaluation=False):
                await generate(args, sample, sampling_params)
                await async_rm(args, sample)
                return sample
        """,
        "slime/rollout/rm_hub.py": "async def async_rm(args, sample): pass",
        "slime/ray/rollout.py": """
            class RolloutManager:
                def generate(self, rollout_id): pass
                def eval(self, rollout_id): run("eval")
        """,
        "slime/backends/megatron_utils/update_weight/update_weight_from_distributed.py": """
            class UpdateWeightFromDistributed:
                weight_version = 0
                def update_weights(self, tensors):
                    self.weight_version += 1
                    for _ in range(2):
                        self._update_bucket_weights_from_distributed(list(tensors))
                def _update_bucket_weights_from_distributed(self, converted_named_tensors):
                    converted_named_tensors.clear()
        """,
        "slime/backends/megatron_utils/actor.py": """
            class MegatronTrainRayActor:
                def __init__(self, updater): self.weight_updater = updater
                def train(self, rollout_id): pass
                def update_weights(self, tensors): self.weight_updater.update_weights(tensors)
        """,
        "job.py": TENSOR
        + """
import asyncio
from types import SimpleNamespace
from slime.backends.megatron_utils import actor as actors
from slime.backends.megatron_utils.update_weight import update_weight_from_distributed as updates
from slime.observability import logging_utils
from slime.observability.timer import Timer
from slime.ray.rollout import RolloutManager
from slime.rollout import sglang_rollout

def sample(index):
    return SimpleNamespace(index=index, group_index=0, weight_versions=[], status="pending")

manager, timer = RolloutManager(), Timer()
actor = actors.MegatronTrainRayActor(updates.UpdateWeightFromDistributed())
for step in (5, 6):
    manager.generate(step)
    asyncio.run(sglang_rollout.generate_and_rm(None, sample(step), {}))
    timer.start("train"); timer.start("actor_train"); timer.end("actor_train"); timer.end("train")
    actor.update_weights([("a", Tensor(100)), ("b", Tensor(50))])
    timer.start("train_wait")
    logging_utils.log(None, {"perf/train_time": 2.5, "rollout/step": step}, "rollout/step")
    timer.end("train_wait")
asyncio.run(sglang_rollout.generate_and_rm(None, sample(9), {}, evaluation=True))
""",
    },
    "areal": {
        "areal/utils/stats_tracker.py": """
            from contextlib import contextmanager
            class DistributedStatsTracker:
                @contextmanager
                def record_timing(self, key):
                    yield
            DEFAULT_TRACKER = DistributedStatsTracker()
            record_timing = DEFAULT_TRACKER.record_timing
        """,
        "areal/utils/stats_logger.py": """
            class StatsLogger:
                def commit(self, epoch, step, global_step, data): pass
        """,
        "areal/utils/perf_tracer.py": """
            def get_task_id(): pass
        """,
        "areal/infra/remote_inf_engine.py": """
            from types import SimpleNamespace
            from areal.utils import perf_tracer
            class RemoteInfEngine:
                def set_version(self, version): pass
                async def agenerate(self, req):
                    return SimpleNamespace(
                        output_tokens=[1, 2, 3], output_versions=[-1, 4, 6], stop_reason="length",
                        output_logprobs=[-0.5] * 3,
                    )
        """,
        "job.py": """
import asyncio
from types import SimpleNamespace
from areal.infra.remote_inf_engine import RemoteInfEngine
from areal.utils import stats_tracker
from areal.utils.stats_logger import StatsLogger

engine, log = RemoteInfEngine(), StatsLogger()
for step in (11, 12):
    with stats_tracker.record_timing("rollout"):
        request = SimpleNamespace(rid=f"r{step}", input_ids=[0] * 5)
        asyncio.run(engine.agenerate(request))
    with stats_tracker.record_timing("train_step"):
        with stats_tracker.DistributedStatsTracker().record_timing("compute_advantage"):
            pass
    engine.set_version(step + 1)
    log.commit(0, 0, step, {"timeperf/rollout": 1.5})
""",
    },
    "forge": {
        "forge/observability/perf_tracker.py": """
            class Tracer:
                def __init__(self, prefix): self.prefix = prefix
                def start(self): pass
                def step(self, step_name): pass
                def stop(self): pass
        """,
        "forge/observability/metrics.py": "def record_metric(key, value, reduction=None): pass",
        "job.py": """
from forge.observability.metrics import record_metric
from forge.observability.perf_tracker import Tracer

tracer = Tracer("main_perf/continuous_training")
for step in range(2):
    tracer.start()
    tracer.step("waiting_for_buffer")
    tracer.step("train_step")
    tracer.step("push_weights")
    tracer.stop()
record_metric("buffer/sample/avg_sampled_policy_age", 1.5)
""",
    },
    "prime_rl": {
        "prime_rl/orchestrator/envs.py": """
            from types import SimpleNamespace
            class Env:
                async def run(self, client, model_name):
                    return SimpleNamespace(traces=[SimpleNamespace(id="t1")], start=2, end=3)
            class EvalEnv(Env):
                pass
        """,
        "prime_rl/orchestrator/utils.py": """
            from types import SimpleNamespace
            def train_work(episode):
                return SimpleNamespace(policy=SimpleNamespace(start=episode.start, end=episode.end))
            def episode_staleness(episode, training_step): return 2, 1, 1
        """,
        "prime_rl/trainer/rl/data.py": """
            class DataLoader:
                def wait_for_batch(self): pass
        """,
        "prime_rl/transports/weights/nccl.py": """
            class NCCLWeightBroadcast:
                def broadcast_weights(self, model, step): pass
        """,
        "job.py": TENSOR
        + """
import asyncio
from types import SimpleNamespace
from prime_rl.orchestrator.envs import Env, EvalEnv
from prime_rl.orchestrator.utils import episode_staleness
from prime_rl.trainer.rl.data import DataLoader
from prime_rl.transports.weights.nccl import NCCLWeightBroadcast

episode = asyncio.run(Env().run(None, "m"))
asyncio.run(EvalEnv().run(None, "m"))
for _ in range(3):  # asked for each figure
    episode_staleness(episode, 5)
DataLoader().wait_for_batch()
model = SimpleNamespace(parameters=lambda: [Tensor(1000), Tensor(24)])
NCCLWeightBroadcast().broadcast_weights(model, step=5)
""",
    },
}


@dataclass(frozen=True)
class Seen:
    """What a run has of one job's process."""

    run: Any
    process: int

    def rows(self, table: str, columns: str, where: str = "true") -> list[Any]:
        """Columns of a table, in the order of the rows' times."""
        time = "time_ns" if table in ("samples", "uses") else "start_ns"
        found = self.run.sql(
            f"SELECT {columns} FROM {table} "
            f"WHERE process = {self.process} AND {where} ORDER BY {time}"
        ).fetchall()
        return [row[0] if len(row) == 1 else row for row in found]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of all jobs."""
    folder = tmp_path_factory.mktemp("field")
    for name, files in JOBS.items():
        for file, source in files.items():
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source if file == "job.py" else dedent(source))
    starter = folder / "start.py"
    starter.write_text(
        "import subprocess, sys\n"
        f"for name in {list(JOBS)}:\n"
        f"    subprocess.run([sys.executable, f'{folder}/{{name}}/job.py'], check=True)\n"
    )
    done = subprocess.run(
        [*WRAP, "--out", str(folder / "run"), "--", sys.executable, str(starter)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return rltrace.open_run(folder / "run")


@pytest.fixture
def seen(run: Any, request: pytest.FixtureRequest) -> Seen:
    """The process of the framework that a test is marked with."""
    name = request.param
    found = [
        p.number for p in run.processes if any(f"/{name}/job.py" in a for a in p.facts["argv"])
    ]
    return Seen(run, found[0])


def of(framework: str) -> Any:
    """Marks a test with the job that it looks at."""
    return pytest.mark.parametrize("seen", [framework], indirect=True)


@of("slime")
def test_slime_s_steps_are_its_rollout_ids(seen: Seen) -> None:
    assert seen.rows("spans", "step", "stage = 'step'") == [5, 6]


@of("slime")
def test_slime_s_timers_are_spans_and_the_outer_one_is_none(seen: Seen) -> None:
    names = seen.rows("spans", "name, stage", "name in ('train', 'actor_train', 'train_wait')")
    assert names == [("actor_train", "train"), ("train_wait", "wait")] * 2


@of("slime")
def test_slime_s_samples_have_their_versions_and_evaluation_is_none(seen: Seen) -> None:
    columns = "first_version, last_version, response_tokens, finish, end_ns is not null"
    assert seen.rows("trajectories", columns) == [(3, 4, 7, "stop", True)] * 2


@of("slime")
def test_slime_s_buckets_are_counted_before_it_empties_them(seen: Seen) -> None:
    assert seen.rows("syncs", "version, role, bytes") == [
        (1, "source", 2 * 2 * 150), (2, "source", 2 * 2 * 150)
    ]  # fmt: skip
    phases = seen.rows("spans", "bytes", "phase = 'transfer'")
    assert phases == [300] * 4


@of("slime")
def test_slime_s_figures_are_counters(seen: Seen) -> None:
    assert seen.rows("samples", "value", "counter = 'perf/train_time'") == [2.5, 2.5]


@of("areal")
def test_areal_s_rollout_timer_is_waiting_and_requests_are_rollout(seen: Seen) -> None:
    assert (
        seen.rows("spans", "name, stage", "stage <> 'step'")
        == [
            ("rollout", "wait"),
            ("RemoteInfEngine.agenerate", "rollout"),
            ("train_step", "train"),
            ("compute_advantage", "other"),
        ]
        * 2
    )


@of("areal")
def test_areal_s_steps_get_the_number_of_their_commit(seen: Seen) -> None:
    assert seen.rows("spans", "step, end_ns is not null", "stage = 'step'") == [
        (11, True), (12, True)
    ]  # fmt: skip


@of("areal")
def test_areal_s_versions_are_those_of_its_tokens(seen: Seen) -> None:
    columns = "first_version, last_version, prompt_tokens, response_tokens, finish"
    assert seen.rows("trajectories", columns) == [(4, 6, 5, 3, "length")] * 2


@of("forge")
def test_a_lap_is_named_by_the_call_that_ends_it(seen: Seen) -> None:
    assert (
        seen.rows("spans", "name, stage", "stage <> 'step'")
        == [
            ("main_perf/continuous_training/waiting_for_buffer", "wait"),
            ("main_perf/continuous_training/train_step", "train"),
            ("main_perf/continuous_training/push_weights", "sync"),
        ]
        * 2
    )
    assert seen.rows("spans", "step", "stage = 'step'") == [0, 1]


@of("forge")
def test_a_single_figure_is_a_counter(seen: Seen) -> None:
    assert seen.rows("samples", "value") == [1.5]


@of("prime_rl")
def test_prime_rl_s_episode_is_used_once_with_its_span_of_versions(seen: Seen) -> None:
    assert seen.rows("trajectories", "first_version, last_version") == [(2, 3)]
    assert seen.rows("uses", "step, version, fate") == [(5, 4, "trained")]
    assert seen.rows("spans", "stage", "name = 'Env.run'") == ["rollout", "eval"]


@of("prime_rl")
def test_prime_rl_s_step_begins_with_the_wait_and_takes_the_number_it_sends(seen: Seen) -> None:
    assert seen.rows("spans", "step, stage", "stage in ('step', 'sync')") == [
        (5, "step"), (5, "sync")
    ]  # fmt: skip
    assert seen.rows("syncs", "version, role, bytes") == [(5, "source", 2 * 1024)]


def test_no_row_is_reported_missing_where_its_module_is_not_there(run: Any) -> None:
    """A job imports a part of a framework: what it does not import is waited for."""
    failed = [p for p in run.problems if p["what"] in ("hook-failed", "adapter-failed")]
    assert failed == []

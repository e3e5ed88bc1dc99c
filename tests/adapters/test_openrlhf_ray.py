"""The OpenRLHF adapter in real Ray actors, of a package that has OpenRLHF's names and its shape.

What OpenRLHF itself does is in `tests/openrlhf`; this is what Ray does with its classes: they reach
workers by value, with inherited methods copied, and samples go from one to another through a queue.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import rltrace
from tests.hooks.clusters import ENVIRONMENT, PY
from tests.hooks.conftest import WRAP, clean_environment

pytest.importorskip("ray", reason="Ray is of the [trainer] extra and is not installed")

PACKAGE = {
    "__init__.py": "__version__ = '0.11.2'",
    "utils/agent.py": """
        class SingleTurnAgentExecutor:
            async def execute(self, prompt, llm_engine):
                output = await llm_engine.generate([1, 2])
                [verdict] = await self._fetch_rewards_via_func(["q"])
                return {"reward": verdict["rewards"], "truncated": False}
            async def _fetch_rewards_via_func(self, queries_list):
                return [{"rewards": 0.5}]
    """,
    "trainer/ray/vllm_engine.py": """
        import asyncio, ray
        from types import SimpleNamespace
        from openrlhf.utils.agent import SingleTurnAgentExecutor
        @ray.remote(num_cpus=0)
        class RolloutRayActor:
            async def __init__(self):
                self.executor = SingleTurnAgentExecutor()
            async def generate(self, prompt_token_ids):
                await asyncio.sleep(0.05)
                done = SimpleNamespace(token_ids=[0] * 4, finish_reason="stop", logprobs=None)
                return SimpleNamespace(outputs=[done], metrics=None)
            async def generate_responses(self, prompt, num_samples):
                return await asyncio.gather(
                    *(self.executor.execute(prompt, llm_engine=self) for _ in range(num_samples))
                )
            async def update_weight(self, name, dtype, shape, empty_cache=False):
                pass
    """,
    "trainer/ppo_utils/samples_generator.py": """
        import ray
        class Mask(list):
            def sum(self):
                return sum(self)
        class Experience:
            rewards = scores = None
            action_mask = Mask([0, 1, 1, 1, 1])
        class SamplesGenerator:
            def __init__(self, engines):
                self.engines = engines
            def generate_samples(self):
                return self._generate_vllm(None, 1, False)
            def _generate_vllm(self, dataloader_iter, num_prompts, dynamic_filtering):
                refs = [
                    e.generate_responses.remote(prompt="p", num_samples=2) for e in self.engines
                ]
                responses = [response for ref in refs for response in ray.get(ref)]
                return [self._process_response_into_experience(r) for r in responses], 1, False
            def _process_response_into_experience(self, response):
                experience = Experience()
                experience.rewards = [response["reward"]]
                return experience
    """,
    "trainer/ray/launcher.py": """
        class BaseDistributedActor:
            def __init__(self, world_size, rank):
                self.rank = rank
        class BaseModelActor(BaseDistributedActor):
            def execute_batch(self, method_name, all_data, start_idx, end_idx):
                pass
    """,
    "trainer/ray/ppo_actor.py": """
        import ray
        from types import SimpleNamespace
        from .launcher import BaseModelActor
        class Parameter:
            requires_grad = True
            def numel(self):
                return 6
            def element_size(self):
                return 2
        class ActorPPOTrainer:
            use_cuda_ipc = False
            def __init__(self, engines):
                self.engines = engines
                self.strategy = SimpleNamespace(is_rank_0=lambda: True)
                module = SimpleNamespace(parameters=lambda: [Parameter(), Parameter()])
                self.actor = SimpleNamespace(model=SimpleNamespace(module=module))
            def broadcast_to_vllm(self):
                for name in "ab":
                    ray.get([
                        engine.update_weight.remote(
                            name, dtype=SimpleNamespace(itemsize=2), shape=(2, 3),
                            empty_cache=name == "b",
                        ) for engine in self.engines
                    ])
        @ray.remote(num_cpus=0)
        class PolicyModelActor(BaseModelActor):
            def build(self, engines):
                self.trainer = ActorPPOTrainer(engines)
            def broadcast_to_vllm(self):
                self.trainer.broadcast_to_vllm()
    """,
    "trainer/ppo_trainer.py": """
        import ray
        class BasePPOTrainer:
            def init_checkpoint_states(self):
                return {"global_step": 0}
            def train_step(self, rollout_samples, global_step):
                self.ppo_train(global_step)
                self.broadcast_to_vllm()
                return {}, global_step + 1
            def ppo_train(self, global_steps):
                masks = {"attention_mask": []}
                ray.get(self.policy.execute_batch.remote("forward", masks, 0, 0))
            def broadcast_to_vllm(self):
                ray.get(self.policy.broadcast_to_vllm.remote())
    """,
    "trainer/ppo_trainer_async.py": """
        import asyncio, types, ray
        from .ppo_trainer import BasePPOTrainer
        from .ppo_utils.samples_generator import SamplesGenerator
        @ray.remote(num_cpus=0)
        class VLLMLock:
            def __init__(self):
                self._lock = asyncio.Lock()
            async def acquire(self):
                await self._lock.acquire()
            async def release(self):
                self._lock.release()
        @ray.remote(num_cpus=0)
        class GenerateSamplesActor:
            def __init__(self, engines, lock, queue):
                self.generator, self.lock, self.queue = SamplesGenerator(engines), lock, queue
            def fit(self, steps):
                for _ in range(steps):
                    ray.get(self.lock.acquire.remote())
                    samples, *_ = self.generator.generate_samples()
                    ray.get(self.lock.release.remote())
                    self.queue.put(samples)
                self.queue.put("done")
        @ray.remote(num_cpus=0)
        class TrainingActor(BasePPOTrainer):
            def __init__(self, policy, lock, queue):
                self.policy, self.lock, self.rollout_queue = policy, lock, queue
                self.args = types.SimpleNamespace(max_epochs=1)
            def fit(self, global_step=0):
                while (samples := self.rollout_queue.get()) != "done":
                    _, global_step = self.train_step(samples, global_step)
            def broadcast_to_vllm(self):
                ray.get(self.lock.acquire.remote())
                super().broadcast_to_vllm()
                ray.get(self.lock.release.remote())
    """,
}

DRIVER = """
    import ray
    from ray.util.queue import Queue
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    from openrlhf.trainer.ppo_trainer_async import GenerateSamplesActor, TrainingActor, VLLMLock
    from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
    from openrlhf.trainer.ray.vllm_engine import RolloutRayActor

    engines = [RolloutRayActor.remote() for _ in range(2)]
    policy, lock, queue = PolicyModelActor.remote(1, 0), VLLMLock.remote(), Queue(1)
    ray.get(policy.build.remote(engines))
    generator = GenerateSamplesActor.remote(engines, lock, queue)
    trainer = TrainingActor.remote(policy, lock, queue)
    ray.get([generator.fit.remote(3), trainer.fit.remote()])
"""


@pytest.mark.slow
def test_samples_steps_and_weights_are_followed_through_actors(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        path = tmp_path / "openrlhf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    (tmp_path / "script.py").write_text(dedent(DRIVER))
    done = subprocess.run(
        [*WRAP, "--out", "run", "--", PY, "script.py"],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=str(tmp_path), **ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = rltrace.open_run(tmp_path / "run")
    assert not [problem for problem in run.problems if problem["what"] == "hook-failed"]

    def rows(query: str) -> list[Any]:
        return sorted(run.sql(query).fetchall())

    assert rows("select step from steps") == [(1,), (2,), (3,)]
    # Each sample is trained on once, by the weights of the step before, which are not older than
    # those that its engine had.
    assert rows("select step, version, fate, count(*), min(lag) >= 0 from lags group by all") == [
        (step, step - 1, "trained", 4, True) for step in (1, 2, 3)
    ]
    generated = 'count(distinct trajectory), count(distinct "group"), sum(response_tokens)'
    assert rows(f"select {generated} from trajectories") == [(12, 6, 48)]
    assert rows("select value, outcome, count(*) from rewards group by all") == [(0.5, "ok", 12)]
    moved = "version, role, count(*), min(bytes), max(buckets)"
    assert rows(f"select {moved} from syncs group by all") == [
        (version, role, n, 24, 2)
        for version in (1, 2, 3)
        for role, n in (("sink", 2), ("source", 1))
    ]
    assert rows("select role, count(*) from spans where stage = 'logprob' group by 1") == [
        ("learner", 3)
    ]
    # Until the lock is had, a broadcast waits; from there on it is one.
    whole, wait, broadcast = (
        rows(f"select start_ns, end_ns from spans where role = 'controller' and name = '{name}'")
        for name in (
            "TrainingActor.broadcast_to_vllm",
            "engines before a broadcast",
            "BasePPOTrainer.broadcast_to_vllm",
        )
    )
    assert len(whole) == len(wait) == len(broadcast) == 3
    for (begin, end), (asked, had), (began, over) in zip(whole, wait, broadcast, strict=True):
        assert asked <= begin <= had <= began <= over <= end
    placed = {(p.role, p.rank) for p in run.processes}
    assert placed >= {
        *(("controller", None), ("generator", None), ("lock", None), ("rollout", None)),
        ("learner", 0),
    }

"""AReaL's own loop on a CPU: its engine client, workflow executor and staleness manager, and its
FSDP engine with PPO, whose weights go to the engine by gloo. Only the engine is a stub.

    python areal_train.py MODEL FOLDER STEPS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sglang_stub
import torch
from areal.api import FinetuneSpec, WeightUpdateMeta, cli_args
from areal.api.alloc_mode import ModelAllocation
from areal.engine.fsdp_engine import FSDPPPOActor
from areal.engine.sglang_remote import RemoteSGLangEngine
from areal.utils import stats_tracker
from areal.utils.hf_utils import load_hf_tokenizer
from areal.utils.stats_logger import StatsLogger
from areal.workflow.rlvr import RLVRWorkflow
from job_stamps import stamp

GROUP = 2
"""Samples of a prompt."""
BATCH = 4
"""Prompts of a step."""
STALENESS = 2
NAMES = {"experiment_name": "parts", "trial_name": "test"}
FAILS, REFUSED = 5, 7  # one in so many prompts


def even(prompt: str, completion: str, prompt_ids: Any, ids: list[int], **row: Any) -> float:
    """The reward: half the samples have one."""
    return float(sum(ids) % 2)


class Noted(RLVRWorkflow):
    """AReaL's workflow, which writes down what came of each request."""

    async def _collect_samples(self, engine: Any, req: Any, prompt: str, row: Any) -> Any:
        response, reward = await super()._collect_samples(engine, req, prompt, row)
        sizes = {"prompt": len(req.input_ids), "tokens": len(response.output_tokens)}
        told = {"versions": response.output_versions, "stop": response.stop_reason}
        stamp("sample", rid=req.rid, number=row["number"], reward=reward, **sizes, **told)
        if row["number"] % FAILS == FAILS - 1:
            raise ValueError("a workflow that fails")
        return response, reward


class Prompts:
    batch_size = BATCH

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for batch in range(1000):
            yield [self.row(batch * BATCH + place) for place in range(BATCH)]

    def row(self, number: int) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": f"{number}+1?"}], "number": number}


def accepted(sample: dict[str, Any]) -> bool:
    """A filter: some samples are refused once they are there."""
    return int(sample["input_ids"].sum()) % REFUSED != 0


def main() -> None:
    model, folder, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    address, server = sglang_stub.start()
    try:
        train(address, model, folder, steps)
    finally:
        server.terminate()
        server.join()


def train(address: str, model: str, folder: Path, steps: int) -> None:
    """The steps, in the order in which AReaL's trainer does them."""
    rollout = RemoteSGLangEngine(
        cli_args.InferenceEngineConfig(
            backend="sglang:d1",
            consumer_batch_size=BATCH,
            max_concurrent_rollouts=2 * BATCH,
            max_head_offpolicyness=STALENESS,
            queue_size=64,
            pause_grace_period=0.0,
        )
    )
    rollout.initialize(addr=address, train_data_parallel_size=1)
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=steps * BATCH, train_batch_size=BATCH)
    actor = make_actor(model, spec)
    meta = WeightUpdateMeta(
        type="xccl", gen_allocation=ModelAllocation.from_str("sglang:d1"), weight_chunked_mem_mb=1
    )
    actor.connect_engine(rollout, meta)
    logger = make_logger(folder, spec)
    options = cli_args.GenerationHyperparameters(max_new_tokens=sglang_stub.MOST, max_tokens=200)
    workflow = Noted(even, options, load_hf_tokenizer(model))
    for step in range(steps):
        with stats_tracker.record_timing("rollout"):
            batch = actor.prepare_batch(
                Prompts(), workflow=workflow, should_accept_fn=accepted, group_size=GROUP
            )
        for sample in batch:
            trained(step, actor.get_version(), sample)
        with stats_tracker.record_timing("compute_advantage"):
            batch = actor.compute_advantages(batch)
        with stats_tracker.record_timing("train_step"):
            actor.ppo_update(batch)
            actor.step_lr_scheduler()
        rollout.pause()
        with stats_tracker.record_timing("update_weights"):
            actor.update_weights(meta.with_version(step + 1))
            actor.set_version(step + 1)
            rollout.set_version(step + 1)
        figures = stats_tracker.export_all()
        logger.commit(0, step, step, figures)
        stamp("figures", step=step, **{k: float(v) for k, v in figures.items()})
        rollout.resume()
    executor = rollout.workflow_executor
    stamp("staleness", **vars(executor.staleness_manager.get_stats()))
    rollout.destroy()
    logger.close()


def trained(step: int, version: int, sample: dict[str, Any]) -> None:
    """Writes down what is about to be trained on, from the tensors themselves."""
    for versions, mask in zip(sample["versions"], sample["loss_mask"], strict=True):
        own = versions[mask.bool()].tolist()
        stamp("trained", step=step, version=version, first=own[0], last=own[-1], tokens=len(own))


def make_actor(model: str, spec: FinetuneSpec) -> FSDPPPOActor:
    actor = FSDPPPOActor(
        cli_args.PPOActorConfig(
            **NAMES,
            path=model,
            backend="fsdp:d1",
            dtype="float32",
            attn_impl="sdpa",
            gradient_checkpointing=False,
            optimizer=cli_args.OptimizerConfig(lr=1e-4),
            ppo_n_minibatches=1,
            kl_ctl=0.0,
            adv_norm=cli_args.NormConfig(mean_level="batch", std_level="batch"),
            use_decoupled_loss=False,
        )
    )
    actor.create_process_group()
    actor.initialize(None, spec)
    return actor


def make_logger(folder: Path, spec: FinetuneSpec) -> StatsLogger:
    """AReaL's logger, which writes to TensorBoard only."""
    config = cli_args.BaseExperimentConfig(
        **NAMES,
        cluster=cli_args.ClusterSpecConfig(fileroot=str(folder)),
        tokenizer_path="",
        total_train_epochs=1,
        stats_logger=cli_args.StatsLoggerConfig(**NAMES, fileroot=str(folder)),
    )
    config.stats_logger.tensorboard.path = str(folder / "tensorboard")
    return StatsLogger(config, spec)


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    torch.set_num_threads(1)
    main()

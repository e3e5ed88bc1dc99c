#!/usr/bin/env bash
# verl's real trainer without a GPU: a random Qwen2 of 77,440 parameters learns sums, with GRPO.
#
#     rltrace wrap -- examples/verl/cpu.sh /tmp/sums
#     rltrace wrap -- examples/verl/cpu.sh /tmp/sums trainer.use_v1=False     # any setting of verl
#
# The first argument is a folder for model and prompts, which are made there unless they exist.
# verl knows no CPU: tests/verl/plugin teaches it one, through verl's own registries. Versions that
# work together are in pins/verl.txt; `make test-verl` installs them.
#
# With RAY_ADDRESS it joins the cluster that is up there, whose nodes need the variables below.
#
# Environment: PYTHON; GPUS (logical ones, 1: what verl counts as its devices), RAY_DIR (a short
# path), VERL_CPU_TOKEN_SECONDS and VERL_CPU_REWARD_SECONDS (slower answers and verdicts).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1
shift
python=${PYTHON:-python}
gpus=${GPUS:-1}

export PYTHONPATH=$root/tests/verl/plugin:$root/tests/plugin${PYTHONPATH:+:$PYTHONPATH}
export VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HYDRA_FULL_ERROR=1
# verl 0.9.1's separate_async passes `flush` to a logger, which fails unless it says nothing.
export VERL_LOGGING_LEVEL=${VERL_LOGGING_LEVEL:-WARN}
export RAY_USAGE_STATS_ENABLED=0

test -e "$folder/train.parquet" || "$python" "$root/tests/plugin/make_assets.py" verl "$folder"

settings=(
  data.train_files="$folder/train.parquet" data.val_files="$folder/val.parquet"
  data.train_batch_size=8 data.max_prompt_length=32 data.max_response_length=64
  data.shuffle=False data.dataloader_num_workers=0

  algorithm.adv_estimator=grpo
  reward.custom_reward_function.path="$root/tests/verl/plugin/verl_cpu/reward.py"
  reward.num_workers=1

  actor_rollout_ref.model.path="$folder/model"
  actor_rollout_ref.model.use_remove_padding=False
  actor_rollout_ref.model.enable_gradient_checkpointing=False
  +actor_rollout_ref.model.override_config.attn_implementation=sdpa
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.ppo_mini_batch_size=8
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
  actor_rollout_ref.actor.use_torch_compile=False
  actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
  actor_rollout_ref.actor.optim.lr=1e-3
  actor_rollout_ref.actor.use_kl_loss=True
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16
  actor_rollout_ref.ref.fsdp_config.use_torch_compile=False

  actor_rollout_ref.rollout.name=cpu
  actor_rollout_ref.rollout.n=4
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.free_cache_engine=False
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
  actor_rollout_ref.rollout.agent.num_workers=1
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1

  trainer.device=cpu trainer.nnodes=1 trainer.n_gpus_per_node=1
  "trainer.logger=[console,file]" trainer.project_name=sums trainer.experiment_name=cpu
  trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1
  trainer.resume_mode=disable trainer.total_training_steps=3 trainer.total_epochs=5
)
# Else a cluster of its own, whatever else runs here. A worker asks for three CPUs a device.
test -n "${RAY_ADDRESS:-}" || settings+=(
  +ray_kwargs.ray_init.address=local +ray_kwargs.ray_init.include_dashboard=False
  +ray_kwargs.ray_init.num_gpus="$gpus" ray_kwargs.ray_init.num_cpus=$((4 + 4 * gpus))
  +ray_kwargs.ray_init._temp_dir="${RAY_DIR:-/tmp/ray-verl}"
)
exec "$python" -m verl.trainer.main_ppo "${settings[@]}" "$@"

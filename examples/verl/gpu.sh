#!/usr/bin/env bash
# GRPO with verl and vLLM on the GPUs of one node.
#
#     MODEL=Qwen/Qwen2.5-1.5B-Instruct DATA=~/data/gsm8k rltrace wrap -- examples/verl/gpu.sh
#     DATA=~/data/gsm8k rltrace wrap -- examples/verl/gpu.sh trainer.total_training_steps=20
#
# DATA holds train.parquet and test.parquet as verl wants them; the repository of verl makes them
# (examples/data_preprocess/gsm8k.py). Needs verl 0.9 with what its default trainer starts with
# (pip install 'rltrace-toolkit[verl]', torch first), and the vLLM that this verl was made for.
#
# Nothing here is for rltrace. Any setting of verl may follow.
set -euo pipefail
python=${PYTHON:-python}
data=${DATA:?a folder with train.parquet and test.parquet}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}

settings=(
  data.train_files="$data/train.parquet" data.val_files="$data/test.parquet"
  data.train_batch_size=256 data.max_prompt_length=512 data.max_response_length=1024
  data.filter_overlong_prompts=True data.truncation=error

  algorithm.adv_estimator=grpo

  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.use_kl_loss=True
  actor_rollout_ref.actor.ppo_mini_batch_size=64
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
  actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=16384

  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.5
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True
  actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384

  trainer.nnodes=1 trainer.n_gpus_per_node="$gpus"
  "trainer.logger=[console,file]" trainer.project_name=gsm8k trainer.experiment_name=grpo
  trainer.val_before_train=False trainer.test_freq=10 trainer.save_freq=-1
  trainer.total_training_steps=50
)
exec "$python" -m verl.trainer.main_ppo "${settings[@]}" "$@"

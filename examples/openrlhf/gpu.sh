#!/usr/bin/env bash
# GRPO with OpenRLHF and vLLM on the GPUs of one node, generating and training at the same time.
#
#     DATA=~/sums.jsonl REWARD=~/reward.py rltrace wrap -- examples/openrlhf/gpu.sh
#     DATA=… REWARD=… rltrace wrap -- examples/openrlhf/gpu.sh --train.async_queue_size 2
#
# DATA is a file of prompts (input, label) or a data set of Hugging Face's, REWARD a Python file with
# reward_func(queries, prompts, labels), both as OpenRLHF wants them; MODEL is any causal model.
# Half of the GPUs train, the other half generate. Needs OpenRLHF 0.11 with the vLLM that it pins
# (pip install 'rltrace-toolkit[openrlhf]', torch first).
#
# Nothing here is for rltrace. Any flag of OpenRLHF may follow.
set -euo pipefail
python=${PYTHON:-python}
model=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
data=${DATA:?a file of prompts or a data set}
reward=${REWARD:?a Python file with reward_func}
gpus=${GPUS:-$(nvidia-smi --list-gpus | wc -l)}
half=$((gpus / 2))

flags=(
  --actor.model_name_or_path "$model"
  --reward.remote_url "$reward"
  --data.prompt_dataset "$data" --data.input_key input --data.label_key label
  --data.apply_chat_template
  --data.max_len 2048 --rollout.max_new_tokens 1024

  --train.async_enable --train.async_queue_size 1
  --algo.advantage.is_correction_level token
  --actor.num_gpus_per_node "$half" --ref.num_gpus_per_node "$half" --train.colocate_actor_ref
  --vllm.num_engines $((gpus - half)) --vllm.tensor_parallel_size 1
  --vllm.gpu_memory_utilization 0.85 --vllm.enable_prefix_caching --vllm.sync_backend nccl

  --algo.advantage.estimator group_norm
  --algo.kl.init_coef 0.001 --algo.kl.use_loss --algo.kl.estimator k3
  --rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 8
  --train.batch_size 512 --train.micro_batch_size 4 --actor.adam.lr 1e-6

  --ds.zero_stage 2 --ds.param_dtype bf16 --ds.packing_samples
  --actor.gradient_checkpointing_enable
  --ckpt.path "${OUT:-ckpt}/checkpoints" --ckpt.output_dir "${OUT:-ckpt}/trained"
)
exec "$python" -m openrlhf.cli.train_ppo_ray "${flags[@]}" "$@"

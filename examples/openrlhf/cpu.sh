#!/usr/bin/env bash
# OpenRLHF itself, with vLLM and DeepSpeed, without a GPU: a random Qwen2 of 320,640 parameters
# learns sums, with GRPO.
#
#     rltrace wrap -- examples/openrlhf/cpu.sh /tmp/sums
#     rltrace wrap -- examples/openrlhf/cpu.sh /tmp/sums --train.async_enable  # any flag of OpenRLHF
#
# The first argument is a folder for model and prompts, which are made there unless they exist.
# OpenRLHF knows no CPU: tests/openrlhf/plugin takes the place of what it expects of CUDA. Versions
# that work together are in pins/openrlhf.txt; `make test-openrlhf` installs them. The first job of
# all compiles C++ of DeepSpeed, two minutes.
#
# Environment: PYTHON; GPUS (logical ones, 4: each engine and each rank of a model takes one),
# RAY_DIR (a short path), REWARD (another file with a reward_func; empty: none, for a reward model),
# REWARD_DELAY_S and OPENRLHF_CPU_TOKEN_SECONDS (slower verdicts, answers).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$1
shift
python=${PYTHON:-python}
plugin=$root/tests/openrlhf/plugin
reward=${REWARD-$plugin/openrlhf_cpu/reward.py}

test -e "$folder/prompts.jsonl" || "$python" "$root/tests/plugin/make_assets.py" openrlhf "$folder"

PATH=$(dirname "$(command -v "$python")"):$PATH  # DeepSpeed looks for ninja there
export PYTHONPATH=$plugin:$root/tests/plugin${PYTHONPATH:+:$PYTHONPATH}
export GPUS=${GPUS:-4} RAY_DIR=${RAY_DIR:-/tmp/ray-openrlhf} RAY_USAGE_STATS_ENABLED=0
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind  # GiB an engine; no cores of its own
export VLLM_LOGGING_LEVEL=WARNING VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1

flags=(
  --actor.model_name_or_path "$folder/model"
  ${reward:+--reward.remote_url "$reward"}
  --data.prompt_dataset "$folder/prompts.jsonl" --data.input_key input --data.label_key label
  --data.max_samples 16 --data.max_len 160

  --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1
  --ds.zero_stage 2 --ds.attn_implementation eager --ds.param_dtype bf16

  --vllm.num_engines 1 --vllm.tensor_parallel_size 1 --vllm.enforce_eager
  --vllm.sync_backend gloo --vllm.gpu_memory_utilization 0.1

  --algo.advantage.estimator group_norm
  --algo.kl.init_coef 0.001 --algo.kl.use_loss --algo.kl.estimator k3
  --rollout.batch_size 4 --rollout.n_samples_per_prompt 2 --rollout.micro_batch_size 2
  --rollout.max_new_tokens 64
  --train.batch_size 8 --train.micro_batch_size 2 --actor.adam.lr 1e-4

  --ckpt.path "$folder/checkpoints" --ckpt.output_dir "$folder/trained"
)
exec "$python" -m openrlhf.cli.train_ppo_ray "${flags[@]}" "$@"

"""How the frameworks of the field log their steps, read in their sources."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from rltrace.adapters import areal, nemo_rl, slime, torchforge
from rltrace.importers.log import Record
from rltrace.importers.scalars import Scheme, Told, has
from rltrace.trace.vocabulary import Stage

_SCORED = "verdicts are reached while it generates"
_TOOLS = "tools run while it generates"
_SLACK = 1.02


def _labelled(labels: Mapping[str, str], form: str, *order: str) -> dict[str, str]:
    """Metric -> stage for labels in the order of the loop; those that a call shows have theirs."""
    by_call = {"update_weights": "sync", "weight_sync": "sync"}
    return {form.format(label): labels[label] or by_call[label] for label in order}


def _typical(records: list[Record], name: str) -> float:
    found = [record.metrics[name] for record in records if name in record.metrics]
    return median(found) if found else 0.0


# --- slime and its descendants

_SLIME_TRAINING = _labelled(
    slime.LABELS,
    "perf/{}_time",
    *("update_weights", "sleep", "wake_up", "data_preprocess", "ref_log_probs"),
    *("teacher_log_probs", "log_probs", "values", "critic_train", "actor_train"),
    "ref_model_update",
)
_ROLLOUT, _WAIT = "perf/rollout_time", "perf/train_wait_time"


def _slime(records: list[Record]) -> Told:
    """While its actors wait, the synchronous loop generates; the other one only waits for what is
    not ready yet, so that generation is as long as or longer than the wait and no part of it."""
    if not has(records, _ROLLOUT):
        return Told("train", "", {_WAIT: "wait", **_SLIME_TRAINING})
    if _typical(records, _ROLLOUT) <= _SLACK * _typical(records, _WAIT):
        inside = {_ROLLOUT: "rollout", _WAIT: "wait", **_SLIME_TRAINING}
        within = (_ROLLOUT, "perf/update_weights_time")
        return Told("train.py", "", inside, holds={_WAIT: within})
    inside = {_WAIT: "wait", **_SLIME_TRAINING}
    return Told("train_async.py", "one-step-off", inside, aside={_ROLLOUT: "rollout"})


def _of_slime(framework: str, name: str) -> Scheme:
    return Scheme(
        framework=framework,
        name=name,
        step="perf/step_time",
        trainer=_slime,
        numbers=("rollout/step",),
        unknown=((Stage.REWARD, _SCORED), (Stage.ENV, _TOOLS)),
        figures=(
            ("perf/step_time", "waiting and training of the first actor: what lies between is not"),
            (_WAIT, "holds the weight update and the saving of checkpoints of the step before"),
        ),
    )


SLIME = _of_slime("slime", "slime")
RELAX = _of_slime("relax", "Relax")
MILES = _of_slime("miles", "miles")

# --- NeMo-RL

_NEMO = "timing/train/{}"
_TRANSFER = _NEMO.format("prepare_for_generation/transfer_and_update_weights")


def _nemo_rl(records: list[Record]) -> Told:
    waits = ("exposed_generation", "idle/buffer_starvation", "idle/refit_bubble")
    is_async = has(records, *(_NEMO.format(label) for label in waits))
    total = _NEMO.format("prepare_for_generation/total")
    inside = {
        _NEMO.format("data_processing"): "data",
        _TRANSFER: "sync",
        **_labelled(
            nemo_rl.LABELS,
            _NEMO,
            *("prepare_for_generation/total", "generation", "exposed_generation"),
            *("reward_calculation", "logprob_inference_prep"),
        ),
        _NEMO.format("policy_and_reference_logprobs"): "logprob",
        _NEMO.format("advantage_calculation"): "other",
        **_labelled(
            nemo_rl.LABELS,
            _NEMO,
            "training_prep",
            "policy_training",
            "weight_sync",
            "checkpointing",
        ),
        _NEMO.format("total_validation_time"): "eval",
    }
    trainer = "async_grpo_train" if is_async else "grpo_train"
    return Told(trainer, "async" if is_async else "", inside, holds={total: (_TRANSFER,)})


NEMO_RL = Scheme(
    framework="nemo-rl",
    name="NeMo-RL",
    step=_NEMO.format("total_step_time"),
    trainer=_nemo_rl,
    unknown=(
        (Stage.REWARD, f"reward_calculation is the baselines' maths: {_SCORED}"),
        (Stage.ENV, _TOOLS),
        (Stage.REFERENCE, "its pass is timed together with the policy's"),
        (Stage.ROLLOUT, "exposed_generation is how long the trainer waited"),
    ),
    figures=(
        (_NEMO.format("policy_and_reference_logprobs"), "both passes: it is shown as the policy's"),
        (_NEMO.format("exposed_generation"), "waiting: generation runs in other processes"),
    ),
)

# --- AReaL

_AREAL_PARTS = _labelled(
    areal.LABELS,
    "timeperf/{}",
    *("rollout", "critic_values", "ref_logp", "teacher_logp", "recompute_logp"),
    *("compute_advantage", "train_step", "critic_train_step", "rollout_pause"),
    *("update_weights", "rollout_resume", "save", "checkpoint_for_recover", "eval"),
    "clear_batches",
)

AREAL = Scheme(
    framework="areal",
    name="AReaL",
    step="",
    trainer=Told("PPOTrainer", "", _AREAL_PARTS),
    unknown=(
        (Stage.ROLLOUT, "timeperf/rollout is how long the trainer waited for samples"),
        (Stage.REWARD, "its session traces have it, its figures do not"),
        (Stage.ENV, "its session traces have it, its figures do not"),
    ),
    figures=(("timeperf/rollout", "waiting: generation runs in other processes"),),
)

# --- ROLL

_AGENTIC = "time/step_rollout"


def _roll(records: list[Record]) -> Told:
    inside = {
        "time/step_stop_server": "wait",
        "time/step_model_update": "sync",
        "time/val_step": "eval",
        "time/step_val": "eval",
        "time/step_generate": "rollout",
        _AGENTIC: "rollout",
        "time/step_shrink": "switch",
        "time/ref_log_probs_values": "reference",
        "time/step_ref_log_probs_values_reward": "reference",
        "time/old_log_probs": "logprob",
        "time/step_old_log_probs_values": "logprob",
        "time/step_adv": "other",
        "time/step_train": "train",
    }
    return Told("agentic" if has(records, _AGENTIC) else "rlvr", "", inside)


ROLL = Scheme(
    framework="roll",
    name="ROLL",
    step="time/step_total",
    previous=True,
    trainer=_roll,
    unknown=((Stage.REWARD, _SCORED), (Stage.ENV, _TOOLS)),
    figures=(
        ("time/step_total", "of the step before: it is put there, and the last step has its parts"),
        ("time/step_generate", "with an asynchronous ratio it is waiting: no figure says which"),
        ("scheduler/off_policy_ratio", "a mean lag in steps, not a ratio"),
    ),
)

# --- RLinf


def _rlinf(records: list[Record]) -> Told:
    if has(records, "time/generate_rollouts"):
        inside = {
            "time/sync_weights": "sync",
            "time/generate_rollouts": "rollout",
            "time/cal_adv_and_returns": "other",
            "time/actor_training": "train",
            "time/eval": "eval",
        }
        return Told("embodied", "", inside)
    # Its workers run at once, fed by channels: their durations have no place in the step.
    return Told("reasoning", "", {"time/prepare_data": "data", "time/sync_weights": "sync"})


RLINF = Scheme(
    framework="rlinf",
    name="RLinf",
    step="time/step",
    trainer=_rlinf,
    unknown=tuple(
        (stage, "workers run at once: how long one took is a counter, when it ran is not known")
        for stage in (Stage.ROLLOUT, Stage.REWARD, Stage.LOGPROB, Stage.TRAIN)
    ),
    figures=(("actor/average_version", "a version, not a lag"),),
)

# --- prime-rl


def _prime_rl(records: list[Record]) -> Told:
    if has(records, "time/wait_for_policy"):
        inside = {
            "time/wait_for_policy": "wait",
            "time/pack": "data",
            "time/save_ckpt": "checkpoint",
        }
        return Told("orchestrator", "async", inside)
    inside = {
        "time/wait_for_batch": "wait",
        "time/load_data": "data",
        "time/forward_backward": "train",
        "time/broadcast_weights": "sync",
        "time/save_ckpt": "checkpoint",
    }
    return Told("trainer", "async", inside)


PRIME_RL = Scheme(
    framework="prime-rl",
    name="prime-rl",
    step="time/step",
    trainer=_prime_rl,
    unknown=(
        (Stage.ROLLOUT, "the trainer's figures have only its waiting for a batch"),
        (Stage.REWARD, "environments score while they run"),
        (Stage.ENV, "environments run in other processes"),
    ),
)

# --- torchforge

_FORGE_TRAINING = {
    f"{label}/duration_avg_s": stage
    for label, stage in torchforge.LABELS.items()
    if label.startswith("main_perf/continuous_training/")
}

TORCHFORGE = Scheme(
    framework="torchforge",
    name="torchforge",
    step="main_perf/continuous_training/total_duration_avg_s",
    trainer=Told("grpo", "async", _FORGE_TRAINING),
    unknown=tuple(
        (stage, "the rollout loops run on their own: their means are counters, of no step")
        for stage in (Stage.ROLLOUT, Stage.REWARD, Stage.REFERENCE)
    ),
)

# --- MindSpeed-RL


_MINDSPEED_PARTS = {
    "timing/resharding_to_infer": "sync",
    "timing/rollout": "rollout",
    "timing/old_log_p": "logprob",
    "timing/reference_model": "reference",
    "timing/rule_reward": "reward",
    "timing/update": "train",
}

MINDSPEED_RL = Scheme(
    framework="mindspeed-rl",
    name="MindSpeed-RL",
    step="timing/all",
    trainer=Told("GRPO", "", _MINDSPEED_PARTS),
)

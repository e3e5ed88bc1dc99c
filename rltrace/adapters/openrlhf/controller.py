"""Readers in the controller and, where there is one, in the generator beside it.

OpenRLHF has no function that is one step: its loop takes a batch, trains on it, logs. So a step
begins where the loop asks for the batch that it will train on, and ends where it asks for the next.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any

from rltrace.adapters.openrlhf import objective
from rltrace.adapters.openrlhf.fates import ATTRIBUTE, tokens_of, used
from rltrace.adapters.openrlhf.verdicts import number, untimed
from rltrace.hooks import span_api
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate, Stage


class _Loop:
    """The loop of the process that counts the steps."""

    running = False
    trained = False  # in the open step
    last_ns = -1  # when the open step last did something
    batch: tuple[tuple[int, int] | None, ...] = ()  # tags of what is trained on
    judged = False  # whether its samples came with a reward
    asked_ns = -1  # when an update of the engines was last wanted
    ratios: dict[int, dict[str, float]] = {}  # noqa: RUF012  # by place in the batch


_loop = _Loop()


def fit_begins(call: Call) -> None:
    _loop.running, _loop.trained = True, False
    recorder = call.recorder
    recorder.version = max(recorder.version, 0)
    recorder.step = max(recorder.step, int(call.argument("global_step", 0)))
    recorder.describe(placement=_placement(call.self))
    recorder.describe(**objective.stated(call.self.args))


def _placement(trainer: Any) -> str:
    """Who shares devices, and what runs at once, as the flags say it."""
    if hasattr(trainer, "rollout_queue"):
        return "async"
    args = trainer.args
    own = getattr(args, "train", None)
    colocated = args.colocate_all_models if own is None else own.colocate_all
    return "colocated" if colocated else "disaggregated"


def resumed(call: Call) -> None:
    """The checkpoint, if any, is known: steps count on from it."""
    if isinstance(call.result, dict):
        call.recorder.step = int(call.result["global_step"])


def next_batch(call: Call) -> str:
    """The loop wants a batch: with it the next step begins, unless the last one got none."""
    recorder = call.recorder
    if _loop.running and (recorder.open_step is None or _loop.trained):
        now_ns = monotonic_ns()
        if recorder.open_step is not None:
            recorder.open_step.set(end_ns=now_ns)
            recorder.open_step = None
        _loop.trained = False
        span_api.step(recorder.step + 1).set(start_ns=now_ns)
    return "wait"


def fit_ends(call: Call) -> None:
    """The loop has ended. A step that found no batch was none; one that an exception cut short
    stays open."""
    recorder = call.recorder
    step, recorder.open_step = recorder.open_step, None
    _loop.running = False
    recorder.step = -1
    if step is None or call.exception is not None:
        return
    if _loop.trained:
        step.set(end_ns=_loop.last_ns)
    else:
        step.discard()


def train_begins(call: Call) -> None:
    """A batch is there; `train_step(rollout_samples, global_step)` is given the step before."""
    samples, number_ = call.argument("rollout_samples"), int(call.argument("global_step")) + 1
    recorder = call.recorder
    if recorder.open_step is None:  # a loop of the user's own
        span_api.step(number_)
    elif recorder.step != number_:
        recorder.step = number_
        recorder.open_step.set(step=number_)
    _loop.batch = tuple(getattr(sample, ATTRIBUTE, None) for sample in samples)
    _loop.ratios = {}
    _loop.judged = any(sample.rewards is not None for sample in samples)
    call.state = (recorder.version, [tokens_of(sample) for sample in samples])


def train_ends(call: Call) -> None:
    if call.exception is not None:
        return
    _loop.trained, _loop.last_ns = True, call.end_ns
    version, lengths = call.state
    for place, (tag, tokens) in enumerate(zip(_loop.batch, lengths, strict=True)):
        known = _loop.ratios.get(place, {})
        used(call, tag, version, Fate.TRAINED, tokens, **known)


def experience_made(call: Call) -> None:
    """The models have seen the batch: `make_experience` gives micro-batches whose `index` says
    which samples they are of, with rewards of the reward model where there is one."""
    for experience in call.result or ():
        _loop.ratios.update(zip(experience.index, of_samples(experience), strict=False))
        if _loop.judged:
            continue
        for place, value in zip(experience.index, experience.rewards, strict=True):
            tag = _loop.batch[place]
            if tag is not None:
                untimed(call, tag[0], number(value), "reward model")


def broadcast_begins(call: Call) -> None:
    """The asynchronous trainer wants to update the engines, and must first have the lock, or have
    them pause."""
    _loop.asked_ns = call.start_ns


def bringing(call: Call) -> None:
    """The update itself begins; what passed since it was wanted was waiting."""
    if _loop.asked_ns > 0:
        name = call.recorder.name("engines before a broadcast")
        call.recorder.begin(name, Stage.WAIT).set(start_ns=_loop.asked_ns, end_ns=call.start_ns)
        _loop.asked_ns = -1


def weights_brought(call: Call) -> None:
    """All engines have a new version."""
    if call.exception is None:
        call.recorder.version = max(call.recorder.version, 0) + 1
        call.span.set(version=call.recorder.version)


def saving(call: Call) -> str:
    """Logging and, every so many steps, a checkpoint."""
    args = call.self.args
    every = args.ckpt.save_steps if hasattr(args, "ckpt") else args.save_steps
    return "other" if int(call.argument("global_step")) % every else "checkpoint"


def logged(call: Call) -> None:
    """OpenRLHF's own figures of the step, under its names, NaN among them: a loss may be."""
    figures = call.argument("logs_dict") or {}
    for name, value in figures.items():
        if isinstance(value, int | float):
            call.recorder.append(
                "samples",
                time_ns=call.start_ns,
                counter=call.recorder.name(name),
                value=float(value),
            )


def step_did_more(call: Call) -> None:
    """The open step lasts at least until here."""
    _loop.last_ns = call.end_ns


# --- how far the policy that trains is from the one that generated, sample by sample
# Where it corrects for their difference (its flags say `is_correction`), OpenRLHF has two
# log-probabilities of each token before it trains: that of vLLM when it generated, and that of the
# policy now. It logs one mean of them, `vllm_kl`.


def of_samples(experience: Any) -> list[dict[str, float]]:
    """The columns of `uses` that tell of w = exp(now - when generated), for each sample of a
    micro-batch; an empty list where they are not known, or not on the CPU."""
    now, then = experience.action_log_probs, experience.rollout_log_probs
    mask = experience.action_mask
    if now is None or then is None or now.device.type != "cpu":
        return []
    log_w = (now.float() - then.float()).masked_fill(mask == 0, 0.0)
    w = log_w.exp() * mask
    sums = (log_w.sum(-1) / mask.sum(-1), w.sum(-1), (w * w).sum(-1))
    names = ("mean_log_ratio", "sum_w", "sum_w_squared")
    rows = zip(*(one.tolist() for one in sums), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]

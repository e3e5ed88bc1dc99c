"""Readers in the controller and generator: steps, objective, fates of samples.

No function is one step, so a step lasts from where the loop asks for a batch to where it asks for
the next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from rltrace.adapters.openrlhf.rollout import TAG
from rltrace.adapters.openrlhf.verdicts import number
from rltrace.adapters.table.samples import NO_RATIOS, ratios, uses, verdicts
from rltrace.adapters.table.stated import are_counts, at, not_none
from rltrace.adapters.table.steps import Loop, step_begins, step_is
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Fate, Stage


class _ControllerLoop(Loop):
    batch: tuple[tuple[int, int] | None, ...] = ()  # tags of what is trained on
    judged = False  # whether its samples came with a reward
    asked_ns = -1  # when an update of the engines was last wanted
    ratios: list[list[float]] = []  # noqa: RUF012  # columns, by place in the batch
    # In the policy's buffer, which it keeps while only the critic is trained.
    held: list[tuple[Any, ...]] = []  # noqa: RUF012


loop = _ControllerLoop()


def fit_begins(call: Call) -> None:
    loop.begins()
    loop.held = []
    recorder = call.recorder
    recorder.version = max(recorder.version, 0)
    recorder.step = max(recorder.step, int(call.argument("global_step", 0)))
    colocated = at(call.self.args, "train.colocate_all", "colocate_all_models")
    placement = "colocated" if colocated else "disaggregated"
    placement = "async" if hasattr(call.self, "rollout_queue") else placement
    recorder.describe(placement=placement)
    recorder.describe(**stated(call.self.args))


def resumed(call: Call) -> None:
    """The checkpoint, if any, is known: steps count on from it."""
    if isinstance(call.result, dict):
        call.recorder.step = int(call.result["global_step"])


def next_batch(call: Call) -> str:
    loop.wants_batch(call.recorder, call.recorder.step + 1)
    return "wait"


def train_begins(call: Call) -> None:
    """A batch is there; `train_step(rollout_samples, global_step)` is given the step before."""
    samples, number_ = call.argument("rollout_samples"), int(call.argument("global_step")) + 1
    recorder = call.recorder
    if recorder.open_step is None:  # a loop of the user's own
        step_begins(number_)
    else:
        step_is(recorder, number_)
    loop.batch = tuple(getattr(sample, ATTRIBUTE, None) for sample in samples)
    loop.ratios = [[unknown] * len(samples) for unknown in NO_RATIOS]
    loop.judged = any(sample.rewards is not None for sample in samples)
    call.state = (recorder.version, [tokens_of(sample) for sample in samples])


def train_ends(call: Call) -> None:
    if call.exception is not None:
        return
    loop.trained, loop.last_ns = True, call.end_ns
    version, lengths = call.state
    loop.held.append(([tag[0] if tag else -1 for tag in loop.batch], lengths, loop.ratios))
    frozen = at(call.self.args, "critic.freezing_steps", "freezing_actor_steps")
    if not isinstance(frozen, int) or call.argument("global_step") > frozen:
        for held in loop.held:
            uses(call, Fate.TRAINED, *held, version=version)
        loop.held.clear()


def experience_made(call: Call) -> None:
    """`make_experience` gives micro-batches: `index` says which samples they are of."""
    judged: list[tuple[int, float | None]] = []
    for experience in call.result or ():
        # Its flags `is_correction` have OpenRLHF keep both log-probs of each token.
        now, then = experience.action_log_probs, experience.rollout_log_probs
        moved = ratios(now, then, experience.action_mask)
        for column, values in zip(loop.ratios, moved, strict=False):
            for place, value in zip(experience.index, values, strict=False):
                column[place] = value
        if not loop.judged:
            pairs = zip(experience.index, map(number, experience.rewards), strict=True)
            judged += [(tag[0], value) for place, value in pairs if (tag := loop.batch[place])]
    verdicts(call, "reward model", judged, None)


def broadcast_begins(call: Call) -> None:
    """The asynchronous trainer must first have the lock, or have the engines pause."""
    loop.asked_ns = call.start_ns


def bringing(call: Call) -> None:
    """The update itself begins; what passed since it was wanted was waiting."""
    if loop.asked_ns > 0:
        name = call.recorder.name("engines before a broadcast")
        call.recorder.begin(name, Stage.WAIT).set(start_ns=loop.asked_ns, end_ns=call.start_ns)
        loop.asked_ns = -1


def brought(call: Call) -> None:
    if call.exception is None:
        call.recorder.version = max(call.recorder.version, 0) + 1
        call.span.set(version=call.recorder.version)


def saving(call: Call) -> str:
    every = at(call.self.args, "ckpt.save_steps", "save_steps")
    return "other" if int(call.argument("global_step")) % every else "checkpoint"


# OpenRLHF recomputes the log-probs of a batch before it trains, so its clip bounds the learner's
# own drift and knows nothing of the lag; its correction weighs that loss by the ratio to what vLLM
# sampled from, within limits. Nothing is dropped for its age.

_ENABLED = ("is_correction_enable", "enable_vllm_is_correction")  # 0.10.2; before it
_FACTORS = (
    ("rollout.batch_size", "rollout_batch_size"),
    ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
    ("train.max_epochs", "max_epochs"),
    ("train.batch_size", "train_batch_size"),
)


def stated(args: Any) -> dict[str, Any]:
    return not_none(
        objective=_objective(args),
        advantage=at(args, "algo.advantage.estimator", "advantage_estimator"),
        drops_stale=False,
        updates_per_version=_updates_per_version(args),
        ratios_before_updates=True,
    )


def _objective(args: Any) -> str:
    loss = at(args, "actor.policy_loss_type", "policy_loss_type") or "ppo"
    flags = at(args, "algo.advantage") or args
    level = at(flags, "is_correction_level")
    corrects = level not in (None, "off") or any(at(flags, name) for name in _ENABLED)
    return "decoupled" if corrects and loss == "ppo" else str(loss)


def _updates_per_version(args: Any) -> int | None:
    """Optimizer updates of the policy in a step, which one broadcast follows; of a full batch."""
    given = prompts, samples, epochs, batch = [at(args, *names) for names in _FACTORS]
    return int(prompts * samples // batch * epochs) or None if are_counts(*given) else None


ATTRIBUTE = f"_{TAG}"
"""The attribute of an experience that holds `(trajectory id, group id)`. Making a batch of samples
drops it, as it is no field of theirs."""


def tokens_of(experience: Any) -> int:
    """Tokens that the policy generated: those of the environment are between them."""
    return int(experience.action_mask.sum())


class _Candidate(NamedTuple):
    """A sample that may be filtered out, with its group."""

    tag: tuple[int, int]
    score: float
    tokens: int


_filtering: list[list[_Candidate]] = []  # one list while a batch is generated and filtered


def generating(call: Call) -> None:
    """A batch is generated: `_generate_vllm(dataloader_iter, num_prompts, dynamic_filtering)`."""
    _filtering[:] = [[]] if call.argument("dynamic_filtering") else []


def arrived(call: Call) -> None:
    """A response has become an experience."""
    experience = call.result
    tag = call.argument("response").get(TAG)
    if experience is None or tag is None:
        return
    setattr(experience, ATTRIBUTE, tag)
    if _filtering and experience.scores is not None:
        score = float(experience.scores[0])
        _filtering[0].append(_Candidate(tag, score, tokens_of(experience)))


def generated(call: Call) -> None:
    """The batch is there without the groups whose mean score is out of range."""
    candidates = _filtering.pop() if _filtering else []
    if not candidates or call.result is None:
        return
    kept = {getattr(experience, ATTRIBUTE, None) for experience in call.result[0]}
    flags = ("algo.dynamic_filtering_range", "dynamic_filtering_reward_range")
    lowest, highest = at(call.self.args, *flags)
    groups: dict[int, list[_Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.tag[1], []).append(candidate)
    dropped: list[_Candidate] = []
    for group in groups.values():
        scores = [candidate.score for candidate in group]
        if group[0].tag in kept or lowest < sum(scores) / len(scores) < highest:
            continue  # the rest of an unfinished batch is dropped with it, by no filter
        dropped += group
    ids, tokens = [one.tag[0] for one in dropped], [one.tokens for one in dropped]
    uses(call, Fate.FILTERED, ids, tokens)

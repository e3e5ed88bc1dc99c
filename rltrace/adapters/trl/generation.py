"""Samples that the trainer generates itself, in batches (GRPO, RLOO).

All samples of a batch begin together, and end with their last turn: without tools together, too,
since neither transformers nor TRL's call of vLLM tells them apart.
"""

from __future__ import annotations

import os
from itertools import count, pairwise
from typing import Any

from rltrace.adapters.token_fidelity import Sampled, runs
from rltrace.adapters.trl.buffer import buffer
from rltrace.adapters.trl.loop import begin, ends_of_text, set_row
from rltrace.hooks.hook import Call
from rltrace.trace.vocabulary import Finish

_next = count().__next__


class _Batch:
    turns_ns: list[tuple[int, int]] = []  # noqa: RUF012  # when each began and ended
    own = False  # whether a function of the user's generates in place of TRL
    sampled: Sampled | None = None  # what engines gave; None where nobody need look


def begins(call: Call) -> None:
    """A batch of prompts is about to be generated for: `_generate(prompts)`, on every rank."""
    trainer, recorder = call.self, call.recorder
    tools = getattr(trainer, "tools", None)
    _Batch.turns_ns, _Batch.own, _Batch.sampled = [], _own_function(trainer), None
    if not trainer.model.training:
        return
    if tools or _Batch.own:
        _Batch.sampled = Sampled()
    prompts = call.argument("prompts")
    number, rank = _next(), int(trainer.accelerator.process_index)
    each = max(int(trainer.num_generations), 1)
    batch, groups = f"{recorder.who}/{number}", f"{_job(recorder.who)}/{number}/group"
    call.state = [
        begin(call, f"{batch}/{place}", f"{groups}/{place // each}", prompt)
        for place, prompt in enumerate(prompts, rank * len(prompts))
    ]


def _job(who: str) -> str:
    """What the ranks of a job have in common: a meeting point, and who started them on one node."""
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks == "1":
        return who
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    place = "/".join(os.environ.get(name, "") for name in names)
    return f"{place}/{os.getppid()}" if os.environ.get("LOCAL_WORLD_SIZE") == ranks else place


def turn_stage(call: Call) -> str:
    return engine_stage(call) if call.self.model.training else "eval"


def engine_stage(call: Call) -> str:
    """In a job with a vLLM server the first rank asks for all."""
    owner = call.self
    mode = getattr(owner, "mode", None) or getattr(owner, "vllm_mode", None)
    uses_server = mode == "server" and getattr(owner, "use_vllm", True)
    return "wait" if uses_server and not owner.accelerator.is_main_process else "rollout"


def turn_ends(call: Call) -> None:
    """It has come back: `(prompts, samples, ...)` before 1.0, `(samples, log-probs)` since."""
    _Batch.turns_ns.append((call.start_ns, call.end_ns))
    if _Batch.sampled is not None and not _Batch.own and call.exception is None:
        result = call.result
        _Batch.sampled.add(*(result[1] if len(result) > 2 else result[0]))


def own_rollout(call: Call) -> str | None:
    """A function of the user's may generate in place of TRL."""
    if not _own_function(call.self):
        return None
    return "rollout" if call.self.model.training else "eval"


def _own_function(trainer: Any) -> bool:
    return getattr(trainer, "rollout_func", None) is not None


def ends(call: Call) -> None:
    """`(prompt ids, completion ids, ...)`: in GRPO, the mask of what tools said is third and the
    completions are fourth; in RLOO the completions are third."""
    rows, trainer = call.state, call.self
    if rows is None:
        return
    buffer.made = buffer.shuffled = None
    if call.exception is not None:
        for _, row in rows:
            set_row(row, end_ns=call.end_ns, finish=Finish.ERROR)
        return
    prompts, completions, *rest = call.result
    masks, said = rest[:2] if len(rest) > 1 else (None, rest[0])
    ends, pad = ends_of_text(trainer)
    over = {*ends, pad}
    for place, (sample, row) in enumerate(rows):
        ids = completions[place]
        sample.prompt_tokens = len(prompts[place])
        sample.tokens = len(ids) if masks is None else sum(masks[place])
        complete = len(ids) > 0 and ids[-1] in over
        sample.masked = bool(trainer.mask_truncated_completions) and not complete
        set_row(
            row,
            prompt_tokens=sample.prompt_tokens,
            response_tokens=sample.tokens,
            last_version=int(trainer.state.global_step),
            finish=Finish.STOP if complete else Finish.LENGTH,
            logprobs=_log_probs(rest),
            **_kept(ids, masks and masks[place]),
            **_times(_turns(said[place]), call.end_ns),
        )
        call.recorder.capture(row, prompts[place], ids)
    buffer.made = [sample for sample, _ in rows]


def _turns(completion: Any) -> int:
    """How often the policy was asked for a sample: a conversation says so, a text is one turn."""
    if not isinstance(completion, list):
        return 1
    return sum(isinstance(m, dict) and m.get("role") == "assistant" for m in completion) or 1


def _times(turns: int, end_ns: int) -> dict[str, int]:
    """When the last of a sample's turns came back, and what lay between them: tools."""
    made = _Batch.turns_ns[:turns]
    if not made:  # by a function of the user's
        return {"end_ns": end_ns, "turns": turns}
    between = sum(after[0] - before[1] for before, after in pairwise(made))
    return {"end_ns": made[-1][1], "turns": len(made), "env_ns": between}


# Whether tokens are those that were sampled: without tools and functions of the user's they are.
# Before 1.0 a turn's text is tokenized anew once tools have answered; about then, what tools say
# counts as sampled where the whole gets too long; a function of the user's may give anything.


def answered(call: Call) -> None:
    """TRL's client, or vLLM in this process, has answered a function of the user's."""
    if _Batch.sampled is None or not _Batch.own or call.exception is not None:
        return
    result = call.result
    if isinstance(result, dict):
        _Batch.sampled.add(*result["completion_ids"])
    else:
        _Batch.sampled.add(*(one.token_ids for each in result for one in each.outputs))


def _kept(ids: list[int], mask: list[int] | None) -> dict[str, int]:
    """Nothing where a function of the user's has a sample from an engine that nobody watches."""
    if _Batch.sampled is None:
        return {"token_ids": 1}
    return _Batch.sampled.column([ids] if mask is None else runs(ids, mask))


def _log_probs(rest: list[Any]) -> int:
    """Whether log-probs came with the samples: behind prompts and samples GRPO gives a list or
    None, before 1.9 behind a number of tokens; RLOO gives none."""
    found = (each for each in rest[2:4] if each is None or isinstance(each, list))
    return int(next(found, None) is not None)

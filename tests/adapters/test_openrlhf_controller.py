"""What the OpenRLHF adapter reads in the controller, of weights, and of the models' own work."""

from __future__ import annotations

import asyncio
import math
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rltrace
from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.hooks import Recorder
from tests.adapters.conftest import Rows
from tests.adapters.openrlhf_shapes import Engine, hooked

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")


@dataclass
class Experience:
    """OpenRLHF's, as far as it is looked at."""

    action_mask: Any = field(default_factory=lambda: torch.tensor([1, 1, 0]))
    rewards: Any = None
    scores: Any = None
    index: Any = None
    action_log_probs: Any = None
    rollout_log_probs: Any = None


BROKEN = Experience(rewards="theirs")


@hooked("PPOTrainer", "BasePPOTrainer", "RemoteExperienceMaker", "SamplesGenerator")
class Trainer:
    """The loop of OpenRLHF's controller."""

    args = SimpleNamespace(
        ckpt=SimpleNamespace(save_steps=2),
        train=SimpleNamespace(colocate_all=True),
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)),
    )

    def __init__(self, batches: list[list[Any]], resumed_at: int = 0) -> None:
        self.batches = batches
        self.resumed_at = resumed_at

    def fit(self, global_step: int = 0) -> None:
        global_step = self.init_checkpoint_states()["global_step"]
        if global_step:
            self.broadcast_to_vllm()
        while True:
            samples = self.generate_samples()
            if samples is None:
                return
            if samples:
                global_step = self.train_step(samples, global_step)
                figures = {"timing/broadcast": 0.5, "generated_samples": ["text"], "kl": 1}
                self.save_logs_and_checkpoints(global_step, figures)

    def init_checkpoint_states(self) -> dict[str, int]:
        return {"global_step": self.resumed_at}

    def generate_samples(self) -> list[Any] | None:
        return self.batches.pop(0) if self.batches else None

    def train_step(self, rollout_samples: list[Any], global_step: int) -> int:
        if rollout_samples[0] is BROKEN:
            raise ValueError("theirs")
        self.make_experience(rollout_samples)
        self.broadcast_to_vllm()
        return global_step + 1

    def make_experience(self, samples: list[Any]) -> list[Any]:
        """In micro-batches of other places."""
        places = list(reversed(range(len(samples))))
        return [Experience(index=places, rewards=torch.tensor(places).float())]

    def broadcast_to_vllm(self) -> None: ...

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any) -> None: ...


def sample(tag: tuple[int, int] | None, rewards: Any = None) -> Experience:
    """A sample as it arrives in the controller: through pickling, which keeps what it carries."""
    process = hooked("SamplesGenerator._process_response_into_experience")(
        lambda self, response: Experience(rewards=rewards)
    )
    experience = process(None, {} if tag is None else {rollout.TAG: tag})
    copied: Experience = pickle.loads(pickle.dumps(experience, protocol=5))
    return copied


def test_steps_tile_the_loop_and_waiting_for_a_batch_is_of_the_step_that_trains_on_it(
    recorder: Recorder, rows: Rows, run_path: Path
) -> None:
    """Figures are counters within their step."""
    Trainer([[sample((7, 1))], [], [sample((8, 2)), sample(None)]]).fit()
    steps = rows("select step, start_ns, end_ns from steps")
    assert [step for step, *_ in steps] == [1, 2]
    assert steps[0][2] == steps[1][1]

    assert rows("select trajectory, step, version, fate, tokens from uses") == [
        (7, 1, 0, "trained", 2),
        (8, 2, 1, "trained", 2),
        (None, 2, 1, "trained", 2),
    ]
    spans = "select coalesce(step, 0), stage from spans where name <> 'step' order by start_ns"

    assert rows(spans) == [
        *((1, "wait"), (1, "sync"), (1, "other")),
        *((2, "wait"), (2, "wait"), (2, "sync"), (2, "checkpoint")),
        (3, "wait"),  # for nothing
    ]
    assert rows(
        "select step, counter, value from samples join steps "
        "on time_ns between steps.start_ns and steps.end_ns order by all"
    ) == [(n, *kept) for n in (1, 2) for kept in (("kl", 1), ("timing/broadcast", 0.5))]
    assert recorder.step == -1
    assert rltrace.open_run(run_path).processes[0].facts["placement"] == "colocated"


def test_a_resumed_loop_counts_on_and_its_first_broadcast_is_a_version(rows: Rows) -> None:
    Trainer([[sample((7, 1))]], resumed_at=5).fit()
    assert rows("select step from spans where stage = 'step'") == [(6,)]
    assert rows("select step, version from uses") == [(6, 1)]


def test_a_step_that_an_exception_cuts_short_stays_open_and_trains_on_nothing(rows: Rows) -> None:
    with pytest.raises(ValueError, match="theirs"):
        Trainer([[sample((7, 1))], [BROKEN]]).fit()
    steps = "select step, end_ns is null from spans where stage = 'step' order by 1"
    assert rows(steps) == [(1, False), (2, True)]
    assert rows("select trajectory from uses") == [(7,)]


@pytest.mark.parametrize(
    ("tag", "judged", "expected"),
    [
        (7, False, [(7, 0.0, "reward model"), (8, 1.0, "reward model")]),
        (7, True, []),  # it came with a reward
        (None, False, [(8, 1.0, "reward model")]),
    ],
)
def test_a_reward_models_verdicts_find_their_trajectories(
    rows: Rows, tag: int | None, judged: bool, expected: list[Any]
) -> None:
    rewards = torch.tensor([0.5]) if judged else None
    Trainer([[sample(tag and (tag, 1), rewards), sample((8, 1), rewards)]]).fit()
    assert rows("select trajectory, value, component from rewards order by 1") == expected
    assert rows("select trajectory, fate from uses") == [(tag, "trained"), (8, "trained")]


def test_ratios_of_both_policies_are_told_by_sample(rows: Rows) -> None:
    """Two samples in a micro-batch, in another order than they came; the second is shorter, and
    what pads it counts for nothing."""

    @hooked("RemoteExperienceMaker")
    class Compares(Trainer):
        def make_experience(self, samples: list[Any]) -> list[Any]:
            now = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, float("nan"), 0.0]])
            then = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, 0.0, 0.0]])
            mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
            return [Experience(mask, index=[1, 0], action_log_probs=now, rollout_log_probs=then)]

    Compares([[sample((7, 1), torch.tensor([1])), sample((8, 1), torch.tensor([1]))]]).fit()
    columns = "trajectory, mean_log_ratio, sum_w, sum_w_squared"
    w = [1.0, math.exp(1.0), math.exp(-0.5)]
    assert rows(f"select {columns} from uses order by trajectory") == [
        (7, pytest.approx(-1.0), pytest.approx(math.exp(-1)), pytest.approx(math.exp(-2))),
        (8, pytest.approx(0.5 / 3), pytest.approx(sum(w)), pytest.approx(sum(x * x for x in w))),
    ]


def test_of_what_has_no_log_probs_no_ratio_is_known(rows: Rows) -> None:
    """Two micro-batches of a batch, of which one kept those of the engine."""

    @hooked("RemoteExperienceMaker")
    class Compares(Trainer):
        def make_experience(self, samples: list[Any]) -> list[Any]:
            now, mask = torch.tensor([[-1.0, -2.0]]), torch.tensor([[1, 1]])
            with_both = Experience(mask, index=[1], action_log_probs=now, rollout_log_probs=now - 1)
            return [Experience(mask, index=[0]), with_both]

    Compares([[sample((7, 1), torch.tensor([1])), sample((8, 1), torch.tensor([1]))]]).fit()
    known = rows("select trajectory, mean_log_ratio, sum_w from uses order by trajectory")
    assert known == [(7, None, None), (8, 1.0, pytest.approx(2 * math.e))]
    in_order = "select list(trajectory order by time_ns), count(distinct time_ns) from raw_uses"
    assert rows(in_order) == [([7, 8], 2)], "what the learner used first is told from the rest"
    stored = "select bool_and(sum_w::bit = repeat('1', 64)::bit) from raw_uses where trajectory = 7"
    assert rows(stored) == [(True,)], "as in space that nothing was stored in"


def test_until_its_lock_is_had_an_asynchronous_broadcast_waits(rows: Rows, run_path: Path) -> None:
    @hooked("TrainingActor")
    class Async(Trainer):
        rollout_queue = None

        def broadcast_to_vllm(self) -> None:
            super().broadcast_to_vllm()

    Async([[sample((7, 1))], [sample((8, 1))]]).fit()
    broadcasts = "from spans where name like '%broadcast%' order by start_ns, end_ns"
    assert rows(f"select name, stage {broadcasts}") == [
        ("engines before a broadcast", "wait"),
        ("TrainingActor.broadcast_to_vllm", "other"),
        ("BasePPOTrainer.broadcast_to_vllm", "sync"),
    ] * 2  # fmt: skip
    times = rows(f"select start_ns, end_ns {broadcasts}")
    for (asked, had), (whole, end), (began, over) in (times[:3], times[3:]):
        assert asked <= whole <= had <= began <= over <= end
    assert rows("select step, version from uses") == [(1, 0), (2, 1)]
    assert rltrace.open_run(run_path).processes[0].facts["placement"] == "async"


# Dynamic filtering.

GROUPS = {1: (0.2, 0.8), 2: (1.0, 1.0), 3: (0.0, 0.0), 4: (1.5, 2.5)}
DROPPED = [(n, "filtered") for n in (20, 21, 30, 31, 40, 41)]


@hooked("SamplesGenerator")
class Generator:
    """What makes a batch of groups, and drops those whose mean score is outside of (0, 1)."""

    args = Trainer.args

    def _process_response_into_experience(self, response: dict[str, Any]) -> Experience:
        return Experience(scores=torch.tensor([response["score"]]))

    def _generate_vllm(self, dataloader_iter: Any, dynamic_filtering: bool, finished: bool) -> Any:
        kept: list[Any] = []
        for group, scores in GROUPS.items():
            experiences = [
                self._process_response_into_experience(
                    {rollout.TAG: (10 * group + place, group), "score": score}
                )
                for place, score in enumerate(scores)
            ]
            if not dynamic_filtering or 0.0 < sum(scores) / len(scores) < 1.0:
                kept += experiences
        return (kept, 4, False) if finished else ([], 4, True)


@pytest.mark.parametrize(
    ("filtering", "finished", "dropped"),
    [(True, True, DROPPED), (True, False, DROPPED), (False, True, [])],
)
def test_filtered_groups_are_dropped_for_their_reason(
    rows: Rows, filtering: bool, finished: bool, dropped: list[Any]
) -> None:
    """What an unfinished batch takes with it was not filtered, and nobody trains on it."""
    Generator()._generate_vllm(None, filtering, finished)
    assert rows("select trajectory, fate from uses order by 1") == dropped


# Weights at both ends, and the models' own work.


def test_an_update_is_one_span_and_one_row_with_its_tensors(rows: Rows) -> None:
    async def update() -> None:
        actor = Engine()
        for name in "abcabc":
            await actor.update_weight(name, empty_cache=name == "c")

    asyncio.run(update())
    assert rows("select version, role, bytes, wire_bytes, buckets from syncs order by version") == [
        (1, "sink", 36, 36, 3),
        (2, "sink", 36, 36, 3),
    ]
    assert rows(
        "select p.version, p.items, p.start_ns >= y.start_ns, p.end_ns - y.end_ns, phase "
        "from spans p join syncs y using (version) order by 1"
    ) == [(1, 3, True, 0, "load"), (2, 3, True, 0, "load")]
    counted = rows("select counter, value from samples order by value")
    assert [name for name, _ in counted] == ["weights/rpc_seconds"] * 2
    assert 0 < counted[0][1] <= counted[1][1]


def test_an_update_that_was_broken_off_is_no_version(rows: Rows) -> None:
    async def update() -> None:
        actor = Engine()
        await actor.update_weight("a")
        with pytest.raises(OSError, match="broken"):
            await actor.update_weight("broken")
        for name in "ab":
            await actor.update_weight(name, empty_cache=name == "b")

    asyncio.run(update())
    assert rows("select version, bytes, buckets from syncs") == [(1, 24, 2)]


PART = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
PART.ds_numel = 7  # under ZeRO-3 a rank has a part of its elements only
WHOLE = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))


class NcclLike:
    """Stands for vLLM's PyNcclCommunicator."""


@hooked("BaseDistributedActor", "ActorPPOTrainer")
class Policy:
    """The trainer of the policy, in its actor."""

    use_cuda_ipc = False
    module = SimpleNamespace(parameters=lambda: iter((WHOLE, PART)))
    actor = SimpleNamespace(model=SimpleNamespace(module=module))

    def __init__(self, rank: int, group: Any) -> None:
        args = SimpleNamespace(vllm=SimpleNamespace(sync_backend="gloo"))
        self.strategy = SimpleNamespace(is_rank_0=lambda: rank == 0, args=args)
        self._model_update_group = group

    def broadcast_to_vllm(self) -> None: ...


@pytest.mark.parametrize(
    ("group", "transport"), [(NcclLike(), "nccl"), ("openrlhf", "gloo"), (object(), None)]
)
def test_the_first_rank_sends_the_whole_model(
    rows: Rows, run_path: Path, group: Any, transport: str | None
) -> None:
    for rank in (1, 0):
        Policy(rank, group).broadcast_to_vllm()
    assert rows("select version, role, bytes, buckets, transport from syncs") == [
        (1, "source", 24, 2, transport)
    ]
    assert rows("select version from spans") == [(1,), (1,)]
    process = rltrace.open_run(run_path).processes[0]
    assert (process.rank, process.facts["parameters"]) == (0, 12)


def test_forwards_and_training_say_how_much_they_did(rows: Rows) -> None:
    @hooked("ReferenceModelActor")
    class Reference:
        def execute_batch(
            self, method_name: str, all_data: Any, start_idx: int, end_idx: int
        ) -> None: ...

    masks = [torch.tensor([[1, 1], [1, 0]]), torch.tensor([[1, 1]])]
    Reference().execute_batch("forward", {"attention_mask": masks}, 0, 2)
    Reference().execute_batch("forward", {"attention_mask": masks}, 1, 2)
    Reference().execute_batch("append", {"experience": masks}, 0, 2)
    train = hooked("ActorPPOTrainer.ppo_train")(lambda self, kl_ctl: None)
    items = [SimpleNamespace(attention_mask=torch.tensor([1, 1, 1])) for _ in range(5)]
    for size in (5, 2):  # of two in a batch, the fifth is left out
        buffer = SimpleNamespace(items=items, sample_batch_size=size, dynamic_batch=False)
        train(SimpleNamespace(replay_buffer=buffer), 0.0)
    assert rows("select stage, items, tokens from spans order by start_ns") == [
        ("reference", 3, 5),
        ("reference", 1, 2),
        ("train", 5, 15),
        ("train", 4, None),
    ]

"""What the OpenRLHF adapter reads in the controller: steps, what became of samples, versions."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.adapters import openrlhf_controller as controller
from rltrace.testing.inside.adapters import openrlhf_fates as fates
from rltrace.testing.inside.adapters import openrlhf_rollout as rollout
from rltrace.testing.inside.hooks import recorder as recording
from tests.adapters.openrlhf_shapes import Tensor, hooked, problems, rows

pytestmark = pytest.mark.usefixtures("fresh_openrlhf")


@dataclass
class Experience:
    """OpenRLHF's, as far as it is looked at."""

    action_mask: Any = field(default_factory=lambda: Tensor(1, 1, 0))
    rewards: Any = None
    scores: Any = None
    index: Any = None
    action_log_probs: Any = None
    rollout_log_probs: Any = None


class Trainer:
    """The loop of OpenRLHF's controller, with its functions hooked."""

    args = SimpleNamespace(
        ckpt=SimpleNamespace(save_steps=2),
        train=SimpleNamespace(colocate_all=True),
        algo=SimpleNamespace(dynamic_filtering_range=(0.0, 1.0)),
    )

    def __init__(self, batches: list[list[Any]], resumed_at: int = 0) -> None:
        self.batches = batches
        self.resumed_at = resumed_at

    def _fit(self, global_step: int = 0) -> None:
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

    def _train_step(self, rollout_samples: list[Any], global_step: int) -> int:
        if rollout_samples == ["broken"]:
            raise ValueError("theirs")
        self.make_experience(rollout_samples)
        self.broadcast_to_vllm()
        return global_step + 1

    def _make_experience(self, samples: list[Any]) -> list[Any]:
        """In micro-batches of other places."""
        places = list(reversed(range(len(samples))))
        return [Experience(index=places, rewards=Tensor(*(float(place) for place in places)))]

    fit = hooked(_fit, before=controller.fit_begins, after=controller.fit_ends)
    train_step = hooked(_train_step, before=controller.train_begins, after=controller.train_ends)
    make_experience = hooked(_make_experience, after=controller.experience_made)
    init_checkpoint_states = hooked(
        lambda self: {"global_step": self.resumed_at}, after=controller.resumed
    )
    broadcast_to_vllm = hooked(lambda self: None, "sync", after=controller.weights_brought)
    generate_samples = hooked(
        lambda self: self.batches.pop(0) if self.batches else None, controller.next_batch
    )
    save_logs_and_checkpoints = hooked(
        lambda self, global_step, logs_dict: None,
        controller.saving,
        before=controller.logged,
        after=controller.step_did_more,
    )


def sample(tag: tuple[int, int] | None, rewards: Any = None) -> Experience:
    """A sample as it arrives in the controller: through pickling, which keeps what it carries."""
    process = hooked(lambda self, response: Experience(rewards=rewards), after=fates.arrived)
    experience = process(None, {} if tag is None else {rollout.TAG: tag})
    copied: Experience = pickle.loads(pickle.dumps(experience, protocol=5))
    return copied


def test_steps_tile_the_loop_and_waiting_for_a_batch_is_of_the_step_that_trains_on_it(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))], [], [sample((8, 2)), sample(None)]]).fit()
    steps = rows(run_path, "select step, start_ns, end_ns from steps")
    assert [step for step, *_ in steps] == [1, 2]
    assert steps[0][2] == steps[1][1]
    waits = rows(run_path, "select step, count(*) from spans where stage = 'wait' group by 1")
    assert sorted(waits) == [(1, 1), (2, 2), (3, 1)]  # the third time for nothing
    assert rows(run_path, "select trajectory, step, version, fate, tokens from uses") == [
        (7, 1, 0, "trained", 2),
        (8, 2, 1, "trained", 2),
        (None, 2, 1, "trained", 2),
    ]
    stages = rows(run_path, "select stage from spans where name not in ('step') order by start_ns")
    assert [stage for (stage,) in stages] == [
        *("wait", "sync", "other"),
        *("wait", "wait", "sync", "checkpoint"),
        "wait",
    ]
    assert recorder.step == -1
    assert rltrace.open_run(run_path).processes[0].facts["placement"] == "colocated"
    assert not problems(run_path)


def test_a_resumed_loop_counts_on_and_its_first_broadcast_is_a_version(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))]], resumed_at=5).fit()
    assert rows(run_path, "select step from spans where stage = 'step'") == [(6,)]
    assert rows(run_path, "select step, version from uses") == [(6, 1)]


def test_a_step_that_an_exception_cuts_short_stays_open_and_trains_on_nothing(
    recorder: recording.Recorder, run_path: Path
) -> None:
    with pytest.raises(ValueError, match="theirs"):
        Trainer([[sample((7, 1))], ["broken"]]).fit()
    assert rows(
        run_path, "select step, end_ns is null from spans where stage = 'step' order by 1"
    ) == [(1, False), (2, True)]
    assert rows(run_path, "select trajectory from uses") == [(7,)]


def test_openrlhfs_own_figures_are_counters_within_their_step(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample((7, 1))]]).fit()
    assert rows(
        run_path,
        "select counter, value from samples join steps "
        "on time_ns between steps.start_ns and steps.end_ns order by 1",
    ) == [("kl", 1.0), ("timing/broadcast", 0.5)]


@pytest.mark.parametrize("judged", [True, False])
def test_a_reward_models_verdicts_find_their_trajectories(
    recorder: recording.Recorder, run_path: Path, judged: bool
) -> None:
    """A sample that came with a reward is not judged again."""
    rewards = Tensor(0.5) if judged else None
    Trainer([[sample((7, 1), rewards), sample((8, 1), rewards)]]).fit()
    expected = [] if judged else [(7, 0.0, "reward model"), (8, 1.0, "reward model")]
    assert rows(run_path, "select trajectory, value, component from rewards order by 1") == expected


def test_ratios_of_both_policies_are_told_by_sample(
    recorder: recording.Recorder, run_path: Path
) -> None:
    """Two samples in a micro-batch, in another order than they came; the second is shorter, and
    what pads it counts for nothing."""
    torch = pytest.importorskip("torch", reason="a tensor's own arithmetic is used")

    class Compares(Trainer):
        def _make_experience(self, samples: list[Any]) -> list[Any]:
            now = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, float("nan"), 0.0]])
            then = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, 0.0, 0.0]])
            mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
            return [
                Experience(
                    action_mask=mask, index=[1, 0], action_log_probs=now, rollout_log_probs=then
                )
            ]

        make_experience = hooked(_make_experience, after=controller.experience_made)

    Compares([[sample((7, 1), Tensor(1)), sample((8, 1), Tensor(1))]]).fit()
    found = rows(
        run_path,
        "select trajectory, mean_log_ratio, sum_w, sum_w_squared from uses order by trajectory",
    )
    w = [1.0, math.exp(1.0), math.exp(-0.5)]
    assert found == [
        (7, pytest.approx(-1.0), pytest.approx(math.exp(-1)), pytest.approx(math.exp(-2))),
        (8, pytest.approx(0.5 / 3), pytest.approx(sum(w)), pytest.approx(sum(x * x for x in w))),
    ]
    assert not problems(run_path)


def test_a_batch_without_tags_is_trained_on_by_nobody_knows_whom(
    recorder: recording.Recorder, run_path: Path
) -> None:
    Trainer([[sample(None)]]).fit()
    assert rows(run_path, "select trajectory, fate from uses") == [(None, "trained")]
    assert rows(run_path, "select * from rewards") == []


# Dynamic filtering.

GROUPS = {1: (0.2, 0.8), 2: (1.0, 1.0), 3: (0.0, 0.0), 4: (1.5, 2.5)}


class Generator:
    """What makes a batch of groups, and drops those whose mean score is outside of (0, 1)."""

    args = Trainer.args

    def _generate(self, dataloader_iter: Any, dynamic_filtering: bool, finished: bool) -> Any:
        kept: list[Any] = []
        for group, scores in GROUPS.items():
            responses = [
                {rollout.TAG: (10 * group + place, group), "score": score}
                for place, score in enumerate(scores)
            ]
            experiences = [self.process(response) for response in responses]
            if not dynamic_filtering or 0.0 < sum(scores) / len(scores) < 1.0:
                kept += experiences
        return (kept, 4, False) if finished else ([], 4, True)

    process = hooked(
        lambda self, response: Experience(scores=Tensor(response["score"])),
        after=fates.arrived,
    )
    generate = hooked(_generate, before=fates.generating, after=fates.generated)


@pytest.mark.parametrize("finished", [True, False])
def test_filtered_groups_are_dropped_for_their_reason(
    recorder: recording.Recorder, run_path: Path, finished: bool
) -> None:
    """What an unfinished batch takes with it was not filtered, and nobody trains on it."""
    Generator().generate(None, dynamic_filtering=True, finished=finished)
    found = rows(run_path, "select trajectory, fate from uses order by 1")
    assert found == [
        (20, "zero-advantage"),
        (21, "zero-advantage"),
        (30, "zero-advantage"),
        (31, "zero-advantage"),
        (40, "filtered"),
        (41, "filtered"),
    ]
    assert not problems(run_path)


def test_without_filtering_nothing_is_dropped(recorder: recording.Recorder, run_path: Path) -> None:
    Generator().generate(None, dynamic_filtering=False, finished=True)
    assert rows(run_path, "select * from uses") == []

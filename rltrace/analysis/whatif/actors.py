"""The actors' chain of a replay: groups are generated, their samples call tools and are judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rltrace.analysis.whatif.events import Clock, Meter, Servers, Worker
from rltrace.analysis.whatif.workload import Batch, Workload
from rltrace.trace.vocabulary import Stage


@dataclass
class Group:
    """A group on its way: samples that are not generated yet, samples without a verdict, verdicts
    that wait to begin, and the version under which it began."""

    left: int
    unscored: int
    verdicts_s: list[float] = field(default_factory=list)
    version: int = -1


class Actors:
    """Workers that generate, servers that judge, and the pass of the reference behind them.

    `complete` is called with each group that has all its verdicts. `visible` is the policy version
    at the workers, `begun` how many groups have begun, `per_step` how many a learner step takes.
    """

    def __init__(self, workload: Workload, clock: Clock, complete: Callable[[Group], None]) -> None:
        self.load, self.clock, self._complete = workload, clock, complete
        self.meter = Meter(clock)
        engine = workload.engine
        widths = [engine.workers] if engine.pooled else [1.0] * round(engine.workers)
        self._known = [0] * len(widths)
        self.workers = [
            Worker(clock, engine, width, self.meter, self._known, number)
            for number, width in enumerate(widths)
        ]
        self.rewards = Servers(clock, workload.reward_workers, self.meter, Stage.REWARD)
        self.reference = Servers(clock, 1, self.meter, Stage.REFERENCE)
        self.groups = [_groups(batch) for batch in workload.batches]
        self.per_step = len(self.groups[0])
        self.visible = 0
        self.begun = 0
        self.generated: list[Group] = []  # whose verdicts wait for the rest of the batch
        self.generating = 0  # groups
        one_by_one = workload.streams and not workload.in_batches
        by_batch = workload.scoring == "batch"
        self.scoring = "group" if by_batch and one_by_one else workload.scoring

    def begin_group(self) -> None:
        """The next group of the workload begins, on the worker with the least to do; or each of its
        samples does, where they are spread."""
        number = self.begun
        self.begun += 1
        batch = (number // self.per_step) % len(self.groups)
        samples = self.groups[batch][number % self.per_step % len(self.groups[batch])]
        group = Group(len(samples), len(samples))
        worker = self._least_busy()
        self.generating += 1
        for tokens, env_s, verdict_s in samples:
            if self.load.spread:
                worker = self._least_busy()
            self._begin_sample(worker, group, tokens, env_s, verdict_s)

    def stop(self) -> None:
        """Generation stands still."""
        for worker in self.workers:
            worker.stop()

    def go_on(self) -> None:
        """It goes on where it stood."""
        for worker in self.workers:
            worker.resume()

    def _least_busy(self) -> Worker:
        return self.workers[self._known.index(min(self._known))]

    def _begin_sample(
        self, worker: Worker, group: Group, tokens: float, env_s: float, verdict_s: float
    ) -> None:
        def begun() -> None:
            if group.version < 0:
                group.version = self.visible

        def ended() -> None:
            self._sample_ended(group, verdict_s)

        if not env_s > 0:
            worker.submit(tokens, begun, ended)
            return

        def called() -> None:
            self.clock.after(env_s, lambda: worker.go_on(tokens / 2, ended))

        worker.submit(tokens / 2, begun, called, calls=True)  # the tool answers halfway

    def _sample_ended(self, group: Group, verdict_s: float) -> None:
        group.left -= 1
        group.verdicts_s.append(verdict_s)
        self.generating -= group.left == 0
        if self.scoring == "sample" or not group.left:
            self.generated.append(group)
        if self.scoring != "batch" or not self.generating:
            complete, self.generated = self.generated, []
            for one in complete:
                self._judge(one)

    def _judge(self, group: Group) -> None:
        def done() -> None:
            group.unscored -= 1
            if not group.unscored:
                share_s = self.load.reference_s / self.per_step
                self.reference.serve(share_s, lambda: self._complete(group))

        verdicts_s, group.verdicts_s = group.verdicts_s, []
        for seconds in verdicts_s:
            self.rewards.serve(seconds, done)


def _groups(batch: Batch) -> list[list[tuple[float, float, float]]]:
    """The samples of each group: tokens, seconds of tools, seconds of the verdict."""
    groups: dict[int, list[tuple[float, float, float]]] = {}
    columns = batch.tokens.tolist(), batch.env_s.tolist(), batch.verdict_s.tolist()
    for group, sample in zip(batch.group, zip(*columns, strict=True), strict=True):
        groups.setdefault(group, []).append(sample)
    return list(groups.values())

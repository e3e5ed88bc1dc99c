"""Plays a workload out: which process did what when, step by step."""

from __future__ import annotations

import numpy as np

from benchmarks.synthetic.files import (
    WEIGHTS_LANE,
    Ints,
    PlayedBatch,
    StepPlan,
    Timeline,
    Worker,
    period_ns,
)
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.trace import (
    Fate,
    Finish,
    Outcome,
    Phase,
    Stage,
    SyncRole,
    Transport,
    word,
)
from rltrace.testing.run_files import MAIN_LANE, SECOND, START_NS, Column, Interval


def ids(kind: int, numbers: Ints) -> Ints:
    """64-bit ids as a hash of a framework's own ids would look."""
    mixed = (numbers.astype(np.uint64) + np.uint64(kind << 48)) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(1)).astype(np.int64)


def play(load: Workload, again: bool = False) -> Timeline:
    """Deterministic in the seed of `load`; times are Unix ns. `again`: its steps come once more."""
    return _Player(load, again).run()


class _Player:
    def __init__(self, load: Workload, again: bool) -> None:
        self.load, self.again = load, again
        self.rng = np.random.default_rng(load.seed)
        gpus, half = range(load.gpus), (load.gpus + 1) // 2
        shared = load.placement == "colocated"

        def pool(role: str, count: int, of: range) -> list[Worker]:
            return [Worker(role, i, i % load.nodes, tuple(of[i::count])) for i in range(count)]

        self.driver = Worker("driver", 0, 0)
        self.rollout = pool("rollout", load.rollout_workers, gpus if shared else gpus[:half])
        self.reward = pool("reward", load.reward_workers, gpus[:0])
        self.learners = pool("learner", load.learners, gpus if shared else gpus[half:])
        self.agents = pool("agent", load.nodes, gpus[:0])
        self.live = list(self.rollout)
        self.steps: list[StepPlan] = []
        self.batches: list[PlayedBatch] = []

    def run(self) -> Timeline:
        now = START_NS + 3 * SECOND
        for step in range(self.load.steps):
            now = self._step(step, now)
        self._uses()
        self._samples(now)
        processes = [self.driver, *self.rollout, *self.reward, *self.learners, *self.agents]
        return Timeline(processes, self.steps, self.batches)

    def _slow(self, step: int) -> float:
        return self.load.warmup_factor if step < self.load.warmup_steps else 1.0

    def _seconds(self, seconds: float, step: int) -> int:
        """A stage's length in this step, ns."""
        drawn = np.exp(self.load.jitter * self.rng.standard_normal())
        return int(seconds * self._slow(step) * drawn * SECOND)

    def _step(self, step: int, start: int) -> int:
        load = self.load
        plan = StepPlan(step, (start, start), step < load.warmup_steps)
        self.steps.append(plan)
        learning = [
            (Stage.REFERENCE, "compute_ref_log_prob", self._seconds(load.reference_s, step)),
            (Stage.LOGPROB, "compute_log_prob", self._seconds(load.logprob_s, step)),
            (Stage.TRAIN, "update_actor", self._seconds(load.train_s, step)),
        ]
        sync = self._seconds(load.sync_s, step)
        if load.placement == "colocated":
            now = self._switch(plan, start, "wake_up")
            now = self._actors(plan, now)
            now = self._learn(plan, now, learning)
            now = self._switch(plan, now, "sleep")
            now = self._sync(plan, now, sync)
        elif load.placement == "disaggregated":
            ready = self._actors(plan, start)
            work = sum(length for _, _, length in learning)
            hidden = min(int(load.train_overlap * work), ready - start)
            now = self._learn(plan, ready - hidden, learning)
            now = self._sync(plan, max(now, ready), sync)
        else:
            is_async = load.placement == "async"
            ready = self._actors(plan, start)
            done = self._learn(plan, start, learning)
            done = self._sync(plan, done, sync) if is_async else done
            now = max(ready, done)
            if now > done:
                self._span(plan, [self.driver], (done, now), "queue: rollout", Stage.WAIT)
            if now > ready:
                self._span(plan, self.live, (ready, now), "queue: learner", Stage.WAIT)
            now = now if is_async else self._sync(plan, now, sync)
        now += self._seconds(load.gap_s, step)
        plan.window = (start, now)
        self.driver.span(plan.window, "step", Stage.STEP, step)
        return now

    def _actors(self, plan: StepPlan, start: int) -> int:
        """Generation and verdicts from `start`; returns when the last verdict is in."""
        load, step = self.load, plan.step
        batch = self._batch(plan, start)
        alive = batch.alive
        ended = int(batch.end[alive].max())
        for worker in self.live:
            mine = batch.worker == worker.rank
            if alive[mine].all():
                work = (start, int(batch.end[mine].max()))
                tokens = int(batch.tokens[mine].sum())
                worker.span(work, "generate_sequences", Stage.ROLLOUT, step, tokens=tokens)
                worker.inner.append(work)
            else:
                worker.span((start, -1), "generate_sequences", Stage.ROLLOUT, step)
            for i in np.flatnonzero(mine & (batch.env > 0)):
                called = int(batch.start[i] + 0.3 * (batch.end[i] - batch.start[i]))
                work = (called, called + int(batch.env[i]))
                worker.span(work, "tool_call", Stage.ENV, step, lane=int(batch.trajectory[i]))
                plan.stages.setdefault(Stage.ENV, []).append(work)
        plan.stages[Stage.ROLLOUT] = [(start, ended)]
        self._trajectories(batch)
        if step == load.kill_step:
            self.live.pop(0)
        asked = batch.end[alive] if load.reward_streamed else np.full(alive.sum(), ended, np.int64)
        return self._verdicts(plan, batch, asked)

    def _batch(self, plan: StepPlan, start: int) -> PlayedBatch:
        load, rng, step = self.load, self.rng, plan.step
        n = load.prompts * load.group
        lengths = load.median_tokens * np.exp(load.sigma * rng.standard_normal(n))
        tokens = np.clip(lengths, 1, load.max_tokens).astype(np.int64)
        seconds = (load.first_token_s + tokens * load.seconds_per_token) * self._slow(step)
        spent = (seconds * SECOND).astype(np.int64)
        env = np.zeros(n, np.int64)
        if load.env_s:
            asked = load.env_s * np.exp(0.5 * rng.standard_normal(n)) * SECOND
            env = np.minimum(asked.astype(np.int64), spent // 2)
        dead = 0 <= load.kill_step < step
        worker = np.arange(n) % (load.rollout_workers - dead) + dead
        number = step * n + np.arange(n)
        version = np.full(n, step)
        if load.placement == "async" and step:
            version -= rng.random(n) < load.mixed
        version[rng.random(n) < load.unknown_versions] = -1
        lag = np.full(n, int(load.placement == "one-step-off"))
        if load.placement == "async":
            lag = rng.choice(len(load.lags), n, p=np.asarray(load.lags) / sum(load.lags))
        batch = PlayedBatch(
            step=step,
            trajectory=ids(1, number),
            group=ids(2, number // load.group),
            tokens=tokens,
            start=np.full(n, start),
            end=start + spent,
            env=env,
            worker=worker,
            alive=(worker != 0) | (step != load.kill_step),
            first_version=version,
            used_step=step + lag.astype(np.int64),
            fate=np.full(n, int(Fate.TRAINED)),
            value=(rng.random(n) < 0.5).astype(np.float64),
        )
        self._fates(batch)
        self.batches.append(batch)
        return batch

    def _fates(self, batch: PlayedBatch) -> None:
        """Draw rewards and drops; a group is either mixed for sure or equal for sure."""
        load, rng = self.load, self.rng
        value = batch.value.reshape(load.prompts, load.group)
        if load.group > 1:
            value[:, 0], value[:, 1] = 1.0, 0.0
        value[rng.random(load.prompts) < load.zero_groups] = 0.0
        draw, edge = rng.random(len(batch.fate)), 0.0
        for reason, share in load.dropped:
            code = int(Fate[reason.upper().replace("-", "_")])
            batch.fate[(draw >= edge) & (draw < edge + share)] = code
            edge += share
        if load.zero_groups_dropped:
            equal = np.repeat(value.max(axis=1) == value.min(axis=1), load.group)
            batch.fate[equal] = int(Fate.ZERO_ADVANTAGE)

    def _trajectories(self, batch: PlayedBatch) -> None:
        load, alive, n = self.load, batch.alive, len(batch.alive)
        capped = np.where(batch.tokens >= load.max_tokens, Finish.LENGTH, Finish.STOP)
        columns: dict[str, Column] = {
            "start_ns": batch.start,
            "first_token_ns": np.where(alive, batch.start + int(load.first_token_s * SECOND), -1),
            "end_ns": np.where(alive, batch.end, -1),
            "trajectory": batch.trajectory,
            "group": batch.group,
            "prompt": batch.group,
            "first_version": batch.first_version,
            "last_version": np.where(batch.first_version < 0, -1, batch.step),
            "prompt_tokens": np.full(n, load.prompt_tokens),
            "response_tokens": np.where(alive, batch.tokens, -1),
            "turns": 1 + (batch.env > 0),
            "env_ns": np.where(alive, batch.env, -1),
            "finish": np.where(alive, capped, -1),
            **dict.fromkeys(("token_ids", "logprobs"), np.ones(n, np.int64)),
        }
        for worker in self.live:
            mine = batch.worker == worker.rank
            worker.rows("trajectories", **{name: v[mine] for name, v in columns.items()})

    def _verdicts(self, plan: StepPlan, batch: PlayedBatch, asked: Ints) -> int:
        load, rng, n = self.load, self.rng, len(asked)
        spread = np.exp(load.reward_sigma * rng.standard_normal(n))
        ended = asked + (load.reward_s * self._slow(plan.step) * spread * SECOND).astype(np.int64)
        outcome = np.where(rng.random(n) < load.reward_timeouts, Outcome.TIMEOUT, Outcome.OK)
        trajectory, value = batch.trajectory[batch.alive], batch.value[batch.alive]
        plan.stages[Stage.REWARD] = list(zip(asked.tolist(), ended.tolist(), strict=True))
        for worker in self.reward:
            mine = slice(worker.rank, None, len(self.reward))
            for work, lane in zip(plan.stages[Stage.REWARD][mine], trajectory[mine], strict=True):
                worker.span(work, "compute_score", Stage.REWARD, plan.step, lane=int(lane))
            worker.rows(
                "rewards",
                start_ns=asked[mine],
                end_ns=ended[mine],
                trajectory=trajectory[mine],
                component=np.full(len(asked[mine]), "correct"),
                value=value[mine],
                outcome=outcome[mine],
            )
        return int(ended.max())

    def _learn(self, plan: StepPlan, start: int, work: list[tuple[Stage, str, int]]) -> int:
        for stage, name, length in work:
            self._span(plan, self.learners, (start, start + length), name, stage)
            start += length
        return start

    def _switch(self, plan: StepPlan, start: int, name: str) -> int:
        end = start + self._seconds(self.load.switch_s / 2, plan.step)
        self._span(plan, self.live, (start, end), name, Stage.SWITCH)
        return end

    def _span(
        self, plan: StepPlan, of: list[Worker], interval: Interval, name: str, stage: Stage
    ) -> None:
        for process in of:
            process.span(interval, name, stage, plan.step)
        plan.stages.setdefault(stage, []).append(interval)

    def _sync(self, plan: StepPlan, start: int, length: int) -> int:
        load, step, end = self.load, plan.step, start + length
        cuts = start + (np.array([0.0, 0.2, 0.3, 0.8, 0.95, 1.0]) * length).astype(np.int64)
        parts = {p: (int(cuts[p]), int(cuts[p + 1])) for p in Phase}
        source = self.learners[0]
        source.span((start, end), "update_weights", Stage.SYNC, step, size=load.sync_bytes)
        sends = (Phase.GATHER, Phase.CONVERT, Phase.TRANSFER)
        for process in (source, *self.live):
            lane = MAIN_LANE if process is source else WEIGHTS_LANE
            for p in sends if process is source else Phase:
                process.span(parts[p], word(p), Stage.SYNC, step, phase=int(p), lane=lane)
            process.rows(
                "syncs",
                start_ns=np.array([start]),
                end_ns=np.array([end]),
                version=np.array([step + 1]),
                role=np.array([int(SyncRole.SOURCE if process is source else SyncRole.SINK)]),
                stall_ns=np.array([int(load.stall_s * SECOND)]),
                bytes=np.array([load.sync_bytes]),
                wire_bytes=np.array([load.sync_bytes]),
                buckets=np.array([64]),
                transport=np.array([int(Transport.NCCL)]),
            )
        plan.stages[Stage.SYNC] = [(start, end)]
        return end

    def _uses(self) -> None:
        """Write each sample's fate in the step that met it; steps after the last never come, unless
        the steps are repeated: then the first ones follow."""
        ends = {plan.step: plan.window[1] for plan in self.steps}
        if self.again:
            period = period_ns(self.steps)
            ends |= {step + len(self.steps): end + period for step, end in ends.items()}
        for batch in self.batches:
            for step in (step for step in np.unique(batch.used_step) if step in ends):
                mine = (batch.used_step == step) & batch.alive
                n = int(mine.sum())
                w = 1.0 + 0.05 * self.rng.standard_normal(n)
                self.learners[0].rows(
                    "uses",
                    time_ns=np.full(n, ends[step] - SECOND // 1000),
                    trajectory=batch.trajectory[mine],
                    step=np.full(n, step),
                    version=np.full(n, step),
                    fate=batch.fate[mine],
                    tokens=batch.tokens[mine],
                    mean_log_ratio=0.01 * self.rng.standard_normal(n),
                    clip_share=self.rng.random(n) * 0.1,
                    sum_w=w * batch.tokens[mine],
                    sum_w_squared=w * w * batch.tokens[mine],
                )

    def _samples(self, end: int) -> None:
        """A reading of each GPU, and of the node's threads, every second by the node's agent."""
        times = np.arange(START_NS, end, SECOND, dtype=np.int64)

        def read(agent: Worker, counter: str, devices: list[int], values: Column) -> None:
            agent.rows(
                "samples",
                time_ns=np.repeat(times, len(devices)),
                counter=np.full(len(values), counter),
                device=np.tile(np.asarray(devices), len(times)),
                value=values,
            )

        threads = float(self.load.runnable_threads)
        for agent in self.agents:
            if threads >= 0:
                read(agent, "host/runnable_threads", [-1], np.full(len(times), threads))
            devices = list(range(agent.node, self.load.gpus, self.load.nodes))
            if devices:
                busy = self.rng.uniform(40, 100, len(times) * len(devices))
                read(agent, "gpu/busy_percent", devices, busy)

"""The API of samples and weights: `trajectory`, `reward`, `use`, ...

Ids (of trajectories, groups, prompts) are whatever the loop uses: str, int or bytes.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would cost every process 2 ms
from time import monotonic_ns

from rltrace.hooks import recorder as _recorder
from rltrace.hooks.null_api import IDLE, stays_out_of_graphs
from rltrace.hooks.spans import Span, codes_of, stored
from rltrace.trace.job_exceptions import from_outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias

    Id: TypeAlias = str | int | bytes


def identify(value: str | int | bytes) -> int:
    """A signed 64-bit hash of a framework's own id, the same in every process and run: under it
    trajectories, groups and prompts meet. Numbers and their text are one id: `identify(7) ==
    identify("7")`. Never -1, which means unknown."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
    number = int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
    return number if number != -1 else -2


@stays_out_of_graphs
def trajectory(
    id: Id,
    *,
    group: Id | None = None,
    prompt: Id | None = None,
    task: Id | None = None,
    environment: Id | None = None,
    version: int | None = None,
    reference_version: int | None = None,
    prompt_tokens: int | None = None,
    token_ids: bool | None = None,
    logprobs: bool | None = None,
    prompt_token_ids: Sequence[int] | None = None,
) -> OpenTrajectory:
    """One sample's generation, from this call to `.finish(...)` or the end of the `with` block.
    `version` is the policy version that generates it (default: the process's); `token_ids` and
    `logprobs` say whether the server's own were kept. The ids of the prompt's tokens are kept only
    where they were asked for (`rltrace wrap --capture-tokens`)."""
    if _recorder._active is None:
        return _IDLE_TRAJECTORY
    row: OpenTrajectory = _row(
        OpenTrajectory, "trajectories", trajectory=id, group=group, prompt=prompt, task=task,
        environment=environment, first_version=version, reference_version=reference_version,
        prompt_tokens=prompt_tokens, token_ids=token_ids, logprobs=logprobs,
    )  # fmt: skip
    if prompt_token_ids is not None and row is not _IDLE_TRAJECTORY:
        row._capture(prompt_token_ids, None)
    return row


class OpenTrajectory(Span):
    """An open trajectory."""

    __slots__ = ()

    def first_token(self) -> None:
        """The first response token is here."""
        self.set(first_token_ns=monotonic_ns())

    def finish(
        self,
        finish: str = "stop",
        *,
        response_tokens: int | None = None,
        version: int | None = None,
        turns: int | None = None,
        env_ns: int | None = None,
        preemptions: int | None = None,
        response_token_ids: Sequence[int] | None = None,
    ) -> None:
        """Generation has ended: `finish` is "stop", "length", "abort", "timeout" or "error";
        `version` is the policy version of the last token (default: the process's, if it took these
        weights, or that is also the first token's). Token ids are kept as the prompt's."""
        recorder = _recorder._active
        if version is None and recorder is not None and recorder.version != -1:
            # What a learner in this process has sent is not what a thread of it generates with.
            first = self._batch.columns[self._batch.places["first_version"]][self._slot]
            if recorder.takes_weights or recorder.version == first:
                version = recorder.version
        values = {
            "finish": _code("Finish", finish),
            "response_tokens": response_tokens,
            "last_version": version,
            "turns": turns,
            "env_ns": env_ns,
            "preemptions": preemptions,
            "end_ns": monotonic_ns(),
        }
        self.set(**{k: v for k, v in values.items() if v is not None})
        if response_token_ids is not None:
            self._capture(None, response_token_ids)

    def _capture(self, prompt: Any, response: Any) -> None:
        recorder = _recorder._active
        if recorder is not None:
            recorder.capture(self, prompt, response)

    def end(self) -> None:
        """Ends it now, unless `finish` has: how is then unknown."""
        self._close(None)

    def __exit__(self, *error: object) -> None:
        self._close(error[0])

    def _close(self, error: object) -> None:
        try:  # written out, as is what records each sample: `contained` is two calls
            if self._batch.columns[self._batch.places["end_ns"]][self._slot] != -1:
                return
        except Exception as failed:
            if from_outside(failed):
                raise
            return
        if error is not None:
            self.finish("error")
        else:
            self.set(end_ns=monotonic_ns())


@stays_out_of_graphs
def reward(
    trajectory: Id,
    value: float | None = None,
    *,
    component: str | None = None,
    outcome: str | None = None,
) -> OpenReward:
    """A verdict on a sample. `rltrace.reward(id, 0.5)` records one at this instant; as a `with`
    block it is timed, and `.set(value=...)` completes it. `outcome` is "ok", "timeout" or "error"
    (default: "ok", or "error" when the block raises)."""
    if _recorder._active is None:
        return _IDLE_REWARD
    now_ns = monotonic_ns()
    row: OpenReward = _row(
        OpenReward, "rewards", start_ns=now_ns, trajectory=trajectory, component=component,
        value=value, outcome=_code("Outcome", "ok" if outcome is None else outcome), end_ns=now_ns,
    )  # fmt: skip
    return row


class OpenReward(Span):
    """A verdict being reached."""

    __slots__ = ()

    def __enter__(self) -> OpenReward:
        self.set(end_ns=-1)
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.set(outcome=codes_of("Outcome")["error"])
        self.end()


@stays_out_of_graphs
def use(
    trajectory: Id,
    fate: str = "trained",
    *,
    step: int | None = None,
    version: int | None = None,
    tokens: int | None = None,
    mean_log_ratio: float | None = None,
    clip_share: float | None = None,
    sum_w: float | None = None,
    sum_w_squared: float | None = None,
) -> None:
    """What the learner did with a sample: `fate` is "trained", or why it was dropped: "stale",
    "zero-advantage", "filtered", "truncated", "failed". `version` is the version that trains
    (default: the process's), so that lag = version - the version that generated. The ratio
    statistics are of w = exp(log-prob now - log-prob at generation) over its response tokens."""
    recorder = _recorder._active
    if recorder is None:
        return
    _row(
        Span, "uses", time_ns=monotonic_ns(), trajectory=trajectory,
        step=recorder.step if step is None else step,
        version=recorder.version if version is None else version, fate=_code("Fate", fate),
        tokens=tokens, mean_log_ratio=mean_log_ratio, clip_share=clip_share, sum_w=sum_w,
        sum_w_squared=sum_w_squared,
    )  # fmt: skip


@stays_out_of_graphs
def weight_update(
    version: int,
    *,
    role: str = "source",
    transport: str | None = None,
    bytes: int | None = None,
    wire_bytes: int | None = None,
    buckets: int | None = None,
    stall_ns: int | None = None,
    checksum: int | None = None,
) -> WeightUpdate:
    """This process's part in making policy version `version` visible to rollout: a `with` block.
    When it ends, `version` is the process's version. `role` is "source", "relay" or "sink"; `bytes`
    are the weights', `wire_bytes` what was sent; `stall_ns` is how long the role stood still."""
    if _recorder._active is None:
        return _IDLE_UPDATE
    row: WeightUpdate = _row(
        WeightUpdate, "syncs", version=version, role=_code("SyncRole", role),
        transport=_code("Transport", transport), bytes=bytes, wire_bytes=wire_bytes,
        buckets=buckets, stall_ns=stall_ns, checksum=checksum,
    )  # fmt: skip
    return row


class WeightUpdate(Span):
    """A weight update in progress."""

    __slots__ = ()

    def __exit__(self, *error: object) -> None:
        self.end()
        recorder = _recorder._active
        if error[0] is None and recorder is not None:
            recorder.version, role = stored(self, "version", "role")
            recorder.takes_weights = role != _code("SyncRole", "source")


@stays_out_of_graphs
def counter(name: str, value: float, device: int | None = None) -> None:
    """A reading of a counter, now; `device` is the index of the GPU that it is of."""
    if _recorder._active is not None:
        now_ns = monotonic_ns()
        _row(Span, "samples", time_ns=now_ns, counter=name, value=value, device=device)


_IDS = frozenset({"trajectory", "group", "prompt", "task", "environment"})
_NAMES = frozenset({"component", "counter"})


def _row(kind: type[Any], table: str, **values: Any) -> Any:
    """Stores the known columns; ids are hashed, names resolved; the marker is now by default."""
    recorder = _recorder._active
    if recorder is None:
        return IDLE
    try:
        known: dict[str, Any] = {}
        for column, value in values.items():
            if value is None:
                continue
            if column in _IDS:
                known[column] = identify(value)
            elif column in _NAMES:
                known[column] = recorder.name(value)
            else:
                known[column] = value
        if table == "trajectories" and "first_version" not in known:
            known["first_version"] = recorder.version
        if "start_ns" not in known and "time_ns" not in known:
            known["start_ns"] = monotonic_ns()
        row: Any = recorder.tables[table].store(known)
        row.__class__ = kind
        return row
    except Exception as error:
        if from_outside(error):
            raise
        recorder.failed(error)
        return IDLE


def _code(enum: str, word: str | None) -> int | None:
    """The code of a word; what the vocabulary does not have is said, and left unknown."""
    if word is None or _recorder._active is None:
        return None
    try:
        code = codes_of(enum).get(word) if isinstance(word, str) else None
        if code is None:
            _recorder.unknown_word(enum, word)
        return code
    except Exception as error:  # it was no word, and cannot even be printed
        if from_outside(error):
            raise
        _recorder.failed(error)
        return None


# An idle object does all that these do: nothing.
_IDLE_TRAJECTORY: OpenTrajectory = IDLE  # type: ignore[assignment]
_IDLE_REWARD: OpenReward = IDLE  # type: ignore[assignment]
_IDLE_UPDATE: WeightUpdate = IDLE  # type: ignore[assignment]

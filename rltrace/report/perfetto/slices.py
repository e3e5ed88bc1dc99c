"""The rows of a run as slices: steps, spans, samples, weight updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.summary import summary_of
from rltrace.analysis.timeline.critical_path import PathSegment
from rltrace.report.perfetto import scene as scenes
from rltrace.report.perfetto.scene import OPEN, Ints, Note, Scene, SceneRows, Slices, word_of
from rltrace.trace.read.run import OpenedRun
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Finish, Outcome, Phase, Stage, SyncRole, Transport

# The order of what is of the run; next come the processes, whose rows have an order too.
STEPS, PATH, VERSIONS, COUNTERS = range(4)
TITLES = ("steps", "critical path", "policy versions")
TRAJECTORIES, REWARDS, USES, UPDATES, PHASES, PROFILES = range(6)
_SQL = packaged_toml("report/perfetto/slices.toml")
_NOTED = ("step", "version", "tokens", "bytes", "items")
_COLUMNS = f"process, lane, start_ns, end_ns, name, stage, phase, {', '.join(_NOTED)}"
_IS_PHASE = f"(stage = {Stage.SYNC:d} AND phase <> -1)"


def steps(scene: Scene, run: OpenedRun, findings: StepFindings | None) -> Slices:
    """The learner's steps, on top of everything, with what the analysis says of them."""
    rows = SceneRows(
        scene, run.ask_columns(f"SELECT {_COLUMNS} FROM raw_spans WHERE stage = {Stage.STEP:d}")
    )
    several = len(np.unique(rows["process"])) > 1

    def track(process: int, _row: int) -> int:
        name = f"steps of {scene.processes[process].name}" if several else TITLES[STEPS]
        return scene.row(None, name, STEPS)

    notes = rows.integers(*_NOTED)
    if findings is not None:
        notes += findings.notes(scene, rows["process"], rows.start)
    return rows.slices(
        scene.each(track, rows["process"], rows.packed()),
        scene.names.column(rows["step"], lambda n: "step" if n < 0 else f"step {n}"),
        "step",
        *notes,
    )


def path(scene: Scene, findings: StepFindings | None) -> Slices:
    """The critical path: what the end of the run waited for, back to its start."""
    segments = () if findings is None else findings.path
    names = ("unknown" if s.stage is None else word_of(Stage, s.stage) for s in segments)
    track = scene.row(None, TITLES[PATH], PATH) if segments else 0
    where = [scene.processes[s.process].name if s.process >= 0 else "" for s in segments]
    return Slices(
        track=np.full(len(segments), track, np.int64),
        start=np.array([s.start_ns for s in segments], np.int64),
        end=np.array([s.end_ns for s in segments], np.int64),
        name=scene.names.all(names),
        category=np.full(len(segments), scene.categories.id("critical path"), np.int64),
        notes=(
            scene.told("because", [s.what for s in segments]),
            scene.told("process", where),
            scene.colour(np.array([-1 if s.stage is None else s.stage for s in segments])),
        ),
    )


def spans(scene: Scene, run: OpenedRun, texts: dict[int, str]) -> Slices:
    """All other spans but phases of weight updates: a track a lane, more for those that cross."""
    others = f"stage <> {Stage.STEP:d} AND NOT {_IS_PHASE}"
    columns = scenes.narrow(run, _COLUMNS, f"raw_spans WHERE {others}")
    rows = SceneRows(scene, columns)
    lane, first = scenes.number(rows["process"], columns.pop("lane"))
    order = scenes.outer_first(rows.start, rows.end, lane)
    process = rows["process"][first]
    place = _pack_lanes(process, lane, rows, order)
    of_lane = scene.each(lambda p, _: scene.thread(p), process, place)
    track = of_lane[lane]
    extra = scenes.nest(lane, rows.start, rows.end, order)
    crossing = np.flatnonzero(extra)
    of_crossing = lane[crossing]
    keys = process[of_crossing], place[of_crossing], extra[crossing]
    track[crossing] = scene.each(lambda p, *_: scene.row(p, "overlapping spans"), *keys)
    return Slices(
        track=track,
        start=rows.start,
        end=rows.end,
        name=scene.names.column(rows["name"], lambda n: texts.get(n, "?")),
        category=scene.categories.column(rows["stage"], lambda code: word_of(Stage, code)),
        notes=(*rows.integers(*_NOTED), *rows.codes(phase=Phase), scene.colour(rows["stage"])),
    )


def phases(scene: Scene, run: OpenedRun, texts: dict[int, str]) -> Slices:
    rows = SceneRows(scene, run.ask_columns(f"SELECT {_COLUMNS} FROM raw_spans WHERE {_IS_PHASE}"))
    return rows.slices(
        rows.on_rows("phases of weight updates", PHASES),
        scene.names.column(rows["phase"], lambda code: word_of(Phase, code)),
        "sync",
        *rows.integers(*_NOTED),
        rows.words("name", lambda n: texts.get(n, "?")),
        scene.colour(rows["stage"]),
    )


def _pack_lanes(process: NDArray[Any], lane: Ints, rows: SceneRows, order: Ints) -> Ints:
    """For each lane its track in its process: lanes that do not last at one time share one."""
    begins = np.flatnonzero(np.diff(lane[order], prepend=-1))
    if not len(begins):
        return begins
    last = np.maximum.reduceat(rows.end[order], begins)
    return scenes.pack_each(process, rows.start[order[begins]], last)


def trajectories(scene: Scene, run: OpenedRun) -> Slices:
    """Samples being generated, named by the policy versions that wrote them."""
    rows = SceneRows(scene, run.ask_columns(_SQL["trajectories"]))
    versions, first = scenes.number(rows["first_version"], rows["last_version"])

    def name(nth: int) -> str:
        begun, last = (int(rows[f"{end}_version"][first[nth]]) for end in ("first", "last"))
        if begun < 0:
            return "trajectory"
        return f"trajectory v{begun}" + f" to v{last}" * (last not in (begun, -1))

    return rows.slices(
        rows.on_rows("trajectories", TRAJECTORIES),
        scene.names.column(versions, name),
        "trajectory",
        *rows.integers("trajectory", "group", "prompt", "first_version", "last_version"),
        *rows.integers("prompt_tokens", "response_tokens", "turns", "env_ns", "preemptions"),
        *rows.integers("to_first_token_ns", "used_in_step", "used_by_version"),
        *rows.nullable("lag_versions", "waited_ns"),
        *rows.codes(finish=Finish, fate=Fate),
        rows.coloured(Stage.ROLLOUT),
        of=("trajectory",),
    )


def rewards(scene: Scene, run: OpenedRun, texts: dict[int, str]) -> Slices:
    columns = "process, start_ns, end_ns, trajectory, component, value, outcome"
    rows = SceneRows(scene, run.ask_columns(f"SELECT {columns} FROM raw_rewards"))
    return rows.slices(
        rows.on_rows("rewards", REWARDS),
        scene.names.column(rows["component"], lambda n: texts.get(n, "reward")),
        "sample reward",
        *rows.integers("trajectory"),
        rows.double("value"),
        *rows.codes(outcome=Outcome),
        rows.coloured(Stage.REWARD),
        of=("trajectory",),
    )


def uses(scene: Scene, run: OpenedRun) -> Slices:
    """The moments at which the learner took or dropped a sample, and how old it was."""
    rows = SceneRows(scene, run.ask_columns(_SQL["uses"]))
    return rows.slices(
        scene.each(lambda process: scene.row(process, "samples used", USES), rows["process"]),
        scene.names.column(rows["fate"], lambda code: word_of(Fate, code)),
        "use",
        *rows.integers("trajectory", "step", "version", "tokens"),
        *rows.nullable("lag_versions", "waited_ns"),
        scene.colour(np.where(rows["fate"] == Fate.TRAINED, Stage.TRAIN, -1)),
        of=("trajectory", "version", "fate"),
        moments=True,
    )


def parts(scene: Scene, run: OpenedRun) -> Slices:
    rate = "CASE WHEN bytes >= 0 AND end_ns > start_ns THEN bytes / (end_ns - start_ns) END"
    columns = "process, start_ns, end_ns, version, role, stall_ns, bytes, wire_bytes, buckets"
    rows = SceneRows(
        scene, run.ask_columns(f"SELECT {columns}, transport, {rate} AS gb_per_s FROM raw_syncs")
    )
    return rows.slices(
        rows.on_rows("weight updates", UPDATES),
        scene.names.column(rows["version"], lambda n: "weights" if n < 0 else f"weights v{n}"),
        "weight update",
        *rows.integers("version", "stall_ns", "bytes", "wire_bytes", "buckets"),
        rows.double("gb_per_s"),
        *rows.codes(role=SyncRole, transport=Transport),
        rows.coloured(Stage.SYNC),
        of=("version", "role"),
    )


def versions(scene: Scene, run: OpenedRun, parts: Slices, place: Ints) -> Slices:
    """Each version on its way, from its first part to its last. `place` is as of `places`."""
    count = int(place.max(initial=-1)) + 1
    known = np.flatnonzero(place >= 0)
    place = place[known]
    start, end = np.full(count, OPEN), np.zeros(count, np.int64)
    np.minimum.at(start, place, parts.start[known])
    np.maximum.at(end, place, parts.end[known])
    version = np.zeros(count, np.int64)
    version[place] = parts.of["version"][known]
    rows = scenes.pack(start, end)
    return Slices(
        track=scene.each(lambda _row: scene.row(None, TITLES[VERSIONS], VERSIONS), rows),
        start=start,
        end=end,
        name=scene.names.column(version, lambda n: f"v{n} on its way"),
        category=np.full(count, scene.categories.id("policy version"), np.int64),
        notes=(
            scene.note("version", version),
            scene.note("participants", np.bincount(place, minlength=count)),
            *_made_of(scene, run, version),
            scene.colour(np.full(count, Stage.SYNC)),
        ),
        of={"version": version},
    )


def places(parts: Slices) -> Ints:
    """For each part the number of its update, in the order of their first parts; -1: unknown. A
    version comes again where a source begins with it after its parts ended and another came in
    between."""
    numbers = np.full(len(parts), -1, np.int64)
    current: dict[int, tuple[int, int, int]] = {}  # by version: its number, its end, sources so far
    sources, last, made = 0, -1, 0
    for i in np.argsort(parts.start, kind="stable").tolist():
        version, end = int(parts.of["version"][i]), int(parts.end[i])
        if version < 0:
            continue
        is_source = bool(parts.of["role"][i] == SyncRole.SOURCE)
        if is_source and version != last:
            sources, last = sources + 1, version
        known = current.get(version)
        if known is None or (is_source and parts.start[i] > known[1] and sources > known[2]):
            known, made = (made, end, sources), made + 1
        current[version] = (known[0], max(known[1], end), sources if is_source else known[2])
        numbers[i] = known[0]
    return numbers


def _made_of(scene: Scene, run: OpenedRun, version: Ints) -> list[Note]:
    facts = run.ask_columns(_SQL["made_of"].format(Fate=Fate))
    row_of = {int(v): row for row, v in enumerate(facts.pop("version"))}
    rows = np.array([row_of.get(int(v), -1) for v in version], np.int64)
    notes = []
    for title, column in facts.items():
        if len(column):
            known = (rows >= 0) & ~np.ma.getmaskarray(column)[rows]
            notes.append(scene.note(title, np.ma.getdata(column)[rows], known))
    return notes


@dataclass(frozen=True)
class StepFindings:
    """`words` and `figures` are by title, a value for each of `steps` (None and NaN: unknown),
    which are `(process, start_ns)`; `path` is empty where it is not known."""

    steps: tuple[tuple[int, int], ...]
    words: dict[str, list[str | None]]
    figures: dict[str, NDArray[np.float64]]
    path: tuple[PathSegment, ...]

    def notes(self, scene: Scene, process: NDArray[Any], start: Ints) -> tuple[Note, ...]:
        place_of = {step: place for place, step in enumerate(self.steps)}
        keys = zip(process.tolist(), start.tolist(), strict=True)
        places = np.array([place_of.get(key, -1) for key in keys], np.int64)  # -1: what is put last
        words = {title: [*words, None] for title, words in self.words.items()}
        figures = {title: np.append(values, np.nan) for title, values in self.figures.items()}
        told = (scene.told(title, [of[n] for n in places]) for title, of in words.items())
        return (*told, *(scene.note(title, values[places]) for title, values in figures.items()))


def find(run: OpenedRun) -> StepFindings:
    """Analyses a run: of one that stopped recording its whole steps."""
    analysis = RunAnalysis(run)
    summary, steps = summary_of(analysis, predict=False), analysis.steps
    windows = () if steps.whole_run else steps.windows
    times = summary.steps.times if windows else ()
    exposed = [
        {k: s / t.step_s for k, s in t.exposed_s.items() if t.step_s and not math.isnan(s)}
        for t in times
    ]
    leaders = [max(shares, key=lambda name: shares[name], default=None) for shares in exposed]
    figures: dict[str, list[float]] = {}
    if summary.goodput is not None:
        for name in ("useful_tokens_per_device_s", "useful_tokens", "trained_tokens"):
            of_steps = analysis.goodput_of_steps
            figures[f"goodput.{name}"] = [float(getattr(step, name)) for step in of_steps]
    for row in summary.stages:
        figures[f"exposed_share.{row.name}"] = [shares.get(row.name, 0.0) for shares in exposed]
    on_path = summary.critical_path
    if on_path is not None and on_path.is_traced:
        for share in on_path.shares:
            spent = [seconds.get(share.stage, 0.0) for seconds in on_path.steps_s]
            figures[f"critical_path_s.{share.stage}"] = spent
    verdict, count = summary.verdict, len(windows)
    wall = ", ".join(wall.name for wall in verdict.binding)
    if verdict.first is None:
        wall = "no wall" if verdict.balanced else "cannot tell"
    if verdict.alarms:
        wall = "no advice: something is wrong with the run"
    known = figures.items() if count else ()
    return StepFindings(
        steps=tuple((window.process, window.start_ns) for window in windows),
        words={
            "verdict.wall": [wall] * count,
            "verdict.confidence": [verdict.confidence] * count,
            "most_exposed": leaders,
            "warmup": ["yes" if window.warmup else None for window in windows],
        },
        figures={name: np.array(values, np.float64) for name, values in known},
        path=analysis.drawn_path,
    )

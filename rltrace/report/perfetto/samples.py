"""What happened to the samples of a run as slices: generation, verdicts, and use."""

from __future__ import annotations

from rltrace.report.perfetto.rows import Rows, word_of
from rltrace.report.perfetto.scene import Scene, Slices
from rltrace.report.perfetto.slices import REWARDS, TRAJECTORIES, USES
from rltrace.report.perfetto.tracks import number
from rltrace.trace.run import Run
from rltrace.trace.vocabulary import Fate, Finish, Outcome

_TRAJECTORIES = """
    SELECT t.process, t.start_ns, t.end_ns, t.trajectory, t."group", prompt, first_version,
           last_version, prompt_tokens, response_tokens, turns, env_ns, preemptions, finish,
           CASE WHEN first_token_ns = -1 THEN -1 ELSE first_token_ns - t.start_ns END
               AS to_first_token_ns,
           coalesce(u.step, -1) AS used_in_step, coalesce(u.version, -1) AS used_by_version,
           coalesce(u.fate, -1) AS fate,
           CASE WHEN u.version <> -1 AND first_version <> -1 THEN u.version - first_version END
               AS lag_versions,
           CASE WHEN t.end_ns <> -1 THEN u.time_ns - t.end_ns END AS waited_ns
    FROM raw_trajectories t LEFT JOIN (
        SELECT trajectory, min(time_ns) AS time_ns, arg_min(step, time_ns) AS step,
               arg_min(version, time_ns) AS version, arg_min(fate, time_ns) AS fate
        FROM raw_uses WHERE trajectory <> -1 GROUP BY trajectory) u USING (trajectory)
"""


def trajectories(scene: Scene, run: Run) -> Slices:
    """Samples being generated, named by the policy versions that wrote them; what became of them
    is told with them, by their first use."""
    rows = Rows(scene, run, _TRAJECTORIES)
    versions, first = number(rows["first_version"], rows["last_version"])

    def name(nth: int) -> str:
        row = first[nth]
        return _version_name(int(rows["first_version"][row]), int(rows["last_version"][row]))

    return rows.slices(
        track=rows.on_rows("trajectories", TRAJECTORIES),
        name=scene.names.column(versions, name),
        category="trajectory",
        notes=(
            *rows.integers("trajectory", "group", "prompt", "first_version", "last_version"),
            *rows.integers("prompt_tokens", "response_tokens", "turns", "env_ns", "preemptions"),
            *rows.integers("to_first_token_ns", "used_in_step", "used_by_version"),
            *rows.nullable("lag_versions", "waited_ns"),
            rows.code("finish", Finish),
            rows.code("fate", Fate),
        ),
        of=("trajectory",),
    )


def _version_name(first: int, last: int) -> str:
    if first < 0:
        return "trajectory"
    return f"trajectory v{first}" if last in (first, -1) else f"trajectory v{first} to v{last}"


def rewards(scene: Scene, run: Run, texts: dict[int, str]) -> Slices:
    columns = "process, start_ns, end_ns, trajectory, component, value, outcome"
    rows = Rows(scene, run, f"SELECT {columns} FROM raw_rewards")
    return rows.slices(
        track=rows.on_rows("rewards", REWARDS),
        name=scene.names.column(rows["component"], lambda n: texts.get(n, "reward")),
        category="verdict",
        notes=(*rows.integers("trajectory"), rows.double("value"), rows.code("outcome", Outcome)),
        of=("trajectory",),
    )


_USES = """
    SELECT u.process, u.time_ns AS start_ns, u.time_ns AS end_ns, trajectory, u.step, u.version,
           u.fate, u.tokens, first_version,
           CASE WHEN u.version <> -1 AND first_version <> -1 THEN u.version - first_version END
               AS lag_versions,
           CASE WHEN t.end_ns <> -1 THEN u.time_ns - t.end_ns END AS waited_ns
    FROM raw_uses u LEFT JOIN (
        SELECT trajectory, arg_min(first_version, start_ns) AS first_version,
               arg_min(end_ns, start_ns) AS end_ns
        FROM raw_trajectories WHERE trajectory <> -1 GROUP BY trajectory) t USING (trajectory)
"""


def uses(scene: Scene, run: Run) -> Slices:
    """The moments at which the learner took or dropped a sample, and how old it was."""
    rows = Rows(scene, run, _USES)
    return rows.slices(
        track=scene.each(lambda process: scene.row(process, "samples used", USES), rows["process"]),
        name=scene.names.column(rows["fate"], lambda code: word_of(Fate, code)),
        category="use",
        notes=(
            *rows.integers("trajectory", "step", "version", "tokens"),
            *rows.nullable("lag_versions", "waited_ns"),
        ),
        of=("trajectory", "version", "fate"),
        moments=True,
    )

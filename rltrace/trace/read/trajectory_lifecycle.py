"""SQL that follows samples to the learner, and weight updates.

A sample is counted once however often its id was recorded: generation and verdicts may be seen in
several processes, and a learner may go over a batch several times. Rows without an id (-1) each
count as a sample.

A loop that says versions with its weight updates only says none before the first of them. What
ended by then is of the version before it, which is known where updates are counted one by one,
something was trained on before the first (else it may load weights that no update made), and by
then no sample had a version and no use another. A sample whose first token is of the version before
the first update, and that ended by the time this update was done, is of it to its last token, where
samples of its process say that of theirs later on.
"""

from __future__ import annotations

from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Phase, Stage

_SQL = packaged_toml("trace/read/samples.toml")
_CODES = {"Fate": Fate, "Phase": Phase, "Stage": Stage}

UNTOLD_UNKNOWN: str = _SQL["untold_unknown"]
PHASE_UNIONS: str = _SQL["phase_unions"].format(**_CODES)


# --- how queries for samples begin. Those that the learner met without an id, or all by ids that
# nobody generated, are taken to be among those not met by theirs.

DECIDED_SAMPLES: str = _SQL["decided_samples"].format(**_CODES)
TRAINED_SAMPLES: str = _SQL["trained_samples"].format(**_CODES)
TRAINED_USES: str = _SQL["trained_uses"].format(**_CODES)


# --- an evaluation's generation
# While a job evaluates, its engines do nothing else, and do not know whose their requests are. So
# what begins within a span of the stage `eval` is the evaluation's: spans of generation, tools and
# rewards are of that stage, samples and their rewards are in no figure. That is not so where a
# sample that began meanwhile met the learner, as generation went on beside the evaluation: of the
# same process for what this process did itself, of any process for what others did. Where no sample
# met the learner by its id nothing shows what others did, and it is training's.

EVALUATIONS = "evaluations"
"""Table: `start_ns` and `end_ns` of each evaluation in which something was generated, and its
`owner`, whose work in that time is its own: a process, or -1 for all."""

ANY_EVALUATION: str = _SQL["any_evaluation"].format(**_CODES)
MAKE_EVALUATIONS: str = _SQL["evaluations"].format(**_CODES, owners=_SQL["owners"])

_OF = (int(Stage.ROLLOUT), int(Stage.ENV), int(Stage.REWARD))
_JOINED = f"""FROM ({{rows}}) t
    ASOF LEFT JOIN {EVALUATIONS} own ON own.owner = t.process AND t.start_ns >= own.start_ns
    ASOF LEFT JOIN (FROM {EVALUATIONS} WHERE owner = -1) whole ON t.start_ns >= whole.start_ns"""
_WITHIN = "coalesce(t.start_ns < own.end_ns, false) OR coalesce(t.start_ns < whole.end_ns, false)"
OF_EVALUATIONS = ("spans", "trajectories", "rewards")


def rows_of_training(table: str, rows: str) -> str:
    """A query of the `rows` of a table as they are of training."""
    joined = _JOINED.format(rows=rows)
    if table == "spans":
        stage = f"CASE WHEN stage IN {_OF} AND ({_WITHIN}) THEN {int(Stage.EVAL)} ELSE stage END"
        return f"SELECT t.* REPLACE ({stage}::TINYINT AS stage) {joined}"
    if table == "trajectories":
        return f"SELECT t.* {joined} WHERE NOT ({_WITHIN})"
    samples = "FROM recorded_trajectories WHERE start_ns > 0 AND trajectory <> -1"
    evaluated = f"SELECT trajectory {_JOINED.format(rows=samples)} WHERE {_WITHIN}"
    others = f"(SELECT trajectory {samples} AND trajectory NOT IN ({evaluated}))"
    return f"""SELECT t.* {joined}
        WHERE trajectory IN {others} OR NOT ({_WITHIN}) AND trajectory NOT IN ({evaluated})"""

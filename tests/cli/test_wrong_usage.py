"""Command lines that cannot be meant: one sentence, exit code 2, and nothing is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.testing.inside.trace import WRONG_USAGE
from tests.cli.conftest import typed


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("reprot", "reprot"),
        ("report --jsno", "--jsno"),
        ("report ''", "empty"),
        ("report RUN --json --markdown", "--markdown"),
        ("report RUN --price nan", "--price"),
        ("report RUN --price 0", "--price"),
        ("report RUN --price 1e308", "--price"),
        ("report RUN --lag-budget -2", "--lag-budget"),
        ("report RUN --steps 9..5", "9..5"),
        ("report RUN --steps x", "x"),
        ("report RUN --steps ..", ".."),
        ("report RUN --steps 7..8", "0 to 4"),
        ("report RUN --steps 1 --last 2", "--last"),
        ("report RUN --last 0", "--last"),
        ("top --interval soon", "--interval"),
        ("top --interval 0", "0.1<=x<=3600"),
        ("info a b", "b"),
        ("import", "FRAMEWORK"),
        ("export nothing", "nothing"),
        ("completion tcsh", "tcsh"),
        ("completion", "from: bash, zsh, fish"),
        ("wrap", "rltrace wrap -- python train.py"),
        ("wrap --bogus -- true", "--bogus"),
        ("wrap --hook nonsense -- true", "nonsense"),
        ("wrap --hook a.b:c=no-such-stage -- true", "no-such-stage"),
        ("wrap --hook 'a b:c=train' -- true", "a b:c"),
        ("wrap --hook m:f=train --hook m:f=rollout -- true", "m:f"),
        ("wrap --out '' -- true", "--out"),
        ("query", "--list"),
        ("query RUN", "RUN"),
        ("query RUN 'SELECT 1' more", "3 words"),
        ("query RUN 'SELECT 1' --json --csv", "--csv"),
        ("query RUN SELEC", "SELEC"),
        ("query RUN 'SELECT nope FROM spans'", "nope"),
        ("query RUN 'SELECT 1/\"x\" FROM spans'", "x"),
        ("query RUN 'SELECT 1; SELECT 2'", "one"),
        ("query RUN 'SELECT \"\udce9\"'", "text"),
        ("query @slow", "slow"),
        ("query --show 'SELECT 1'", "SELECT 1"),
        ("query --list @tail_by_finish", "--list"),
    ],
    ids=repr,
)
def test_it_is_one_sentence_and_nothing_is_done(
    small_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, names: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = typed(line, RUN=small_run)
    assert done.exit_code == WRONG_USAGE
    (said,) = done.output.splitlines()
    assert said.startswith("rltrace: ")
    first = said[len("rltrace: ")]
    assert first.islower() or not first.isalpha()
    assert not said.endswith(".")
    assert (str(small_run) if names == "RUN" else names) in said
    assert list(tmp_path.iterdir()) == []

"""What stays of a command line, and that nothing else does."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from rltrace.testing.inside.analysis import (
    FILE,
    PREDICTED,
    WRAP_SYNC,
    forms,
    frameworks,
    given,
    with_settings,
)
from rltrace.testing.inside.trace import untrusted_files as texts
from rltrace.testing.inside.trainer import OBJECTIVES, TASKS, TrainerConfig
from rltrace.testing.inside.trainer import placement_PLACEMENTS as PLACEMENTS
from rltrace.trace.safe_text import REDACTED, redacted, redacted_facts, redacted_urls
from tests.faults import drawn

R = REDACTED


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("python -m verl.main a.epochs=3 +a.b=x", f"python -m verl.main a.epochs=3 +a.b={R}"),
        ("torchrun --nproc 4 --bf16 -m a.b -m x", f"torchrun --nproc 4 --bf16 -m a.b -m {R}"),
        ("env HF_TOKEN=x python -u -m a.b", f"env HF_TOKEN={R} python -u -m a.b"),
        ("srun -N4 python / --lr 1e-6 -x", "srun -N4 python / --lr 1e-6 -x"),
        ("./gone --use_vllm=true / /gone a", f"./gone --use_vllm=true / {R} {R}"),
        ("python -c x -m y", f"python -c {R} -m {R}"),
        ("a --password -xyz --b -9", f"a --password {R} --b -9"),
        ("a --env A=x --set a.b=1", f"a --env {R} --set a.b=1"),
        ("a eHl6enk= eHl6enkx==", f"a {R} {R}"),
        ("a --0f3a9c17e2=1 --Zq9x=1 A9f3=1 aBcDeF=1", f"a {R} {R} {R} {R}"),
        ("a [1,2] ['console',wandb] [1,x]", f"a [1,2] ['console',wandb] {R}"),
        ("a 123456789012 1234567890123", f"a 123456789012 {R}"),
    ],
)  # fmt: skip
def test_only_what_is_harmless_stays(words: str, shown: str) -> None:
    assert redacted(words.split()) == shown.split()
    assert redacted(shown.split()) == shown.split()


def test_a_path_stays_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = ["bash", "train.py", f"--out={tmp_path}", f"data.file={tmp_path}/gone", f"{tmp_path}/a"]
    assert redacted(words) == [*words[:3], f"data.file={R}", R]


def test_no_text_that_is_drawn_stays() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    for text in drawn.texts(draw, 2000):
        for words in (["python", "x.py"], ["bash"], ["python", "-c", "x"]):
            found = redacted([*words, *drawn.words_of(draw, text)])
            assert not any(text in word for word in found), seed


@pytest.mark.parametrize("framework", sorted(forms()))
def test_what_is_read_of_commands_stays(framework: str) -> None:
    """Options that the tables name stay with their values, but for addresses and files; what no
    command line has is none of them."""
    form = forms()[framework]
    versions = {before for one in frameworks()[framework] for before, _ in one.older}
    for version in ("", *(f"{before}.dev0" for before in versions)):
        for setting in (one.in_version(version) for one in frameworks()[framework]):
            told = [(setting.option, setting.value), *setting.needs.items()]
            for option, value in (*told, *setting.exactly.items(), *setting.only.items()):
                if option != WRAP_SYNC and value != PREDICTED and form.form != FILE:
                    words = with_settings(["x"], form, {option: value})
                    kept = given(redacted(words), form, option)
                    read = given(words, form, option)
                    assert kept == read or (kept == R and set(value) & set("./:(")), words


def test_what_a_job_states_is_redacted_alike() -> None:
    def kept(**settings: object) -> object:
        return redacted_facts({"settings": settings})["settings"]

    defaults = vars(TrainerConfig())
    assert kept(**defaults) == defaults
    for name in ("delta", "relay", "learner", *TASKS, *OBJECTIVES, *PLACEMENTS):
        assert kept(a=name) == {"a": name}
    told = {"--hub_token": "hf_x", "--lr": 0.1, "--odd": [1], "--0f3a9c17e2": 1, "--at": sys.prefix}
    assert kept(**told) == {"--hub_token": R, "--lr": 0.1, "--at": sys.prefix}
    priors = texts.packaged_toml("analysis/data/lag_priors.toml")["prior"]
    known = [word for entry in priors for word in entry["match"]]
    for objective in (*known, "online dpo", "my loss"):
        shown = R if objective == "my loss" else objective
        assert redacted_facts({"objective": objective, "rank": 1}) == {
            "objective": shown,
            "rank": 1,
        }


def test_an_address_lets_nobody_in() -> None:
    said = "at https://me:p@w@host/a?sig=ab&x=1: no"
    assert redacted_urls(said) == f"at https://{R}@host/a?{R} no"

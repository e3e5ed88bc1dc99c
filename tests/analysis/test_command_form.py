"""Settings of each framework on a job's command line."""

from __future__ import annotations

import pytest

from rltrace.analysis.command_form import elsewhere, form_of, given, with_settings
from rltrace.testing.inside.trace import RltraceError

TRAIN = ["python", "examples/train.py", "--steps", "6", "--retokenize", "--lr=0.1"]
VERL = ["python", "-m", "verl.trainer.main_ppo", "a.b=1", "+c.d=2", "trainer.x=3"]
OPENRLHF = ["python", "-m", "openrlhf.cli.train_ppo_ray", "--vllm.num_engines", "1", "--a.list",
            "1", "2", "--train.async_enable"]  # fmt: skip


@pytest.mark.parametrize(
    ("framework", "command", "settings", "expected"),
    [
        ("rltrace.trainer", TRAIN, {"steps": 9}, [*TRAIN[:2], *TRAIN[4:], "--steps", "9"]),
        ("rltrace.trainer", TRAIN, {"retokenize": False},
         [*TRAIN[:4], "--lr=0.1", "--no-retokenize"]),
        ("rltrace.trainer", TRAIN, {"learning_rate": 1e-3}, [*TRAIN[:5], "--lr", "0.001"]),
        ("rltrace.trainer", TRAIN, {"max_lag": 1}, [*TRAIN, "--max-lag", "1"]),
        ("verl", VERL, {"a.b": True}, [*VERL[:3], *VERL[4:], "a.b=True"]),
        ("verl", VERL, {"c.d": 5}, [*VERL[:4], VERL[5], "+c.d=5"]),
        ("verl", VERL, {"+new.key": [1, 2]}, [*VERL, "+new.key=[1,2]"]),
        ("openrlhf", OPENRLHF, {"--vllm.num_engines": 2},
         [*OPENRLHF[:3], *OPENRLHF[5:], "--vllm.num_engines", "2"]),
        ("openrlhf", OPENRLHF, {"--a.list": [3, 4, 5]},
         [*OPENRLHF[:5], "--train.async_enable", "--a.list", "3", "4", "5"]),
        ("openrlhf", OPENRLHF, {"--train.async_enable": False}, OPENRLHF[:-1]),
        ("openrlhf", OPENRLHF, {"--train.partial_rollout_enable": True},
         [*OPENRLHF, "--train.partial_rollout_enable"]),
    ],
)  # fmt: skip
def test_a_setting_takes_the_place_of_the_one_before(
    framework: str, command: list[str], settings: dict[str, object], expected: list[str]
) -> None:
    changed = with_settings(command, form_of(framework), settings)
    assert changed == expected
    assert with_settings(changed, form_of(framework), settings) == expected


def test_what_a_command_sets_can_be_read() -> None:
    assert given(TRAIN, form_of("rltrace.trainer"), "steps") == "6"
    assert given(TRAIN, form_of("rltrace.trainer"), "learning_rate") == "0.1"
    assert given(TRAIN, form_of("rltrace.trainer"), "max_lag") is None
    assert given(VERL, form_of("verl"), "c.d") == "2"
    assert given(OPENRLHF, form_of("openrlhf"), "--train.async_enable") == ""


def test_what_a_job_writes_goes_elsewhere() -> None:
    command = [*TRAIN, "--ledger", "books/ledger.json"]
    assert elsewhere(form_of("rltrace.trainer"), command, "/e") == {"ledger": "/e/ledger.json"}
    assert elsewhere(form_of("rltrace.trainer"), TRAIN, "/e") == {}
    moved = elsewhere(form_of("verl"), VERL, "/e")
    assert moved == {"trainer.default_local_dir": "/e/default_local_dir"}


def test_an_unknown_framework_is_said() -> None:
    with pytest.raises(RltraceError, match="not known") as error:
        form_of("another")
    assert error.value.exit_code == 3

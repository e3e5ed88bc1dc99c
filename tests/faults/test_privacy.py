"""Nothing that a job works on, or is let in by, is in its run: every byte of it is looked at. Where
token ids were asked for (`--capture-tokens`) it has these, where they belong, and nothing else."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.trace import compaction_compact as compact
from rltrace.testing.inside.trace import delete_segments, read_run_json
from tests.hooks.conftest import untraced, wrapped

TEXTS = {
    "prompt": "Prompt-of-Someone: what is my diagnosis",
    "completion": "Completion-with-an-Address 5 Elm Street",
    "tokens": "[918273, 645546, 102938]",
    "environment": "Environ-Value-1f2e3d",
    "key": "Argv-Key-9z8y7x",
    "password": "Argv-Pass-w0rd",
    "bearer": "Argv-Bearer-abcdef0123",
    "form": "hf_" + "Zq9" * 12,
    "program": "program_of_a_completion",
}

WORDS = (
    *("--api-key", TEXTS["key"], f"--config.password={TEXTS['password']}", TEXTS["form"]),
    *("--header", f"Authorization: Bearer {TEXTS['bearer']}", "--max-tokens", "2048"),
    f"https://me:{TEXTS['password']}@example.org/?token={TEXTS['key']}",
)
TOKENS = [918273, 645546, 102938]
WRONG = 5  # things that are no token ids, in each of three steps

JOB = """
import os, subprocess, sys, threading
import rltrace
prompt, completion = sys.stdin.readline().strip(), sys.stdin.readline().strip()
tokens = [918273, 645546, 102938]

class Refused(Exception):
    pass

def generate(prompt, key=None):
    return completion, tokens

def judge(text):
    raise Refused(f"cannot judge {text} of {tokens}")

refused = 0
def attempt(function, *args):
    global refused
    try: function(*args)
    except Refused: refused += 1  # its own; what recording raised would end the job

for n in range(3):
    def step():
        with rltrace.step(n):
            id = prompt + str(n)
            known = dict(group=prompt, prompt=prompt, task=completion, prompt_token_ids=tokens[:2])
            with rltrace.trajectory(id, **known) as t:
                with rltrace.span("rollout"): generate(prompt)
                t.finish("stop", response_tokens=tokens, response_token_ids=tokens)
            for wrong in (prompt, prompt.encode(), [prompt], {completion: tokens}, [tokens]):
                with rltrace.trajectory("wrong" + str(n), prompt_token_ids=wrong) as t:
                    t.finish(response_token_ids=wrong)
            with rltrace.span("train", tokens=prompt, items=tokens, bytes={prompt: tokens}): pass
            with rltrace.reward(id, value=completion): pass
            rltrace.use(id, tokens=tokens, clip_share=completion)
            rltrace.counter("loss", prompt)
            with rltrace.weight_update(completion): pass
            judge(completion)
    attempt(step)
rltrace.step(prompt)
rltrace.step(tokens)
attempt(lambda: rltrace.trajectory(object(), prompt=tokens))
pid = os.fork()
if pid == 0:
    with rltrace.span("reward"): attempt(judge, completion)
    os._exit(0)
os.waitpid(pid, 0)
code = "import rltrace; rltrace.counter('n', 1)"
subprocess.run([sys.executable, "-c", code, *sys.argv[1:]])
program = os.environ["PROGRAM"]
subprocess.run([sys.executable, "-c", program + " = 1", *sys.argv[1:]])
subprocess.run([sys.executable, "-uc" + program + " = 1", *sys.argv[1:]])
try:
    with rltrace.step(3): exec(program, {})
except NameError: pass
print("done", len(prompt), refused)
raise Refused(f"{prompt} {completion}")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the job, which is full of secrets and misuses the API with them."""
    return made(tmp_path_factory.mktemp("private"))


def made(folder: Path, *options: str) -> Path:
    (folder / "job.py").write_text(JOB)
    hooks = ["--hook", "__main__:generate=rollout", "--hook", "__main__:judge=reward"]
    done = wrapped(
        folder,
        *("--out", "run", "--log-steps", *options, *hooks, "--"),
        *(sys.executable, "job.py", *WORDS),
        given=f"{TEXTS['prompt']}\n{TEXTS['completion']}\n",
        MY_SETTING=TEXTS["environment"],
        HF_TOKEN=TEXTS["form"],
        WANDB_API_KEY=TEXTS["key"],
        PROGRAM=TEXTS["program"],
    )
    assert (done.returncode, done.stdout) == (1, f"done {len(TEXTS['prompt'])} 3\n"), done.stderr
    assert TEXTS["prompt"] in done.stderr  # the job's own traceback is the job's
    return folder / "run"


def held(run: Path) -> dict[str, list[str]]:
    """Which of the texts are in which files of a run, or in their names: as text, in UTF-16, and
    of the tokens as the integers that they are."""
    found: dict[str, list[str]] = {}
    forms = {name: [text.encode(), text.encode("utf-16-le")] for name, text in TEXTS.items()}
    forms["tokens"] += [n.to_bytes(size, "little") for n in (918273, 645546) for size in (4, 8)]
    forms["tokens"] += [b"918273", b"645546"]
    for path in run.rglob("*"):
        data = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        for name, wanted in forms.items():
            if any(form in data for form in wanted):
                found.setdefault(name, []).append(str(path.relative_to(run)))
    return found


def test_no_byte_of_a_run_holds_what_the_job_works_on(run: Path) -> None:
    assert held(run) == {}
    opened = rltrace.open_run(run)
    samples = opened.sql('SELECT count(*), count(DISTINCT "group") FROM trajectories').fetchall()
    assert samples == [(4 + 3 * WRONG, 1)]  # they are recorded all the same
    right = 'trajectories WHERE "group" IS NOT NULL'
    ids = opened.sql(f"SELECT trajectory FROM {right} ORDER BY start_ns").fetchall()
    assert ids[:3] == [(identify(TEXTS["prompt"] + str(n)),) for n in range(3)]
    compact(opened)
    assert held(run) == {}


def test_asked_for_the_token_ids_are_there_and_nothing_else_is(tmp_path: Path) -> None:
    captured = made(tmp_path, "--capture-tokens")
    here = held(captured)
    assert here.keys() == {"tokens"}
    assert all(path.startswith("captured_tokens") for path in here["tokens"])
    opened = rltrace.open_run(captured)
    rows = opened.sql("SELECT trajectory, prompt_token_ids, response_token_ids FROM captured")
    wanted = {identify(TEXTS["prompt"] + str(n)): (TOKENS[:2], TOKENS) for n in range(3)}
    assert {own_id: (prompt, response) for own_id, prompt, response in rows.fetchall()} == wanted
    odd = {p["target"]: p for p in opened.problems if p["what"] == "not-recorded"}
    for part in ("prompt_token_ids", "response_token_ids"):
        assert odd[part]["times"] == 3 * WRONG
        assert odd[part]["detail"].startswith(f"a str of length {len(TEXTS['prompt'])} ")
    compact(opened)
    delete_segments(captured)
    here = held(captured)
    assert here.keys() <= {"tokens"}  # they are packed
    assert all(path.startswith("parquet/captured_tokens") for path in here.get("tokens", ()))


def test_a_run_that_a_program_begins_itself_holds_no_more_of_its_command(tmp_path: Path) -> None:
    """The whole of it is kept beside the run, where nobody else can read it."""
    code = "import rltrace; rltrace.start('run')\nwith rltrace.step(0): pass"
    command = [sys.executable, "-c", code, *WORDS]
    done = untraced(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert held(tmp_path / "run") == {}
    assert len(read_run_json(str(tmp_path / "run"))["command"]) == len(command)
    whole = tmp_path / ".commands" / "run"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (whole.parent, whole)]
    assert modes == [0o700, 0o600]
    assert json.loads(whole.read_text())["command"][1:] == command[1:]

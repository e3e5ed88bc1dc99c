"""Nothing that a job works on, or is let in by, is in its run: every byte of it is looked at. Where
token ids were asked for (`--capture-tokens`) it has these, where they belong, and nothing else."""

from __future__ import annotations

import html
import json
import os
import random
import re
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

import rltrace
from rltrace.cli import main
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.trace import REDACTED, compact, delete_segments
from tests.faults import drawn
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
    """A job that is full of secrets, and misuses the API with them."""
    return made(tmp_path_factory.mktemp("private"))


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job, with its token ids asked for."""
    return made(tmp_path_factory.mktemp("captured"), "--capture-tokens")


def made(folder: Path, *options: str) -> Path:
    """The run of the job."""
    (folder / "job.py").write_text(JOB)
    words = [
        *("--api-key", TEXTS["key"], f"--config.password={TEXTS['password']}", TEXTS["form"]),
        *("--header", f"Authorization: Bearer {TEXTS['bearer']}", "--max-tokens", "2048"),
        f"https://me:{TEXTS['password']}@example.org/?token={TEXTS['key']}",
    ]
    hooks = ["--hook", "__main__:generate=rollout", "--hook", "__main__:judge=reward"]
    done = wrapped(
        folder,
        *("--out", "run", "--log-steps", *options, *hooks, "--"),
        *(sys.executable, "job.py", *words),
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


def test_asked_for_the_token_ids_are_there_and_nothing_else_is(captured: Path) -> None:
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
        assert odd[part]["detail"] == f"a str of length {len(TEXTS['prompt'])} holds no token ids"
    compact(opened)
    delete_segments(captured)
    here = held(captured)
    assert here.keys() <= {"tokens"}  # they are packed
    assert all(path.startswith("parquet/captured_tokens") for path in here.get("tokens", ()))


def test_what_was_left_out_is_said(run: Path) -> None:
    command = json.loads((run / "run.json").read_text())["command"]
    shown = ["--api-key", REDACTED, f"--config.password={REDACTED}", REDACTED, "--header", REDACTED]
    shown += ["--max-tokens", "2048", REDACTED]
    assert command == [sys.executable, "job.py", *shown]
    started = [p.facts["argv"] for p in rltrace.open_run(run).processes if p.role != "agent"]
    assert sorted((words[1], *words[-len(shown) :]) for words in started) == [
        (first, *shown) for first in ("-c", "-c", "-uc[code]", "job.py", "job.py")
    ]
    problems = rltrace.open_run(run).problems
    failed = {p["target"]: p["detail"] for p in problems if p["what"] == "step-failed"}
    assert failed.keys() == {"0", "1", "2", "3"}
    assert re.fullmatch(r"NameError in generated code at job.py:\d+", failed.pop("3"))
    assert all(re.fullmatch(r"Refused at job.py:\d+", said) for said in failed.values())
    odd = {p["target"]: p["detail"] for p in problems if p["what"] == "not-recorded"}
    assert odd["tokens"].startswith("a str of length 39 does not fit")
    assert odd["rltrace.step"].startswith("a str of length 39 is no integer")


WORKS = """
import os, subprocess, sys
import rltrace
if STARTS: rltrace.start("run")
for n in range(3):
    with rltrace.step(n):
        with rltrace.span("rollout"), rltrace.trajectory(str(n)) as sample: sample.finish("stop")
        with rltrace.span("train"): pass
if os.fork() == 0:
    with rltrace.span("reward"): os._exit(0)
os.wait()
again = [sys.executable, "-c", "import rltrace; rltrace.counter('n', 1)", *sys.argv[1:]]
subprocess.run(again, check=True)
"""

LOOKED_AT = (
    *("report", "report --json", "report --markdown", "report --html {}/page.html", "info", "top"),
    *("info --json", "export prometheus --once", "export otlp -o {}/spans.json", "ls {}/.."),
    *("query @slowest_trajectories", "timeline -o {}/x.pftrace", "compact", "compare {} {}"),
    *("whatif", "doctor"),
)


def found_in(secrets: Iterable[str], folder: Path, *more: str) -> list[str]:
    """Those of the texts that are in a file below a folder, in its name, or in other texts."""
    data = "\n".join(more).encode()
    for path in folder.rglob("*"):
        data += path.name.encode() + (path.read_bytes() if path.is_file() else b"")
    forms = lambda text: {text, html.escape(text), json.dumps(text)[1:-1]}  # noqa: E731
    return [text for text in secrets if any(form.encode() in data for form in forms(text))]


@pytest.mark.slow
@pytest.mark.parametrize("starts", [False, True])
def test_no_value_of_a_command_line_is_in_what_is_kept_shown_or_shipped(
    tmp_path: Path, starts: bool
) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    secrets = drawn.texts(draw, 1000)
    words = [word for text in secrets for word in drawn.words_of(draw, text)]
    (tmp_path / "job.py").write_text(WORKS.replace("STARTS", str(starts)))
    command = [sys.executable, "job.py", *words]
    ship = ("--ship", f"file://{tmp_path}/elsewhere")
    if starts:
        done = untraced(*command, cwd=tmp_path)
    else:
        done = wrapped(tmp_path, "--out", "run", *ship, "--", *command)
    assert done.returncode == 0, done.stderr[-2000:]
    run = tmp_path / "run"
    assert len(json.loads((run / "run.json").read_text())["command"]) == len(command)
    said = [done.stderr]
    for asked in LOOKED_AT:
        name, *options = asked.format(*[run] * 2).split()
        given = [] if {"ls", "compare", "doctor", "query"} & {name} else [str(run)]
        if name == "export":
            name, given = f"export {options.pop(0)}", [str(run)]
        if name == "query":
            options.append(str(run))
        if name == "top":
            options.append("--once")
        result = CliRunner().invoke(main, [*name.split(), *options, *given])
        assert result.exit_code in (0, 3), (asked, result.output[-500:])
        said.append(result.output)
    assert found_in(secrets, run, *said) == [], seed
    assert starts or found_in(secrets, tmp_path / "elsewhere") == [], seed
    (whole,) = (path for path in (tmp_path / ".commands").iterdir() if path.name == "run")
    assert found_in(secrets, whole.parent) == secrets
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (whole.parent, whole)]
    assert modes == [0o700, 0o600]
    assert json.loads(whole.read_text())["command"][1:] == command[1:]


def test_no_text_that_is_raised_is_in_a_run(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    texts = drawn.texts(random.Random(seed), 30)
    (tmp_path / "texts").write_text("\n".join(texts))
    files = {"job": drawn.RAISING, "own_loop": drawn.LOOP, "own_adapter": drawn.ADAPTER}
    for name, program in (*files.items(), ("reads", drawn.READS)):
        (tmp_path / f"{name}.py").write_text(program)
    more = {"TEXTS": str(tmp_path / "texts"), "PYTHONPATH": str(tmp_path)}
    done = wrapped(tmp_path, "--out", "run", "--", sys.executable, "job.py", **more)
    assert done.returncode == 0, done.stderr[-2000:]
    secrets = [*texts, *("w" + "".join(filter(str.isalnum, text)) for text in texts)]
    result = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "--json"])
    assert found_in(secrets, tmp_path / "run", result.output) == [], seed
    problems = rltrace.open_run(tmp_path / "run").problems
    told = [p["detail"] for p in problems if p["what"] == "step-failed"]
    assert len(told) == 16 * 20  # ways, and what a process tells at most
    kinds = {re.split(r" at | in |: ", detail)[0] for detail in told}
    assert kinds == {
        *("TypeError", "NameError", "AttributeError", "ModuleNotFoundError", "KeyError"),
        *("ArithmeticError", "OSError", "FileNotFoundError", "ValueError", "LookupError"),
    }
    (read,) = {p["detail"] for p in problems if p["what"] == "hook-failed"}
    assert re.fullmatch(r"\w+: NameError in generated code at own_adapter.py:\d+", read)

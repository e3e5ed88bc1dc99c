"""Hooks in code that runs as `__main__`: it is recorded, and cannot tell that it is."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

from rltrace.testing.inside.hooks import SITE
from tests.hooks.conftest import Job, RunJob, untraced

PY = sys.executable

HOOKS = ("__main__:generate=rollout", "__main__:Learner.train=train", "__main__:Learner.many=data")

PROGRAM = '''
    """A script."""
    import inspect, pickle, sys, traceback

    def decorated(function):
        function.mark = True
        return function

    @decorated
    def generate(n: int) -> int:
        return n * 2

    if True:
        class Learner:
            def train(self, n):
                return generate(n)
            @staticmethod
            def many(n):
                for i in range(n):
                    yield i

    def other():
        return inspect.currentframe().f_lineno

    print(generate(2), Learner().train(3), list(Learner.many(2)), other())
    print(generate.mark, inspect.getsource(generate), inspect.signature(Learner.train))
    print(inspect.unwrap(generate).__code__.co_firstlineno, generate.__qualname__)
    print(pickle.loads(pickle.dumps(generate)) is generate)
    print(__name__, __doc__, __package__, getattr(__spec__, "name", __spec__), __file__)
    print(type(__loader__).__name__)
    print(sys.path, sys.argv, sys.orig_argv, sys.flags)
    print(sorted(globals()), sys.modules["__main__"].__dict__ is globals())
    print([f.filename for f in traceback.extract_stack()][-1:], "__cached__" in globals())
    print(len(sys.path_hooks))
    if sys.argv[1:] == ["raise"]:
        raise ValueError("theirs")
    if sys.argv[1:] == ["exit"]:
        sys.exit(7)
'''


def same_as_untraced(done: Job, *command: str) -> None:
    """The job printed what it prints untraced, and ended as it does."""
    plain = untraced(*command, cwd=done.run_path.parent)
    site = [entry for entry in done.out.split("'") if entry.endswith("hooks/site")]
    ours = done.out.replace(f"'{site[0]}', ", "") if site else done.out
    assert ours == plain.stdout
    assert done.code == plain.returncode
    said = [line for line in done.err.splitlines() if not line.startswith("rltrace: ")]
    assert said == plain.stderr.splitlines()


NOTHING_TO_HOOK = "import sys; print(len(sys.path_hooks))"  # and no hook of ours is there
LAUNCH = "import runpy; runpy.run_path('script.py', run_name='__main__')"  # as many launchers do
WAYS = {
    "script": [PY, "script.py"],
    "raise": [PY, "script.py", "raise"],
    "exit": [PY, "script.py", "exit"],
    "absolute": [PY, "{folder}/script.py"],
    "dot": [PY, "./script.py"],
    "up": [PY, "elsewhere/../script.py"],
    "up-and-down": [PY, "../{name}/./script.py"],
    "symlink": [PY, "elsewhere/link.py"],
    "symlink-to-folder": [PY, "./elsewhere/here/script.py"],
    "up-from-symlink": [PY, "elsewhere/here/elsewhere/../script.py"],
    "isolated": [PY, "-I", "script.py"],
    "safe-path": [PY, "-P" if sys.version_info >= (3, 11) else "-B", "script.py"],
    "program": ["./run.py"],
    "launcher": [PY, "-c", LAUNCH],
    "folder": [PY, "app"],
    "zip": [PY, "app.zip"],
}


@pytest.mark.parametrize("way", WAYS)
def test_code_that_is_run_as_main_cannot_tell(job: RunJob, tmp_path: Path, way: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.py").symlink_to(tmp_path / "script.py")
    (elsewhere / "here").symlink_to(tmp_path)
    script = tmp_path / "run.py"
    script.write_text(f"#!{PY}\n{dedent(PROGRAM)}")
    script.chmod(0o755)
    (tmp_path / "app").mkdir()
    without_source = dedent(PROGRAM).replace("inspect.getsource(generate)", "''")
    (tmp_path / "app" / "__main__.py").write_text(without_source)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", without_source)
    command = [word.format(folder=tmp_path, name=tmp_path.name) for word in WAYS[way]]
    done = job(*command, program=PROGRAM, hooks=HOOKS)
    same_as_untraced(done, *command)
    called = ["generate", "Learner.train", "generate", "Learner.many", "Learner.many"]
    assert done.spans() == called
    assert {one["what"] for one in done.problems} <= {"process-failed"}  # as it was made to


@pytest.mark.parametrize("module", ["script", "package", "package.inside"])
def test_modules_run_with_m(job: RunJob, tmp_path: Path, module: str) -> None:
    """Hooks may name the module or `__main__`."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("__main__.py", "inside.py"):
        (package / name).write_text(dedent(PROGRAM))
    real = {"package": "package.__main__"}.get(module, module)
    hooks = (f"{real}:generate=rollout", "__main__:Learner.train=train")
    done = job(PY, "-m", module, program=PROGRAM, hooks=hooks)
    same_as_untraced(done, PY, "-m", module)
    assert sorted(done.spans()) == ["Learner.train", "generate", "generate"]
    assert done.problems == []


def test_an_adapters_hooks_reach_the_module_that_is_run(run_path: Path, tmp_path: Path) -> None:
    """As in `python -m verl.trainer.main_ppo`: the adapter comes in with the package."""
    package = tmp_path / "rlt_fw"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text("def train(): print('trained')\ntrain()")
    (tmp_path / "rlt_adapter.py").write_text(
        "from rltrace.testing.inside.hooks import Adapter, Hook\n"
        "class Ours(Adapter):\n"
        "    framework = 'rlt_fw'\n"
        "    hooks = (Hook('rlt_fw.main:train', 'train'),)\n"
    )
    done = untraced(
        *(PY, "-m", "rlt_fw.main"),
        cwd=tmp_path,
        RLTRACE_RUN=str(run_path),
        RLTRACE_ADAPTERS="rlt_fw=rlt_adapter:Ours",
        PYTHONPATH=SITE,
    )
    assert (done.stdout, done.stderr) == ("trained\n", "")
    job = Job(0, done.stdout, done.stderr, run_path)
    assert job.spans() == ["train"]
    assert job.processes[0]["adapter"] == "rlt_fw"
    assert job.problems == []


def test_children_that_multiprocessing_spawns_run_the_script_again(job: RunJob) -> None:
    program = """
        import multiprocessing, os
        def generate(n):
            return n, __name__
        class Learner:
            def train(self, n):
                return n, __name__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(generate, [1, 2]), pool.apply(Learner().train, (3,)))
    """
    done = job(PY, "script.py", program=program, hooks=HOOKS[:2])
    same_as_untraced(done, PY, "script.py")
    assert done.spans() == ["generate", "generate", "Learner.train"]


@pytest.mark.parametrize(
    "program",
    ["def generate(:\n", "# -*- coding: no-such-codec -*-\n", NOTHING_TO_HOOK],
    ids=["syntax-error", "bad-encoding", "no-definition"],
)
def test_what_cannot_be_compiled_here_is_pythons(job: RunJob, program: str) -> None:
    done = job(PY, "./script.py", program=program, hooks=HOOKS[:1])
    same_as_untraced(done, PY, "./script.py")


OUT_OF_REACH = {
    "stdin": "{python} - < script.py",
    "code": '{python} -c "$(cat script.py)"',
    "profiler": "{python} -m cProfile -o /dev/null script.py",
    "other-module": "{python} other.py",
}


@pytest.mark.parametrize("how", OUT_OF_REACH)
def test_hooks_that_cannot_be_put_in_place_are_told(job: RunJob, tmp_path: Path, how: str) -> None:
    (tmp_path / "other.py").write_text("print(3)")
    hooks = ("__main__:generate=rollout", "no_module:f=train")
    program = "def generate(): print(3)\ngenerate()"
    done = job("sh", "-c", OUT_OF_REACH[how].format(python=PY), program=program, hooks=hooks)
    assert (done.code, done.out) == (0, "3\n")
    assert [process["hooks"] for process in done.processes] == [[]]
    told = [line for line in done.err.splitlines() if "never put in place" in line]
    assert len(told) == 2
    assert all(f"--hook {hook}" in line for hook, line in zip(hooks, told, strict=True))


def test_a_process_tells_which_hooks_are_in_place(job: RunJob, tmp_path: Path) -> None:
    """Of those on `__main__` only the ones whose definition has run."""
    (tmp_path / "loop.py").write_text("class Learner:\n    def train(self): pass")
    program = """
        import sys
        def generate(): pass
        if len(sys.argv) > 5:
            def never(): pass
        if len(sys.argv) > 1:
            import loop
    """
    hooks = ("__main__:generate=rollout", "__main__:never=train", "loop:Learner.train=train")
    hooks += ("__main__:nevr=train",)
    for words, placed in (([], 1), (["x"], 2)):
        done = job(PY, "script.py", *words, program=program, hooks=hooks)
        assert done.processes, done.err
        assert done.processes[-1]["hooks"] == [h.partition("=")[0] for h in hooks[::2]][:placed]
        told = "".join(x for x in done.err.splitlines() if "never put in place" in x)
        assert "__main__:never" in told
        assert ("loop:Learner.train" in told) is (placed == 1)
        assert [p["target"] for p in done.problems] == ["__main__:nevr"]
        assert done.problems[0]["detail"] == "no nevr in script.py (did you mean never?)"
        done.run_path.rename(tmp_path / f"run-{placed}")  # its agent may write for a second yet
    assert "hooks" not in job(PY, "script.py", program=program).processes[0]


def test_a_launcher_lacks_no_hook(job: RunJob, tmp_path: Path) -> None:
    launch = "import subprocess, sys\nsubprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    (tmp_path / "torchrun").write_text(launch)
    hooks = ("__main__:generate=rollout", "__main__:genrate=train")
    program = "def generate(): pass\ngenerate()"
    done = job(PY, "torchrun", "script.py", program=program, hooks=hooks)
    told = [(problem["target"], problem["detail"]) for problem in done.problems]
    assert told == [("__main__:genrate", "no genrate in script.py (did you mean generate?)")]

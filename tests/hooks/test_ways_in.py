"""Every way in which a job starts a Python process, with real processes under `rltrace wrap`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.hooks.conftest import Job, RunJob, untraced

PY = sys.executable
TORCHRUN = str(Path(PY).parent / "torchrun")

MULTIPROCESSING = """
    import multiprocessing, os, rltrace, sys, time
    def work(item):
        with rltrace.span("rollout"):
            time.sleep(0.03)
        return os.getpid()
    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv[1])
        with multiprocessing.Pool(2) as pool:
            assert len(set(pool.map(work, range(20), chunksize=1))) == 2
        child = multiprocessing.Process(target=work, args=(1,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


@pytest.mark.parametrize(
    ("command", "program", "traced"),
    [
        pytest.param([PY, "-c", "pass"], "", 1, id="code"),
        pytest.param([PY, "{script}"], "print('hi')", 1, id="script"),
        pytest.param([PY, "-m", "timeit", "-n1", "-r1", "pass"], "", 1, id="module"),
        pytest.param([PY, "-X", "importtime", "-Wignore", "{script}"], "", 1, id="options"),
        pytest.param(
            ["bash", "-c", f"{PY} -c pass; {PY} {{script}}"], "print('hi')", 2, id="shell-script"
        ),
        pytest.param(
            [PY, "{script}"],
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)",
            2,
            id="subprocess",
        ),
        pytest.param(
            [PY, "{script}"],
            "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'pass'])",
            2,
            id="exec",  # one pid, two processes in the trace
        ),
        pytest.param(
            [PY, "{script}"],
            """
            import os, rltrace
            pid = os.fork()
            if pid == 0:
                rltrace.span("rollout")
                os._exit(0)
            os.waitpid(pid, 0)
            """,
            2,
            id="fork",  # a child that records nothing leaves nothing
        ),
        pytest.param([PY, "{script}", "fork"], MULTIPROCESSING, 4, id="multiprocessing-fork"),
        pytest.param([PY, "{script}", "spawn"], MULTIPROCESSING, 4, id="multiprocessing-spawn"),
        pytest.param(
            # and the fork server itself
            [PY, "{script}", "forkserver"],
            MULTIPROCESSING,
            5,
            id="multiprocessing-forkserver",
        ),
        pytest.param(
            [PY, "{script}"],
            "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], env={})",
            1,
            id="subprocess-with-an-empty-environment",  # which the program asked for
        ),
        pytest.param([PY, "-S", "-c", "pass"], "", 0, id="without-site"),  # no carrier is read
    ],
)
def test_each_python_process_leaves_its_file(
    job: RunJob, command: list[str], program: str, traced: int
) -> None:
    done = job(*command, program=program)
    assert done.code == 0, done.err
    assert len(done.processes) == traced
    assert not done.problems


def test_we_cause_no_warning(job: RunJob) -> None:
    """Where a program turns warnings into errors, ours would be its errors."""
    program = """
        import colorsys, os, rltrace
        with rltrace.span("rollout"):
            colorsys.rgb_to_hsv(1, 0, 0)
        def generate(): pass
        generate()
        if os.fork() == 0:
            rltrace.span("train").end()
            os._exit(0)
        os.wait()
    """
    strict = ["-X", "dev", "-X", "warn_default_encoding", "-W", "error", "-b", "-b"]
    hooks = ("colorsys:rgb_to_hsv=other", "__main__:generate=rollout")
    done = job(PY, *strict, "{script}", program=program, hooks=hooks)
    assert done.code == 0, done.err
    assert [line for line in done.err.splitlines() if "the trace is in" not in line] == []
    assert len(done.spans()) == 4
    assert done.problems == []


def test_two_programs_under_one_pid_are_two_processes(job: RunJob) -> None:
    """`exec`, and Ray, which executes a worker twice under one pid."""
    program = """
        import os, sys, rltrace
        with rltrace.span("rollout" if len(sys.argv) == 1 else "train"):
            pass
        if len(sys.argv) == 1:
            rltrace.span("wait")  # never ended
            os.execv(sys.executable, [sys.executable, __file__, "again"])
    """
    done = job(PY, "{script}", program=program)
    assert done.code == 0, done.err
    first, second = done.processes
    assert first["pid"] == second["pid"]
    assert done.spans("stage, end_ns IS NOT NULL") == [
        ("rollout", True),
        ("wait", False),
        ("train", True),
    ]


def test_torchrun_and_its_ranks(job: RunJob) -> None:
    pytest.importorskip("torch", reason="torchrun comes with torch, which is not installed")
    done = job(
        TORCHRUN,
        "--nproc-per-node=2",
        "--standalone",
        "{script}",
        program="import os; os.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())",
        CUDA_VISIBLE_DEVICES="3,5",
    )
    assert done.code == 0, done.err
    assert sorted(line for line in done.out.splitlines() if line) == ["rank 0", "rank 1"]
    places = sorted((p.get("rank", -1), p.get("devices")) for p in done.processes)
    assert places == [(-1, ["3", "5"]), (0, ["3"]), (1, ["5"])]


@pytest.mark.parametrize("tool", ["pip --version", "venv --help", "rltrace.cli ls"])
def test_tools_that_run_nothing_of_the_job_leave_no_file(job: RunJob, tool: str) -> None:
    done = job(PY, "-m", *tool.split())
    assert done.code == 0, done.err
    assert done.processes == []


def test_a_process_keeps_its_own_view_of_how_it_was_started(job: RunJob) -> None:
    show = """
        import os, sys
        print(sys.path, sys.argv, sys.orig_argv[1:], sys.flags)
        print(sorted(m for m in sys.modules if "rltrace" not in m))
    """
    traced = job(PY, "{script}", "a", "b c", program=show)
    script = str(traced.run_path.parent / "script.py")
    plain = untraced(PY, script, "a", "b c")
    ours, theirs = traced.out.splitlines(), plain.stdout.splitlines()
    assert eval(ours[0].partition("]")[0] + "]")[2:] == eval(theirs[0].partition("]")[0] + "]")[1:]
    assert ours[0].partition("]")[2] == theirs[0].partition("]")[2]
    added = set(eval(ours[1])) - set(eval(theirs[1]))
    assert not {"json", "threading", "subprocess", "inspect", "typing", "re"} & added


# --- what others bring ----------------------------------------------------------------------------


def test_a_tool_with_a_carrier_of_its_own_lives_beside_ours(job: RunJob, tmp_path: Path) -> None:
    """Coverage and viztracer start in each process as we do; here one that patches meta_path."""
    tool = tmp_path / "tool"
    tool.mkdir()
    (tool / "sitecustomize.py").write_text(
        dedent("""
        import sys
        class Spy:
            seen = []
            def find_spec(self, name, path=None, target=None):
                self.seen.append(name)
                return None
        sys.meta_path.insert(0, Spy())
        """)
    )
    done = job(
        PY,
        "{script}",
        program="""
            import sys, colorsys
            print("colorsys" in sys.meta_path[0].seen, colorsys.rgb_to_hsv(1, 0, 0))
        """,
        hooks=("colorsys:rgb_to_hsv=other",),
        PYTHONPATH=str(tool),
    )
    assert done.out == "True (0.0, 1.0, 1)\n"
    assert done.spans() == ["rgb_to_hsv"]


def test_a_profiler_that_runs_the_script_itself(job: RunJob) -> None:
    pytest.importorskip("viztracer", reason="viztracer, of the [dev] extra, is not installed")
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    done = job(PY, "-m", "viztracer", "-o", "out.json", "--quiet", "{script}", program=program)
    assert done.code == 0, done.err
    assert (done.run_path.parent / "out.json").exists()
    assert len(done.processes) == 2


def test_a_run_directory_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    site = Path(__file__).parents[2] / "rltrace" / "hooks" / "site"
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(2)'])"
    gone = {"RLTRACE_RUN": str(tmp_path / "gone"), "PYTHONPATH": str(site)}
    done = untraced(PY, "-c", f"{child}; print(1)", **gone)
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["1", "2"]
    assert done.stderr.count("rltrace:") == 1  # said once for the whole family


def test_a_run_that_is_over_takes_no_more(job: RunJob, tmp_path: Path) -> None:
    """A daemon that the job left behind starts processes for somebody else."""
    late = f"{PY} -c 'import os; print(os.environ.get(\"RLTRACE_RUN\"))' > late.txt"
    wait = "while kill -0 $PPID; do sleep 0.1; done"  # until wrap has ended
    done = job("bash", "-c", f"{PY} -c pass; ({wait}; {late}) >/dev/null 2>&1 &")
    assert len(done.processes) == 1
    for _ in range(200):
        if (tmp_path / "late.txt").exists() and (tmp_path / "late.txt").read_text():
            break
        time.sleep(0.05)
    assert (tmp_path / "late.txt").read_text() == "None\n"
    assert len(done.processes) == 1


def test_a_job_is_complete_whichever_way_it_ends(job: RunJob) -> None:
    program = """
        import os, sys, rltrace
        rltrace.span("rollout")
        end = sys.argv[1]
        if end == "exit": sys.exit(3)
        if end == "raise": raise ValueError("theirs")
        if end == "_exit": os._exit(4)
        os.kill(os.getpid(), int(end))
    """
    expected = {"exit": 3, "raise": 1, "_exit": 4, "15": 143, "9": 137, "11": 139, "6": 134}
    for end, code in expected.items():
        done: Job = job(PY, "{script}", end, program=program)
        assert done.code == code
        assert done.spans()[-1] == "rollout"
        if end == "raise":
            assert "ValueError: theirs" in done.err

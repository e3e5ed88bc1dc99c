"""The documentation tells the truth: its tables are the schema's and its examples run."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from pathlib import Path

import pytest

import rltrace
from benchmarks.__main__ import MEASURED, PAGE, with_table
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace.testing.inside.hooks import ADAPTERS_VARIABLE, SITE, Hook
from rltrace.testing.inside.importers import read_names
from rltrace.testing.inside.trace import (
    RUN_VARIABLE,
    SCHEMA_VERSION,
    TABLES,
    Table,
    create_run,
    vocabulary,
    word,
)
from rltrace.testing.inside.trace import compaction_compact as compact
from tests.docs.frameworks import BEGIN, END, made
from tests.hooks.conftest import untraced

DOCS = Path(__file__).parents[2] / "docs"
TYPES = {"b": "int8", "i": "int32", "q": "int64", "f": "float32", "d": "float64"}


def page(name: str) -> str:
    """The text of a page, in whichever part of the documentation it stands."""
    [path] = DOCS.rglob(name)
    return path.read_text("utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading, down to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert found, f"there is no heading {heading!r}"
    return found[1]


def cells(text: str) -> list[list[str]]:
    """The rows of the Markdown tables in a text, without headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for i, row in enumerate(rows) if not rule(row) and not rule(rows[i + 1 : i + 2])]


def rule(row: object) -> bool:
    return bool(row) and set(str(row)) <= set("[]'-:, ")


def examples(text: str) -> list[tuple[str, str]]:
    """The Python examples of a page: (name of the file that it is, or "", code)."""
    return re.findall(r"^```python(?: file=(\S+))?\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda t: t.name)
def test_the_format_page_lists_each_column_with_its_type_and_unit(table: Table) -> None:
    listed = cells(section(page("trace-format.md"), table.name))
    names = [row[0].strip("`") for row in listed]
    assert names == [column.name for column in table.columns]
    assert [row[1] for row in listed] == [TYPES[column.kind] for column in table.columns]
    for column, row in zip(table.columns, listed, strict=True):
        unit = "ns" if column.is_time else column.codes or ("name" if column.is_name else row[2])
        assert row[2] == unit, column.name
        assert len(row[3]) > 2, f"{column.name} is not explained"


def test_the_format_page_is_of_this_schema_and_lists_each_code() -> None:
    text = page("trace-format.md")
    assert f"Schema version {SCHEMA_VERSION}." in text
    assert f"A span takes {TABLES['spans'].row_bytes} bytes" in text
    listed = dict(cells(section(text, "Codes")))
    for name, codes in listed.items():
        members = getattr(vocabulary, name)
        assert codes == ", ".join(f"{m:d} {word(m)}" for m in members)
    used = {c.codes for t in TABLES.values() for c in t.columns if c.codes}
    assert used == set(listed)


def test_the_api_page_names_everything_public_with_its_parameters() -> None:
    text = re.sub(r"\s+", " ", page("api.md"))
    for name in rltrace.__all__:
        parameters = inspect.signature(getattr(rltrace, name)).parameters.values()
        shown = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
        assert f"rltrace.{name}{shown}".replace("'", '"') in text


def test_the_adapters_page_describes_every_field_of_a_hook() -> None:
    described = " ".join(row[0] for row in cells(section(page("adapters.md"), "Hooks")))
    fields = set(re.findall(r"`(\w+)`", described))
    assert fields | {"target"} == set(Hook.__dataclass_fields__)


def test_the_tables_of_frameworks_are_what_the_adapters_say() -> None:
    between = page("frameworks.md").partition(BEGIN)[2].partition(END)[0].strip()
    assert between == made(), "python -m tests.docs.frameworks"


def test_the_table_of_costs_is_what_was_measured() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text(), json.loads(MEASURED.read_text()))


def test_the_mapping_on_the_page_of_frameworks_is_one(tmp_path: Path) -> None:
    [mapping] = re.findall(r"^```toml\n(.*?)^```", page("frameworks.md"), re.M | re.S)
    (tmp_path / "map.toml").write_text(mapping, "utf-8")
    names = read_names(tmp_path / "map.toml")
    assert (names.framework, names.role_of("trainer 0")) == ("my-rl", "learner")


@pytest.mark.parametrize("name", sorted(str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")))
def test_links_and_paths_lead_somewhere(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]+))?\)", text):
        path = (DOCS / name).parent / target if target else DOCS / name
        assert path.exists(), target
        linked = path.read_text("utf-8") if path.suffix == ".md" else ""
        headings = [
            re.sub(r"[^\w -]", "", h).strip() for h in re.findall(r"^#+ (.*)$", linked, re.M)
        ]
        assert not anchor or anchor in [h.lower().replace(" ", "-") for h in headings]
    for path in re.findall(r"`((?:rltrace|benchmarks|examples)/[\w/.]+)`", text):
        assert (DOCS.parent / path).exists(), path
    for module in re.findall(r"python -m (benchmarks(?:\.\w+)+)", text):
        path = DOCS.parent / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def run_code(code: str, folder: Path, **environment: str) -> None:
    """Runs a program in a folder, as a reader of the page would."""
    done = untraced(sys.executable, "-c", code, cwd=folder, **environment)
    assert done.returncode == 0, done.stderr
    assert "rltrace:" not in done.stderr, done.stderr


def test_the_examples_of_reading_run(tmp_path: Path) -> None:
    run = tmp_path / "rltrace-runs/my-run"
    make(run, Workload(steps=4))
    compact(rltrace.open_run(run))
    for _, code in examples(page("trace-format.md")):
        run_code(code, tmp_path)


def test_the_examples_of_the_api_run_and_record_what_they_say(tmp_path: Path) -> None:
    code = "\n".join(code for _, code in examples(page("api.md")))
    run_code(code, tmp_path)
    run = rltrace.open_run(tmp_path / "rltrace-runs/my-loop")
    assert [p for p in run.problems if p["what"] != "no-gpu"] == []
    assert run.sql("SELECT step FROM steps").fetchall() == [(0,), (1,), (2,)]
    assert run.sql("SELECT DISTINCT lag FROM lags").fetchall() == [(0,)]
    of_job = "process IN (SELECT process FROM processes WHERE role IS DISTINCT FROM 'agent')"
    counts = {table: f"SELECT count(*) FROM raw_{table} WHERE {of_job}" for table in TABLES}
    assert {table: run.sql(query).fetchall()[0][0] for table, query in counts.items()} == {
        "spans": 3 + 9,  # steps; three stages in each
        "trajectories": 12,
        "rewards": 12,
        "uses": 12,
        "syncs": 3,
        "samples": 3,
        "captured_tokens": 0,  # nobody has asked for them
    }


def test_the_example_adapter_brings_its_framework_in(tmp_path: Path) -> None:
    for name, code in examples(page("adapters.md")):
        (tmp_path / name).write_text(code)
    run_dir = tmp_path / "run"
    create_run(str(run_dir), ["python"], {}, rltrace.__version__)
    job = (
        "import toyrl\nrollout = toyrl.Rollout(rank=3)\n"
        "for n in range(2): toyrl.Trainer().fit_step(n, rollout)"
    )
    environment = {
        RUN_VARIABLE: str(run_dir),
        ADAPTERS_VARIABLE: "toyrl=toyrl_adapter:ToyRL",
        "PYTHONPATH": os.pathsep.join([SITE, str(tmp_path)]),
    }
    run_code(job, tmp_path, **environment)
    run = rltrace.open_run(run_dir)
    assert run.sql("SELECT step FROM steps").fetchall() == [(0,), (1,)]
    spans = run.sql(
        "SELECT stage, name, step, items, bytes, version, role, rank FROM spans "
        "WHERE stage <> 'step' ORDER BY start_ns"
    ).fetchall()
    assert spans[:2] == [
        ("rollout", "Rollout.generate", 0, 2, None, 0, "rollout", 3),
        ("sync", "Rollout.load_weights", 0, None, 1000, None, "rollout", 3),
    ]
    syncs = run.sql("SELECT s.version, p.role FROM raw_syncs s JOIN processes p USING (process)")
    assert sorted(syncs.fetchall()) == [(1, "rollout"), (2, "rollout")]


@pytest.mark.parametrize("name", ["docs/reference/adapters.md", "CONTRIBUTING.md"])
def test_the_tests_that_pages_show_pass(name: str, tmp_path: Path) -> None:
    for file, code in examples((Path(__file__).parents[2] / name).read_text()):
        if file.startswith("test_"):
            (tmp_path / file).write_text(code)
    run_code(f"import pytest; raise SystemExit(pytest.main([{str(tmp_path)!r}]))", tmp_path)

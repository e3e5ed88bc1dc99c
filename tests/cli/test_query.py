"""`rltrace query`: what it asks, of which run, and what it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rltrace
from rltrace.testing.inside.hooks import identify
from rltrace.testing.inside.trace import CANNOT_TELL, RltraceError, update_run_json
from tests.cli.conftest import invoke


def test_what_json_has_no_word_for_is_null_in_a_query(run: Path) -> None:
    sql = "SELECT 'nan'::double AS a, '-inf'::double AS b, 1.5::double AS c"
    result = invoke("query", sql, run, "--json")
    assert json.loads(result.output) == [{"a": None, "b": None, "c": 1.5}]
    assert "NaN" not in result.output


@pytest.mark.parametrize("sql", ["SELECT 1 AS n", "@tail_by_step", "from steps", "(SELECT 2 AS n)"])
def test_the_run_stands_before_a_query_or_behind_it(run: Path, sql: str) -> None:
    behind, before = invoke("query", sql, run, "--csv"), invoke("query", run, "--csv", sql)
    assert behind.exit_code == 0, behind.output
    assert before.output == behind.output


@pytest.mark.parametrize("words", [("nowhere", "SELECT 1"), ("SELECT 1", "nowhere")])
def test_a_query_of_a_run_that_is_not_there_names_the_run(words: tuple[str, ...]) -> None:
    result = invoke("query", *words)
    assert (result.exit_code, len(result.output.splitlines())) == (4, 1)
    assert "nowhere does not exist" in result.output


def test_times_with_a_zone_are_text(run: Path) -> None:
    """As Python's own they would need pytz."""
    sql = "SELECT 1 AS t, to_timestamp(0) AS t, [to_timestamp(0)] AS several"
    (line,) = invoke("query", "--csv", sql, run).output.splitlines()[1:]
    number, moment, several = line.split(",")
    assert number == "1"
    assert moment.startswith(("1970-01-01", "1969-12-31"))
    assert moment in several
    assert invoke("query", sql, run, "--json").exit_code == invoke("query", sql, run).exit_code == 0


def test_named_queries_are_listed_without_a_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    listed = json.loads(invoke("query", "--list", "--json").output)
    lines = invoke("query", "--list").output.splitlines()
    assert len(lines) == len(listed) > 20
    for one, line in zip(listed, lines, strict=True):
        assert line.rstrip().split(maxsplit=1) == [one["name"], one["explains"]]


def test_a_query_is_asked_by_its_name_or_from_a_file(run: Path, tmp_path: Path) -> None:
    (row,) = json.loads(invoke("query", "@tail_by_finish", run, "--json").output)
    assert row["trajectories"] == 5
    own = tmp_path / "own.sql"
    own.write_text(invoke("query", "--show", "@tail_by_finish").output)
    assert json.loads(invoke("query", f"@{own}", run, "--json").output) == [row]
    own.write_bytes(b"\xff")
    for path in (own, tmp_path / "none.sql"):
        result = invoke("query", f"@{path}", run)
        assert (result.exit_code, len(result.output.splitlines())) == (4, 1)


def test_query_speaks_json_and_csv(run: Path) -> None:
    query = "SELECT step, 'a,b' AS text, NULL AS nothing FROM steps ORDER BY step LIMIT 2"
    assert json.loads(invoke("query", "--json", query, run).output) == [
        {"step": 0, "text": "a,b", "nothing": None},
        {"step": 1, "text": "a,b", "nothing": None},
    ]
    assert invoke("query", "--csv", query, run).output.splitlines()[1] == '0,"a,b",'


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'",
        "ATTACH '{}'",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_external_access = true",
        "PRAGMA lock_configuration = false",
        "PRAGMA temp_directory = '{}'",
        *(f"SELECT * FROM read_{kind}('/etc/passwd')" for kind in ("csv", "text", "blob", "json")),
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_parquet('{}')",
        "FROM query('FROM ''/etc/passwd''')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "SELECT getenv('HOME')",
        "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
        "IMPORT DATABASE '{}'",
        "PRAGMA log_query_path = '{}'",
        "CALL enable_logging(storage => 'file', storage_path => '{}')",
        "FROM enable_logging(storage => 'file', storage_path => '{}')",
        "PREPARE p AS COPY (SELECT 1) TO '{}'",
        "SELECT * FROM read_text('{}/../run/run.json')",
        "UPDATE EXTENSIONS",
        "CALL start_ui()",
        "FROM dbgen(sf = 0)",
        "FROM duckdb_secrets()",
    ],
)
def test_a_query_reads_its_run_and_nothing_else(
    small_run: Path, compacted_run: Path, tmp_path: Path, sql: str, compacted: bool
) -> None:
    run = Path(shutil.copytree(compacted_run if compacted else small_run, tmp_path / "run"))
    aside = tmp_path / "aside"
    before = sorted(tmp_path.rglob("*"))
    result = invoke("query", run, sql.format(aside))
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert "root:" not in result.output
    assert "damaged" not in result.output
    assert sorted(tmp_path.rglob("*")) == before
    assert invoke("query", run, "SELECT count(*) FROM spans").exit_code == 0


def test_what_is_in_the_folder_for_what_spills_is_no_query_s(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB lets queries read it, and its own name for it, .tmp, may be a link to anywhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".tmp").symlink_to("/etc")
    for sql in ("FROM read_text('.tmp/passwd')", "FROM glob('.tmp/*')"):
        result = invoke("query", run, sql)
        assert (result.exit_code, len(result.output.splitlines())) == (2, 1), result.output
        assert "nothing else" in result.output


_PIVOT = "(PIVOT (SELECT 1 AS a) ON a USING count(*))"


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{}'",
        "explain /* so */ (format json, analyze) -- far\n copy (select 1) to '{}'",
        f"COPY {_PIVOT} TO '{{}}'",
    ],
)
def test_a_question_from_python_writes_nothing_either(run: Path, tmp_path: Path, sql: str) -> None:
    opened, file = rltrace.open_run(run), tmp_path / "aside.csv"
    with pytest.raises(RltraceError, match=r"only reads.*not COPY"):
        opened.sql(sql.format(file))
    assert not file.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "-- all\nFROM steps",
        "(SELECT 1)",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE FROM steps",
        "EXPLAIN (FORMAT json) SELECT 1",
        "SUMMARIZE steps",
        "DESCRIBE steps",
        "SHOW TABLES",
        "PRAGMA table_info('steps')",
        "PIVOT spans ON stage USING count(*)",
        "WITH one AS (VALUES (1)) TABLE one",
    ],
)
def test_whatever_answers_with_rows_is_a_question(run: Path, sql: str) -> None:
    assert rltrace.open_run(run).sql(sql).fetchall()


def test_what_a_question_finds_can_be_written(run: Path, tmp_path: Path) -> None:
    opened, file = rltrace.open_run(run), tmp_path / "aside.csv"
    opened.sql("SELECT 1 AS n").write_csv(str(file))
    assert opened.sql(f"SELECT * FROM read_csv('{file}')").fetchall() == [(1,)]


def test_a_sample_is_found_by_the_id_that_its_job_gave_it(run: Path) -> None:
    known = identify("3/2")
    result = invoke("query", run, "SELECT id_of('3/2') AS number", "--json")
    assert json.loads(result.output) == [{"number": known}]


_ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def test_a_query_ends_when_its_time_is_over(run: Path) -> None:
    result = invoke("query", run, _ENDLESS, "--timeout", "0.3")
    assert (result.exit_code, result.stdout) == (CANNOT_TELL, "")


def test_a_query_of_a_run_from_elsewhere_has_a_limit(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltrace.cli.querying.FOREIGN_QUERY_S", 0.3)
    foreign = tmp_path / "foreign"
    shutil.copytree(run, foreign)
    update_run_json(str(foreign), node="another")
    assert invoke("query", foreign, _ENDLESS).exit_code == CANNOT_TELL
    assert invoke("query", foreign, "SELECT 1").exit_code == 0

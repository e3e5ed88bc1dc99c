"""The timeline: official protobufs and Perfetto's own engine read in it what the run holds."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from pathlib import Path
from time import monotonic_ns

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import rltrace
from benchmarks.make_trace import make
from benchmarks.synthetic.workload import Workload
from rltrace.hooks.identity import identify
from rltrace.hooks.recorder import Recorder
from rltrace.report.perfetto import write
from rltrace.trace.errors import RltraceError
from rltrace.trace.run import Run
from rltrace.trace.run_dir import create_run
from rltrace.trace.vocabulary import Fate, Finish, Phase, Stage, SyncRole, Transport
from tests.system.trace_processor import opened

US = 1000

DURATIONS = """
    SELECT sum(end_ns - start_ns)::BIGINT FROM (
        SELECT start_ns, end_ns FROM raw_spans UNION ALL
        SELECT start_ns, end_ns FROM raw_trajectories UNION ALL
        SELECT start_ns, end_ns FROM raw_rewards UNION ALL
        SELECT start_ns, end_ns FROM raw_syncs)
    WHERE end_ns <> -1
"""


@pytest.fixture
def awkward(tmp_path: Path) -> Run:
    """Two processes of one pid with everything that a timeline can stumble over."""
    directory = tmp_path / "run"
    create_run(str(directory), ["python", "train.py"], {}, rltrace.__version__)
    rollout, learner = Recorder(str(directory)), Recorder(str(directory))
    rollout.describe(role="rollout", rank=0)
    learner.describe(role="learner")
    base = monotonic_ns()

    def span(start: int, end: int | None, stage: Stage = Stage.ROLLOUT, **columns: int) -> None:
        recorder = learner if stage in (Stage.STEP, Stage.TRAIN) else rollout
        given = {"name": recorder.name(stage.name.lower()), "stage": stage, "lane": 5, **columns}
        end_ns = -1 if end is None else base + end * US
        recorder.append("spans", start_ns=base + start * US, end_ns=end_ns, **given)

    span(0, 100, step=3, version=300, tokens=10**12)
    span(10, 50, Stage.ENV)
    span(50, 60, bytes=5)  # begins as the one before it ends
    span(60, 60)  # no length
    span(60, 100, Stage.SYNC, phase=Phase.LOAD)  # ends with its parent
    span(100, 200)
    span(150, 250)  # crosses the one before it
    span(300, None)  # never ended
    span(310, 320, step=0, version=0, tokens=0)  # zero is known
    span(20, 30, lane=6)
    span(20, 40, Stage.TRAIN)
    span(0, 500, Stage.STEP, step=0)
    span(500, 900, Stage.STEP, step=1)
    for i in range(5):
        rollout.append(
            "trajectories",
            start_ns=base + i * US,
            end_ns=base + (100 + i) * US,
            first_token_ns=base + (10 + i) * US,
            trajectory=identify(i),
            group=identify("g"),
            first_version=1,
            last_version=1 + i % 2,
            response_tokens=17,
            finish=Finish.LENGTH,
        )
        fate = Fate.TRAINED if i else Fate.STALE
        moment = base + (600 + i) * US
        learner.append("uses", time_ns=moment, trajectory=identify(i), step=1, fate=fate)
    verdict = {"trajectory": identify(0), "component": rollout.name("exact match"), "value": 0.5}
    rollout.append("rewards", start_ns=base + 100 * US, end_ns=base + 101 * US, **verdict)
    learner.append(
        "syncs",
        start_ns=base + 900 * US,
        end_ns=base + 950 * US,
        version=2,
        role=SyncRole.SOURCE,
        transport=Transport.NCCL,
        bytes=10**9,
    )
    for i in range(3):
        reading = {"counter": learner.name("memory_bytes"), "device": 0, "value": 0.1 * i}
        learner.append("samples", time_ns=base + i * US, **reading)
    return rltrace.open_run(directory)


def test_the_packets_make_a_well_formed_trace(awkward: Run, tmp_path: Path) -> None:
    write(awkward, tmp_path / "t.pftrace")
    trace = Trace.FromString((tmp_path / "t.pftrace").read_bytes())
    described: set[int] = set()
    processes, threads = Counter[int](), Counter[int]()
    texts: set[int] = set()
    stacks: dict[int, list[int]] = defaultdict(list)
    durations: list[int] = []
    last = 0
    for packet in trace.packet:
        if packet.HasField("interned_data"):
            texts = {entry.iid for entry in packet.interned_data.event_names}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.parent_uuid in described | {0}, "a parent comes before its tracks"
            described.add(track.uuid)
            processes.update([track.process.pid] if track.HasField("process") else [])
            threads.update([track.thread.tid] if track.HasField("thread") else [])
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp >= last
            last = packet.timestamp
            assert event.track_uuid in described
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                assert event.name_iid in texts
                stacks[event.track_uuid].append(packet.timestamp)
            elif event.type == TrackEvent.TYPE_SLICE_END:
                durations.append(packet.timestamp - stacks[event.track_uuid].pop())
    assert max(processes.values()) == max(threads.values()) == 1, "made-up ids are unique"
    assert sum(len(stack) for stack in stacks.values()) == 1, "one span never ended"
    assert sum(durations) == awkward.sql(DURATIONS).fetchall()[0][0]


def test_the_engine_sees_every_row_and_its_true_duration(awkward: Run, tmp_path: Path) -> None:
    counts = write(awkward, tmp_path / "t.pftrace.gz")
    assert (counts.spans, counts.unended, counts.processes) == (13, 1, 2)
    with opened(tmp_path / "t.pftrace.gz") as trace:
        assert not trace.problems()
        kinds = ("spans", "trajectories", "rewards", "syncs", "uses")
        everything = sum(awkward.rows(kind) for kind in kinds)
        assert trace.rows("SELECT count(*), sum(dur = -1) FROM slice") == [(everything, 1)]
        lasting = trace.rows("SELECT sum(dur) FROM slice WHERE dur > 0")[0][0]
        assert lasting == awkward.sql(DURATIONS).fetchall()[0][0]
        expected = awkward.sql(
            "SELECT start_ns, CASE end_ns WHEN -1 THEN -1 ELSE end_ns - start_ns END "
            f"FROM raw_spans WHERE stage <> {Stage.STEP:d}"
        ).fetchall()
        stages = ", ".join(f"'{s.name.lower()}'" for s in Stage if s is not Stage.STEP)
        drawn = trace.rows(f"SELECT to_realtime(ts), dur FROM slice WHERE category IN ({stages})")
        assert sorted(drawn) == sorted(expected), "each span stands at its real time"


def test_slices_stand_on_the_tracks_of_their_process(awkward: Run, tmp_path: Path) -> None:
    write(awkward, tmp_path / "t.pftrace")
    pid = awkward.processes[0].pid
    with opened(tmp_path / "t.pftrace") as trace:
        lanes = trace.rows(
            "SELECT p.name AS process, t.name AS lane, count(*), max(s.depth) FROM slice s "
            "JOIN thread_track k ON s.track_id = k.id JOIN thread t USING (utid) "
            "JOIN process p USING (upid) GROUP BY 1, 2 ORDER BY 1, 2"
        )
        host = awkward.processes[0].host
        learner, rollout = f"learner ({host}:{pid})", f"rollout 0 ({host}:{pid})"
        assert lanes == [
            (learner, "lane 1", 1, 0),
            (rollout, "lane 1", 8, 1),
            (rollout, "lane 2", 1, 0),
        ]
        others = dict(
            trace.rows(
                "SELECT t.name, count(*) FROM slice s JOIN track t ON s.track_id = t.id "
                "WHERE t.name NOT NULL GROUP BY 1"
            )
        )
        assert others == {
            "steps": 2,
            "lane 1, crossing": 1,
            "trajectories": 5,
            "rewards": 1,
            "weight updates": 1,
            "samples used": 5,
        }
        packed = "SELECT count(DISTINCT track_id) FROM slice WHERE category = 'trajectory'"
        assert trace.rows(packed) == [(5,)], "five at a time need five rows"


def test_annotations_say_what_is_known_and_only_that(awkward: Run, tmp_path: Path) -> None:
    write(awkward, tmp_path / "t.pftrace")
    with opened(tmp_path / "t.pftrace") as trace:

        def notes(where: str) -> list[dict[str, object]]:
            slices: dict[int, dict[str, object]] = {}
            for slice_id, key, whole, text, real in trace.rows(
                "SELECT s.id, a.key, a.int_value, a.string_value, a.real_value FROM slice s "
                "LEFT JOIN args a ON s.arg_set_id = a.arg_set_id AND a.key LIKE 'debug.%' "
                f"WHERE {where} ORDER BY s.ts"
            ):
                known = slices.setdefault(slice_id, {})
                if key is not None:
                    value = next(v for v in (whole, text, real) if v is not None)
                    known[key.removeprefix("debug.")] = value
            return list(slices.values())

        rollout = notes("category = 'rollout' AND dur > 0")
        assert {"step": 3, "version": 300, "tokens": 10**12} in rollout
        assert {"step": 0, "version": 0, "tokens": 0} in rollout
        assert {} in rollout
        assert notes("category = 'sync'") == [{"phase": "load"}]
        first = notes("category = 'trajectory'")[0]
        assert first == {
            "trajectory": identify(0),
            "group": identify("g"),
            "first_version": 1,
            "last_version": 1,
            "response_tokens": 17,
            "to_first_token_ns": 10 * US,
            "finish": "length",
        }
        assert notes("category = 'verdict'") == [{"trajectory": identify(0), "value": 0.5}]
        update = {"version": 2, "bytes": 10**9, "role": "source", "transport": "nccl"}
        assert notes("category = 'weight update'") == [update]


def test_an_arrow_leads_from_each_sample_to_its_use(awkward: Run, tmp_path: Path) -> None:
    write(awkward, tmp_path / "t.pftrace")
    with opened(tmp_path / "t.pftrace") as trace:
        arrows = trace.rows(
            "SELECT a.category AS first, b.category AS last, x.int_value = y.int_value "
            "FROM flow f JOIN slice a ON f.slice_out = a.id JOIN slice b ON f.slice_in = b.id "
            "JOIN args x ON x.arg_set_id = a.arg_set_id AND x.key = 'debug.trajectory' "
            "JOIN args y ON y.arg_set_id = b.arg_set_id AND y.key = 'debug.trajectory'"
        )
        assert arrows == [("trajectory", "use", 1)] * 5
        assert trace.rows("SELECT name FROM slice WHERE category = 'use' ORDER BY ts") == [
            ("stale",),
            *[("trained",)] * 4,
        ]


def test_counters_keep_their_values_and_unit(awkward: Run, tmp_path: Path) -> None:
    write(awkward, tmp_path / "t.pftrace")
    with opened(tmp_path / "t.pftrace") as trace:
        read = trace.rows(
            "SELECT t.name, t.unit, c.value FROM counter c "
            "JOIN counter_track t ON c.track_id = t.id ORDER BY c.ts"
        )
        assert read == [("memory_bytes 0", "bytes", 0.1 * i) for i in range(3)]


@pytest.mark.parametrize("placement", ["colocated", "async"])
def test_a_whole_run_adds_up_stage_by_stage(placement: str, tmp_path: Path) -> None:
    make(tmp_path / "run", Workload(placement=placement, spans=20_000))
    run = rltrace.open_run(tmp_path / "run")
    write(run, tmp_path / "t.pftrace.gz")
    with opened(tmp_path / "t.pftrace.gz") as trace:
        assert not trace.problems()
        drawn = trace.rows(
            "SELECT category, count(*), sum(dur) FROM slice WHERE category NOT IN "
            "('trajectory', 'verdict', 'weight update', 'use') GROUP BY 1 ORDER BY 1"
        )
        lasting = "sum(end_ns - start_ns)::BIGINT"
        stored = run.sql(f"SELECT stage, count(*), {lasting} FROM spans GROUP BY 1 ORDER BY 1")
        assert drawn == stored.fetchall()
        assert trace.rows("SELECT count(*) FROM counter") == [(run.rows("samples"),)]


def test_gzip_changes_nothing_but_the_size(awkward: Run, tmp_path: Path) -> None:
    plain, packed = tmp_path / "t.pftrace", tmp_path / "t.pftrace.gz"
    sizes = [write(awkward, path).bytes for path in (plain, packed)]
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sizes == [plain.stat().st_size, packed.stat().st_size]


def test_an_empty_run_is_an_empty_timeline(tmp_path: Path) -> None:
    create_run(str(tmp_path / "run"), [], {}, rltrace.__version__)
    counts = write(rltrace.open_run(tmp_path / "run"), tmp_path / "t.pftrace")
    assert (counts.spans, counts.tracks) == (0, 0)
    with opened(tmp_path / "t.pftrace") as trace:
        assert trace.rows("SELECT count(*) FROM slice") == [(0,)]


def test_a_place_that_cannot_be_written_is_said_and_left_alone(
    awkward: Run, tmp_path: Path
) -> None:
    with pytest.raises(RltraceError, match="another place with -o") as caught:
        write(awkward, tmp_path / "missing" / "t.pftrace")
    assert caught.value.exit_code == 4
    folder = tmp_path / "folder.pftrace"
    folder.mkdir()
    with pytest.raises(RltraceError):
        write(awkward, folder)
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []

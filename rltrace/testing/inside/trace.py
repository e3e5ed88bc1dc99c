"""What tests ask of `rltrace.trace`."""

from rltrace.trace import (
    fetched,
    growing,
    liveness,
    manifest,
    packs,
    parquet,
    segment,
    store,
    tables,
    texts,
    vocabulary,
)
from rltrace.trace.alignment import align, read_clock_files
from rltrace.trace.arrow_header import batch_message, schema_message
from rltrace.trace.clock import monotonic_ns, node_id
from rltrace.trace.duration import command_s
from rltrace.trace.ends import End, read_ends
from rltrace.trace.errors import (
    ANSWER_IS_NO,
    CANNOT_TELL,
    OK,
    UNREADABLE,
    WRONG_USAGE,
    RltraceError,
)
from rltrace.trace.fetched import CACHE_VARIABLE, fetch
from rltrace.trace.files import RunFiles
from rltrace.trace.follow import Follower, Rows
from rltrace.trace.given_files import open_given, text_given
from rltrace.trace.growing import GrowingSegment
from rltrace.trace.liveness import Liveness
from rltrace.trace.manifest import MANIFEST_FILE, Manifest, Taken, read_manifest
from rltrace.trace.names import FollowedNames
from rltrace.trace.narrowed import Range
from rltrace.trace.outside import from_outside
from rltrace.trace.own_files import FOLLOW_VARIABLE, open_own
from rltrace.trace.packs import MOST_PACKED_BYTES, NotAPack, Piece, apply, pack, unpack
from rltrace.trace.parquet import compact, delete_segments
from rltrace.trace.questions import only_asks
from rltrace.trace.reach import AGAIN, ALL_LOOKED, LOOKED, SHIPPED
from rltrace.trace.redacted import REDACTED, redacted, redacted_facts
from rltrace.trace.run import Run, open_run
from rltrace.trace.run_dir import (
    APART_FILE,
    DROPPED,
    ENDS,
    FETCHED_FILE,
    NODES,
    PARQUET,
    PROBLEMS,
    RECORDING_STOPPED,
    RUN_FILE,
    RUN_VARIABLE,
    create_run,
    dumps,
    holds_run,
    publishes_file,
    read_described,
    read_run_json,
    update_run_json,
    write_json,
)
from rltrace.trace.schema import (
    EVENT_TABLES,
    SAMPLES,
    SCHEMA_VERSION,
    SPANS,
    TABLES,
    WIDTH_BYTES,
    Column,
    Table,
)
from rltrace.trace.segment import LARGEST_BATCH_ROWS, TableWriter
from rltrace.trace.segments import read_segments
from rltrace.trace.signals import GIVEN_NAN
from rltrace.trace.store import PACKS, Store, check_url, parse_pack_name, unreached
from rltrace.trace.vocabulary import Fate, Finish, Outcome, Phase, Stage, SyncRole, Transport, word
from rltrace.trace.written_files import written

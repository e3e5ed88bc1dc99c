"""What tests ask of `rltrace.importers`."""

from rltrace.importers import event_files, field, placed, verl
from rltrace.importers.chrome import read as chrome_read
from rltrace.importers.event_files import crc32c
from rltrace.importers.event_files import read as event_files_read
from rltrace.importers.log import LONGEST_LINE, Log, Record, joined, out_of_order
from rltrace.importers.placed import read_names
from rltrace.importers.reading import read_log
from rltrace.importers.run_writer import ImportedRun, write_run
from rltrace.importers.trl import read as trl_read
from rltrace.importers.verl import SETTINGS

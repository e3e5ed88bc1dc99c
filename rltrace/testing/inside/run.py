"""What tests ask of `rltrace.run`."""

from rltrace.run import experiment, exporter, gate_settings, otlp_sender, wrap
from rltrace.run.agent import NO_DEVICE, memory_room_bytes, read_host
from rltrace.run.change import Change, change_of_fix, change_of_words
from rltrace.run.closing import close_run, job_processes
from rltrace.run.doctor import examine
from rltrace.run.gate_settings import FILE, read_settings
from rltrace.run.importing import Imported, import_log
from rltrace.run.lifetime import Lifetime
from rltrace.run.memory import COUNTER, MemoryFloor, memory_bytes_per_s
from rltrace.run.opening import agent_lock, make_run, start_agent
from rltrace.run.otlp_sender import send
from rltrace.run.shipping import by_hand, kept
from rltrace.run.shipping.courier import Courier, everything
from rltrace.run.shipping.shipper import Shipper
from rltrace.run.step_log import log_steps
from rltrace.run.top import INTERVAL_S
from rltrace.run.wrap import AgentKeeper, EachStep

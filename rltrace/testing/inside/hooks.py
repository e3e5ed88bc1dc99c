"""What tests ask of `rltrace.hooks`."""

from rltrace.hooks import moved, observing, recorder, span_api
from rltrace.hooks.boot import ADAPTERS_VARIABLE, CARRIED, SITE
from rltrace.hooks.capturing import start
from rltrace.hooks.delaying import Delays, StepFile
from rltrace.hooks.doses import BLOCK, DEFAULT_STAGES, STAGES, Design
from rltrace.hooks.finder import Finder
from rltrace.hooks.hook import Adapter, Call, Hook, OwnFigure, split_target, stage_code
from rltrace.hooks.identity import identify
from rltrace.hooks.launch import launch
from rltrace.hooks.observing import Observer
from rltrace.hooks.recorder import MOST_PROBLEMS, Recorder
from rltrace.hooks.span_api import span
from rltrace.hooks.spans import watch_asyncio
from rltrace.hooks.versions import satisfies
from rltrace.hooks.wandb_rows import FILE
from rltrace.hooks.wrapping import Patch, observers, replacement, wrap
from rltrace.trace.run_dir import RUN_VARIABLE

"""What tests ask of `rltrace.adapters`."""

from rltrace.adapters.openrlhf import agents, engine, training
from rltrace.adapters.openrlhf import controller as openrlhf_controller
from rltrace.adapters.openrlhf import fates as openrlhf_fates
from rltrace.adapters.openrlhf import rollout as openrlhf_rollout
from rltrace.adapters.ray_trainer import RayTrainer
from rltrace.adapters.transfer_queue import AGE, LAG, LYING
from rltrace.adapters.trl import pairs, queued, rollouts
from rltrace.adapters.trl import verdicts as trl_verdicts
from rltrace.adapters.trl.buffer import buffer as buffer_buffer
from rltrace.adapters.trl.loop import loop as loop_loop
from rltrace.adapters.trl.rollouts import Ids, lengths
from rltrace.adapters.verl import objective
from rltrace.adapters.verl import rollout as verl_rollout
from rltrace.adapters.verl.tables import LABELS

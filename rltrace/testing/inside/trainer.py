"""What tests ask of `rltrace.trainer`."""

from rltrace.trainer import crew
from rltrace.trainer.checkpoint import Checkpoint
from rltrace.trainer.cluster import ray_session
from rltrace.trainer.config import (
    OBJECTIVES,
    TASKS,
    RunFailed,
    TrainerConfig,
    TrainerError,
    Unreadable,
)
from rltrace.trainer.config import PLACEMENTS as config_PLACEMENTS
from rltrace.trainer.crew import Crew, Pool
from rltrace.trainer.grpo import response_log_probs
from rltrace.trainer.learner import Learner, Reference
from rltrace.trainer.ledger import Ledger, StepRecord
from rltrace.trainer.model import ModelShape, Transformer
from rltrace.trainer.placement import PLACEMENTS as placement_PLACEMENTS
from rltrace.trainer.policy import initial_weights, policy_of
from rltrace.trainer.reward import RewardWorker
from rltrace.trainer.rollout import RolloutWorker
from rltrace.trainer.run import train_with
from rltrace.trainer.task import ASK, END, Task, task_of
from rltrace.trainer.trajectory import Request, Reward, Sample, TrainReport, Trajectory, use_of

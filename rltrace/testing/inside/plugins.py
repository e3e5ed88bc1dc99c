"""What tests ask of `rltrace.plugins`."""

from rltrace.plugins import openrlhf, vllm_backend
from rltrace.plugins.openrlhf import VERSIONS
from rltrace.plugins.streaming import StreamPublisher, is_seen
from rltrace.plugins.vllm_trainer import RltraceTrainerInitInfo

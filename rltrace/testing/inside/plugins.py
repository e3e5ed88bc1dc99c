"""What tests ask of `rltrace.plugins`."""

from rltrace.plugins import openrlhf
from rltrace.plugins.openrlhf import VERSIONS
from rltrace.plugins.streaming import StreamPublisher, is_seen

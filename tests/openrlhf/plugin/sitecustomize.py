"""Read by every Python that starts with this folder on its path."""

import openrlhf_cpu

openrlhf_cpu.install()

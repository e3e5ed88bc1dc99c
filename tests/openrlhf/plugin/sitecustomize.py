"""Read by every Python that starts with this folder on its path."""

import late_modules
from openrlhf_cpu.late import CHANGES

late_modules.install(CHANGES)

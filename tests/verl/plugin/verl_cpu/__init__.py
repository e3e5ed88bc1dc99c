"""verl on a CPU: a platform, an engine, a rollout server, and a checkpoint engine over gloo.

verl imports this package in each of its processes (`VERL_USE_EXTERNAL_MODULES=verl_cpu`), when it
is half imported itself. What has to be registered with modules that come later is registered as
each of them has been executed (`late_modules`). `job_stamps` says when each of these worked.

    platform.py     what verl asks of a device
    late.py         the registrations
    rollout.py      the server's place in verl: its launch, and weights pushed to it
    server.py       the server: transformers, a thread for each request
    checkpoint.py   weights over gloo, for trainers that are apart from their rollout
    reward.py       a rule
    tools.py        a tool
"""

from __future__ import annotations

import late_modules

from verl_cpu import late, platform

platform.register()
late_modules.install(late.REGISTER)

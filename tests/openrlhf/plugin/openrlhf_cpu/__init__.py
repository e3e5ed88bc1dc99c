"""OpenRLHF on a CPU: what it, DeepSpeed and vLLM expect of CUDA, and what the parts of a job did.

OpenRLHF has no registry for any of this, so modules are changed as each of them has been executed,
in every process of the job (`sitecustomize.py` beside this package). The command stays the user's.

    late.py         which module, and what is done to it
    device.py       torch without CUDA; a Ray of its own, whose "GPU" is a mere number
    transfer.py     weights over gloo, and into a vLLM for CPUs
    watched.py      stamps of requests and of updates
    reward.py       a rule
    reward_server.py    the same, over HTTP
    agent.py        an environment of two turns
"""

"""rltrace.sync inside other people's frameworks, without any code of the user's.

    streaming.py       a policy that a framework hands out tensor by tensor
    verl_backend.py    verl: `checkpoint_engine.backend=rltrace`
    verl_engine.py     ... the engine itself, loaded with verl's registry of engines
    openrlhf.py        OpenRLHF: one call an update, under `rltrace wrap --sync`
    vllm_backend.py    vLLM: the weight transfer backend `rltrace`
    vllm_worker.py     ... the engine in vLLM's workers
    vllm_trainer.py    ... and the one in the trainer

Each is used only where its user names it. The `*_backend` modules, which a framework loads in each
of its processes, import the standard library only.
"""

REPLACEMENTS = (
    "verl.checkpoint_engine.base=rltrace.plugins.verl_backend:register",
    "openrlhf.trainer.ray.ppo_actor=rltrace.plugins.openrlhf:send_whole",
    "openrlhf.trainer.ray.vllm_worker_wrap=rltrace.plugins.openrlhf:take_whole",
)
"""What `rltrace wrap --sync` puts in place: module of a framework = who is given it, imported."""

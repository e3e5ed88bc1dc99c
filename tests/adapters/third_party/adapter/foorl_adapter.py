from rltrace.adapters.table import TableAdapter
from rltrace.adapters.table.logged import logged
from rltrace.adapters.table.timers import timed_block
from rltrace.hooks.hook import Call, Hook

LABELS = {"total": "step", "generate": "rollout", "idle/": "wait", "update": "train", "sync": ""}


def loaded(call: Call) -> None:
    call.recorder.version = call.argument("version")
    call.span.set(bytes=len(call.argument("weights")), version=call.recorder.version)


class FooRL(TableAdapter):
    framework = "foorl"
    labels = LABELS
    calls = (Hook("foorl.loop:Engine.load", "sync", after=loaded),)
    timers = (timed_block("foorl.timing:timed", LABELS, "label"),)
    sinks = (Hook("foorl.loop:Logger.log", before=logged("figures")),)

"""The rule of `reward.py` behind an address, which is printed: a reward server."""

from __future__ import annotations

from json_server import serving

from openrlhf_cpu.reward import reward_func

server = serving(lambda _, asked: reward_func(asked["query"], asked["prompts"], asked["labels"]))
print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
server.serve_forever()

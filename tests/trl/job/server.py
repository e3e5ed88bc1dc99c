"""A stand-in for a vLLM server: a tiny model that really generates and really takes weights, below
TRL's own client (GRPO) or over HTTP (the asynchronous trainer). It stamps requests and updates."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from job_stamps import stamp
from json_server import serving
from rewards import content
from transformers import AutoModelForCausalLM, AutoTokenizer

TOKEN_SECONDS = float(os.environ.get("TRL_JOB_TOKEN_SECONDS", "0.004"))


class Server:
    """One model, one request at a time."""

    def __init__(self, model: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.end = AutoTokenizer.from_pretrained(model).eos_token_id
        self.lock = threading.Lock()
        self.running = threading.Event()
        self.running.set()
        self.version = 0

    def complete(self, prompt: list[int], most: int) -> tuple[list[int], list[float]]:
        """Tokens and their log-probs; it waits while weights are being taken."""
        self.running.wait()
        start_ns = time.time_ns()
        with self.lock, torch.no_grad():
            version = self.version
            ids = torch.tensor([prompt])
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=most,
                do_sample=True,
                top_k=0,
                return_dict_in_generate=True,
                output_scores=True,
                pad_token_id=0,
            )
        new = out.sequences[0, len(prompt) :].tolist()
        told = [
            torch.log_softmax(scores[0].float(), -1)[token].item()
            for scores, token in zip(out.scores, new, strict=True)
        ]
        time.sleep(TOKEN_SECONDS * len(new))
        stamp("request", start_ns, tokens=len(new), version=version, sample=content(new))
        return new, told

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        start_ns, size, count = time.time_ns(), 0, 0
        with self.lock:
            lost = self.version + 1 == int(os.environ.get("TRL_JOB_LOST_LOAD", "-1"))
            own = {} if lost else dict(self.model.named_parameters())
            for name, tensor in tensors:
                if own:  # of a load that is lost nothing but the count is kept
                    own[name].data.copy_(tensor)
                size, count = size + tensor.numel() * tensor.element_size(), count + 1
            self.version += 1
        stamp("load", start_ns, bytes=size, tensors=count, version=self.version)


def pretend(model: str) -> None:
    """Puts a server below TRL's client: what it inherits is how it sends weights."""
    from trl.generation import vllm_client, vllm_generation

    server = Server(model)

    class Client(vllm_client.VLLMClient):  # type: ignore[misc]
        """Without HTTP and NCCL."""

        def __init__(self, **_: Any) -> None:
            self.base_url, self.communicator, self._updating_weights = "", None, False

        def _post(self, url: str, **_: Any) -> None:
            """Nobody to tell."""

        def init_communicator(self, device: Any = None) -> None:
            """No group."""

        def reset_prefix_cache(self) -> None:
            """No cache."""

        def get_server_info(self) -> dict[str, Any]:
            return {"model_config": {"logprobs_mode": "processed_logprobs"}}

        def generate(self, prompts: Any, n: int = 1, max_tokens: int = 16, **_: Any) -> Any:
            """`n` samples of each prompt."""
            found = [server.complete(prompt, max_tokens) for prompt in prompts for _ in range(n)]
            return {
                "prompt_ids": prompts,
                "completion_ids": [ids for ids, _ in found],
                "logprobs": [[[one] for one in told] for _, told in found],
                "logprob_token_ids": None,
            }

    class Engine:
        """vLLM's end of the group over which weights go."""

        @staticmethod
        def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
            server.load(iterator)

    vllm_client.NCCLWeightTransferEngine = Engine
    vllm_client.NCCLTrainerSendWeightsArgs = dict
    vllm_client._HAS_STATEFUL_TRAINER_ENGINE = False
    vllm_generation.VLLMClient = Client
    vllm_generation.is_vllm_available = lambda *_, **__: True


def serve(server: Server) -> str:
    """The same over HTTP, as vLLM's completions; its address."""

    def complete(_: str, asked: Any) -> Any:
        ids, told = server.complete(asked["prompt"], asked["max_tokens"]) if asked else ([], [])
        return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": told}}]}

    httpd = serving(complete)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{httpd.server_port}"

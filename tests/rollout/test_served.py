"""vLLM's own server, in an environment where our platform plugin is installed: its engine and workers are spawned, and inherit nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

from marlaas.stack import servers
from tests.rollout.oracle import Oracle
from tests.support.rollout.requests import POOL, PROMPT

START_S = 400.0
TOKENS = 6


@contextmanager
def served(folder: Path, **adapters: Path) -> Iterator[str]:
    """Base URL of a server of the tiny model, with these LoRA adapters."""
    port = servers.free_port()
    command = f"-m vllm.entrypoints.openai.api_server --model {POOL.model} --served-model-name base --port {port} --dtype float32"
    limits = f"--max-model-len 256 --max-num-seqs 4 --kv-cache-memory-bytes {2**26} --enforce-eager"
    lora = ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in adapters.items())]
    chosen = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command.split(), *limits.split(), *lora], stdout=log, stderr=log, env=os.environ | chosen
        )
    try:
        servers.wait_until_listening(port, process, "vLLM's server", START_S)
        yield f"http://{servers.HOST}:{port}/v1"
    except servers.ServerError:
        print((folder / "vllm.log").read_text()[-4000:])
        raise
    finally:
        process.terminate()
        process.wait(timeout=60)


def completion(url: str, model: str) -> dict[str, Any]:
    wanted = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
    }
    request = Request(f"{url}/completions", json.dumps(wanted).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return dict(json.load(answer)["choices"][0])


@pytest.mark.slow
def test_vllms_own_server_starts_and_answers_under_an_adapter(oracle: Oracle, tmp_path: Path) -> None:
    adapter = oracle.adapter("served", seed=5)
    with served(tmp_path, tuned=adapter) as url:
        for model, name in (("base", None), ("tuned", "served")):
            found = completion(url, model)
            assert len(found["token_ids"]) == TOKENS
            likeliest = oracle.distributions([*PROMPT, *found["token_ids"]], name)[len(PROMPT) - 1 :]
            assert found["token_ids"] == likeliest.argmax(-1).tolist()
            np.testing.assert_allclose(found["logprobs"]["token_logprobs"], likeliest.max(-1), atol=1e-3)

"""What constrained decoding would cost each step of an engine: `python -m bench.constrained`. Writes bench/results/constrained.json.

    python -m bench.constrained [--tokens 200] [--step-ms 12]

xgrammar, as vLLM uses it, without an engine: for a JSON schema, any JSON object, and calls of a tool, with the vocabulary of models/tiny
and with one of 151,936 made-up tokens (the size of Qwen's). Measured are the compilation of the grammar, and per sampled token the mask of
permitted tokens, its application to a row of logits, and the step of the grammar. All requests of a batch, rollouts among them, wait for
these in each step: the share is of a step of `--step-ms`, and of one per constrained request.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import xgrammar
from transformers import AutoTokenizer

from bench.harness import report

NAME = "constrained"
LARGE = 151_936
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
        "place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]},
    },
    "required": ["name", "tags", "count", "place"],
    "additionalProperties": False,
}
CALL = {
    "type": "object",
    "properties": {"name": {"const": "search"}, "arguments": {"type": "object", "properties": {"query": {"type": "string"}}}},
    "required": ["name", "arguments"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200, help="sampled in each grammar")
    parser.add_argument("--step-ms", type=float, default=12.0, help="of 64 rollouts of the tiny model on two cores")
    options = parser.parse_args()
    machine, found = report.machine(), dict[str, Any]()
    torch.set_num_threads(1)
    for name, vocabulary in (("tiny", tiny()), ("large", large())):
        found[name] = {"tokens": vocabulary.vocab_size, **measured(vocabulary, options.tokens, options.step_ms)}
        print(name, json.dumps(found[name]), flush=True)
    report.write(NAME, {"machine": machine, "options": vars(options), "xgrammar": version("xgrammar"), **found})


def tiny() -> xgrammar.TokenizerInfo:
    return xgrammar.TokenizerInfo.from_huggingface(AutoTokenizer.from_pretrained("models/tiny"))


def large() -> xgrammar.TokenizerInfo:
    """Texts as long as those of a real vocabulary, and every byte."""
    source = random.Random(1)
    texts = [bytes([byte]) for byte in range(256)]
    letters = b'abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789 ",:{}[].-_'
    texts += [bytes(source.choices(letters, k=source.randint(2, 8))) for _ in range(LARGE - 257)]
    return xgrammar.TokenizerInfo([*texts, b"</s>"], stop_token_ids=[LARGE - 1])


def measured(vocabulary: xgrammar.TokenizerInfo, tokens: int, step_ms: float) -> dict[str, Any]:
    compiler, found = xgrammar.GrammarCompiler(vocabulary, max_threads=1), dict[str, Any]()
    grammars: dict[str, Callable[[], Any]] = {
        "schema": lambda: compiler.compile_json_schema(json.dumps(SCHEMA)),
        "any JSON": compiler.compile_builtin_json_grammar,
        "call": lambda: compiler.compile_json_schema(json.dumps(CALL)),
    }
    for name, compile_ in grammars.items():
        began = time.perf_counter()
        grammar = compile_()
        compiled_ms = 1000 * (time.perf_counter() - began)
        times = sampled(grammar, vocabulary.vocab_size, tokens)
        total_us = sum(statistics.mean(values) for values in times.values()) * 1e6
        found[name] = {
            "compiled_ms": round(compiled_ms, 1),
            **{f"{part}_us": round(1e6 * statistics.mean(values), 1) for part, values in times.items()},
            "worst_mask_us": round(1e6 * max(times["mask"]), 1),
            "share_of_a_step": round(total_us / (1000 * step_ms), 4),
        }
    return found


def sampled(grammar: Any, vocabulary: int, tokens: int) -> dict[str, list[float]]:
    """Seconds of each part for each token, of replies that are drawn from what the grammar permits. `Any`: xgrammar has no types."""
    source, bitmask = torch.Generator().manual_seed(1), xgrammar.allocate_token_bitmask(1, vocabulary)
    times: dict[str, list[float]] = {"mask": [], "apply": [], "accept": []}
    matcher = xgrammar.GrammarMatcher(grammar)
    for _ in range(tokens):
        if matcher.is_terminated():
            matcher.reset()
        logits = torch.randn((1, vocabulary), generator=source)
        marks = [time.perf_counter()]
        matcher.fill_next_token_bitmask(bitmask)
        marks.append(time.perf_counter())
        xgrammar.apply_token_bitmask_inplace(logits, bitmask)
        marks.append(time.perf_counter())
        token = int(logits.argmax())
        chosen = time.perf_counter()
        matcher.accept_token(token)
        times["mask"].append(marks[1] - marks[0])
        times["apply"].append(marks[2] - marks[1])
        times["accept"].append(time.perf_counter() - chosen)
    return times


if __name__ == "__main__":
    main()

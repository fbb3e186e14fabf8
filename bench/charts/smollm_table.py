"""The tables of SmolLM2-135M in docs/benchmarks.md: rewards by protocol and seed, and log-probabilities of engine and PEFT."""

from bench.charts.tables import Result, machine_line

PROTOCOLS = {
    "held-out": "greedy, topics that were held out",
    "sampled": "the same at temperature 1",
    "other-counts": "greedy, topics and numbers (3 and 5) that were held out",
}


def smollm(result: Result) -> str:
    """Mean rewards before and after with the interval of the gain, seeds, exact replies; differences in nats; replies."""
    last = str(result["task"]["steps"])
    lines = [
        machine_line(result),
        "",
        "| reward | before | after | gain, mean [95 %] | seeds, after | exact, before | exact, after [95 %] |",
    ]
    lines.append("|---" * 7 + "|")
    for name, what in PROTOCOLS.items():
        one = result["protocols"][name]
        seeds = ", ".join(f"{run['evaluations'][name][last]:.3f}" for run in result["runs"].values())
        cells = [what, f"{one['before']:.3f}", f"{one['after']:.3f}", _interval(one["gain"]), seeds]
        lines.append("| " + " | ".join([*cells, f"{one['exact_before']:.3f}", _interval(one["exact_after"])]) + " |")
    lines.append(_constant(result["best_constant"]))
    counts = list(result["words"]["base"])
    lines += ["", f"| mean words of greedy replies, by the number asked for | {' | '.join(counts)} |", "|---" * (1 + len(counts)) + "|"]
    lines += [f"| {_model(name)} | {' | '.join(f'{one[count]:.1f}' for count in counts)} |" for name, one in result["words"].items()]
    lines += [
        "",
        "| log-probabilities, engine and PEFT, nats | tokens | mean difference | maximum | moved by the adapter |",
        "|---" * 5 + "|",
    ]
    for name, one in result["logprobs"].items():
        moved = "–" if name == "base" else f"{one['moved']:.3f}"
        lines.append(f"| {_model(name)} | {one['tokens']} | {one['mean']:.1e} | {one['max']:.1e} | {moved} |")
    lines += ["", f"| prompt | {' | '.join(map(_model, result['words']))} |", "|---" * (1 + len(result["words"])) + "|"]
    lines += [f"| {prompt} | {' | '.join(map(_cell, said.values()))} |" for prompt, said in result["replies"].items()]
    return "\n".join(lines)


def _constant(best: dict[str, float]) -> str:
    return f"| for comparison: always {best['words']} words | – | {best['reward']:.3f} | – | – | – | {best['exact']:.3f} |"


def _model(name: str) -> str:
    return "base model" if name == "base" else name.replace("-", " ")


def _interval(one: dict[str, float]) -> str:
    return f"{one['mean']:.3f} [{one['low']:.3f}, {one['high']:.3f}]"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())

"""Tables of what serving costs, and whether it is right (`bench.serving`)."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from bench.charts.tables import Result, machine_line

__all__ = ["contended", "continuity", "disconnects", "failover", "greedy", "kills", "latency", "streams", "text"]


def text(result: Result) -> str:
    rows = [
        (name, result[part]["cases"], result[part].get("with calls", "–"), result[part]["wrong"])
        for name, part in (("made-up replies", "made"), ("the engine at temperature 2", "engine"))
    ]
    return _table(result, ("replies of", "cases", "with calls", "wrong"), rows)


def latency(result: Result) -> str:
    of = {"the engine in its process": "engine", "through HTTP": "http"}
    rows = [(name, *(result["first_token_ms"][arm][key] for key in ("p50", "p90", "p99", "max"))) for name, arm in of.items()]
    rows.append(("later", *(result["later"][f"{key}_ms"] for key in ("p50", "p90", "p99")), "–"))
    return _table(result, ("first token, ms", "p50", "p90", "p99", "max"), rows)


def streams(result: Result) -> str:
    rows = [
        (
            arm["streams"],
            arm["processes"],
            arm["events_per_s"],
            arm["lateness_ms"]["p50"],
            arm["lateness_ms"]["p99"],
            arm["processor_us_per_event"],
            result["processor_over_100_streams"][name],
            arm["nats_messages_per_flush"],
        )
        for name, arm in result["arms"].items()
    ]
    heads = (
        "streams",
        "processes",
        "events/s",
        "late, p50 ms",
        "late, p99 ms",
        "processor, µs an event",
        "over 100 streams",
        "messages a flush",
    )
    wake = result["wake_up"]
    at_once, later = ([wake[name][key] for name in ("work", "nothing")] for key in ("after_0_ms", "after_5_ms"))
    shown = (
        f"A fixed work takes {at_once[0]} µs one after another and {later[0]} after pauses of 5 ms, no work {at_once[1]} and {later[1]}."
    )
    return f"{_table(result, heads, rows)}\n\n{shown}"


def contended(result: Result) -> str:
    names = {"a burst of another tenant": "burst", "rollouts of more adapters than places": "rollouts"}
    rows: list[tuple[object, ...]] = []
    for name, part in names.items():
        ms, ratio = result[part]["first_token_ms"], result[part]["ratio"]
        rows.append((name, ms["alone"]["p50"], ms["alone"]["p99"], ms["beside"]["p50"], ms["beside"]["p99"], ratio["p99"]))
    gaps = result["reader"]["between_events_ms"]
    read, unread = gaps["read"], gaps["unread"]
    rows.append(("a reader that stands still", read["p50"], read["p99"], unread["p50"], unread["p99"], result["reader"]["ratio_p99"]))
    return _table(result, ("beside", "alone, p50 ms", "p99 ms", "beside it, p50 ms", "p99 ms", "p99 over alone"), rows)


def continuity(result: Result) -> str:
    """One row for each kind of event; restarts of all components are two."""
    rows: list[tuple[object, ...]] = []
    for name, phases in _by_kind(result["phases"]).items():
        failures = sum((Counter[str](phase["failures"]) for phase in phases), Counter[str]())
        shown = ", ".join(f"{kind} ({count})" for kind, count in failures.most_common()) or "–"
        sums = [sum(phase[key] for phase in phases) for key in ("answered", "wrong_answers", "repeated")]
        rows.append((name, *sums, max(phase["longest_s"] for phase in phases), shown))
    return _table(result, ("meanwhile", "answered", "wrong", "repeated", "longest, s", "attempts that failed"), rows)


def _by_kind(phases: Iterable[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for phase in phases:
        verb, _, component = phase["name"].partition(" ")
        found[phase["name"] if not component else f"each component is {'killed' if verb == 'kill' else 'stopped'}"].append(phase)
    return found


def greedy(result: Result) -> str:
    models = {**result["models"], "a stream in which a step came": result["step_in_mid_stream"]}
    rows = [
        (name, of["tokens"], of["not_the_likeliest"], of["of_these_no_tie"], f"{of['largest_logprob_difference']:.6f}")
        for name, of in models.items()
    ]
    return _table(result, ("model", "tokens", "not the likeliest", "of these no tie", "largest difference of log-probabilities"), rows)


def disconnects(result: Result) -> str:
    rid, ledger = result["rid_ms"], result["ledger"]
    rows = [
        ("clients that went, of these before their answer began", f"{result['disconnects']}, {result['before_the_answer_began']}"),
        ("engine rid of the request, ms: p50, p99, longest", f"{rid['p50']}, {rid['p99']}, {rid['max']}"),
        ("cache free before, and after", ", ".join("yes" if one else "no" for one in result["cache_free_before_and_after"])),
        ("tokens of streams that were cut: delivered, booked", f"{ledger['delivered']}, {ledger['booked']}"),
        ("streams booked by more than a flush above what was delivered", ledger["beyond_a_flush"]),
        ("streams booked below what was delivered", ledger["below"]),
    ]
    return _table(result, ("measure", "found"), rows)


def kills(result: Result) -> str:
    killed = ", ".join(f"{name} {count}" for name, count in result["killed"].items())
    rows = [
        ("requests", result["requests"]),
        ("killed", killed),
        ("complete", result["complete"]),
        ("of these `usage` is not the ledger's", result["usage_is_not_the_ledgers"]),
        ("of these continued by another attempt", result["resumed"]),
        ("cut, and booked above what was sampled", result["cut_and_booked_above_what_was_sampled"]),
        ("whole answers that failed, and were booked", result["failed_whole_answers_booked"]),
        ("booked twice", result["booked_twice"]),
    ]
    return _table(result, ("measure", "found"), rows)


def failover(result: Result) -> str:
    pause = result["longest_pause_s"]
    rows = [
        ("streams, in rounds", f"{result['streams'] * result['rounds']}, {result['rounds']}"),
        ("complete", result["complete"]),
        ("continued by the other replica", result["resumed"]),
        ("text differs from the undisturbed run, of these no tie", f"{result['text_differs']}, {result['of_these_no_tie']}"),
        ("tokens twice or missing", result["tokens_wrong_in_number"]),
        ("longest pause of each round, s: median, longest", f"{pause['median']}, {pause['max']}"),
        ("longest pause without a kill, s", result["undisturbed_pause_s"]),
    ]
    return _table(result, ("measure", "found"), rows)


def _table(result: Result, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(str(one) for one in row)} |" for row in rows)]
    return "\n".join([machine_line(result), "", *lines])

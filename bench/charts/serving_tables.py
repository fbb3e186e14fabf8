"""Tables of what serving costs (`bench.serving`)."""

from collections.abc import Iterable, Sequence

from bench.charts.tables import Result, machine_line

__all__ = ["contended", "latency", "streams"]


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


def arms(result: Result) -> str:
    """Ways to share an engine (`bench.coserving arms`), and each check of them."""

    def shown(one: Result, *names: str, of: str = "{:g}") -> str:
        return " / ".join(of.format(one[name]) if name in one else "–" for name in names)

    rows = [
        (
            one["load"],
            one["arm"],
            shown(one, "requests"),
            shown(one, "attained", of="{:.1%}"),
            shown(one, "ttft_p50", "ttft_p99"),
            shown(one, "tpot_p50", "tpot_p99"),
            shown(one, "tokens_per_s", of="{:,}"),
            shown(one, "step_p50_s", "step_p90_s"),
        )
        for one in result["rows"]
    ]
    heads = ("load", "arm", "requests", "goals met", "first token, p50 / p99 ms", "further, p50 / p99 ms", "rollout tokens/s", "a step, s")
    goals, left_out = result["goals_ms"], result["rounds_left_out"]
    said = (
        f"Goals: {goals['ttft']:.1f} ms to the first token, {goals['tpot']:.1f} ms a further one. {result['rounds']} rounds of"
        f" {result['seconds']:g} s; not quiet and left out: {', '.join(f'{count} at {load}' for load, count in left_out.items())}."
    )
    checks = [(one["check"], one["found"], one["goal"], "yes" if one["holds"] else "**no**") for one in result["checks"]]
    return "\n".join([_table(result, heads, rows), "", said, "", *_rows(("check", "found", "goal", "holds"), checks)])


def _table(result: Result, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([machine_line(result), "", *_rows(heads, rows)])


def _rows(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(str(one) for one in row)} |" for row in rows)]

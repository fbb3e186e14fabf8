"""Tables of `bench.plex`: simulations of accelerators that several base models share."""

from bench.charts.tables import Result

POLICIES = ("ratio", "fcfs", "round-robin", "static")
ABLATIONS = ("without residency", "without backfill", "without both", "without a maximum wait")
CAVEAT = "Simulated, and not yet compared with real executors."


def cells(result: Result) -> str:
    """Accelerator-seconds saved by policy and cost of a switch, and `ratio` against first come first served."""
    found = result["summary"]
    lines = [
        f"{CAVEAT} Means over {found['cells']} cells of {result['seeds']} seeds: accelerator-seconds saved in per cent, against each pool"
        " alone.",
        "",
        f"| a switch, of an operation | {' | '.join(POLICIES)} |",
        "|---" * (len(POLICIES) + 1) + "|",
    ]
    lines += [_saved(f"{float(switch):.0%}", saved) for switch, saved in found["saved_by_switch"].items()]
    lines += [_saved("all", found["saved"]), "", "| `ratio` | saved, % | p90 of an operation's wait, s |", "|---|---|---|"]
    lines += [f"| {name} | {found['saved'][name]:.1f} | {found['p90_wait_s'][name]:.1f} |" for name in ("ratio", *ABLATIONS)]
    lines += [f"| for comparison: {name} | {found['saved'][name]:.1f} | {found['p90_wait_s'][name]:.1f} |" for name in POLICIES[1:]]
    return "\n".join([*lines, "", _against_fcfs(found)])


def _against_fcfs(found: Result) -> str:
    worst = found["worst_cells"][0]
    cell = f"{worst['pools']} pools of {worst['tasks']} tasks, idle share {worst['idle']}, switch {worst['switch']:.0%}"
    return (
        f"`ratio` against fcfs: {found['dear_points_over_fcfs']:+.2f} points in the {found['dear_cells']} cells where a switch is 10 % of"
        f" an operation or more. It is worse in {found['cells_worse_than_fcfs']} of all {found['cells']} cells, by more than 1 point in"
        f" {found['cells_worse_by_1']}, by more than 3 in {found['cells_worse_by_3']}; the worst is {found['least_points_over_fcfs']:+.2f}"
        f" ({cell}). In {found['cells_that_lose_by_sharing']} cells sharing costs more than it saves, under `ratio` too. `worth` had the"
        f" sign of that right in {found['sign_right']:.1%} of the cells, and in {found['sign_right_where_clear']:.1%} of the"
        f" {found['clear_cells']} where `ratio` saves or loses at least 3 %."
    )


def _saved(label: str, saved: Result) -> str:
    return f"| {label} | {' | '.join(f'{saved[name]:.1f}' for name in POLICIES)} |"


def cluster(result: Result) -> str:
    """Makespan and completion time relative to isolated, by arm and cost of a switch."""
    factors = sorted({row["switch_factor"] for row in result["rows"]})
    arms = list(dict.fromkeys(row["arm"] for row in result["rows"]))
    by_key = {(row["arm"], row["switch_factor"]): row for row in result["rows"]}
    lines = [
        f"{CAVEAT} {result['accelerators']} accelerators, {result['jobs']} jobs, {result['seeds']} seeds, a switch of"
        f" {result['switch_s']} s × the factor. Share of what isolated takes: until the last job is done (of the seeds)"
        " / mean from a job's submission to its end.",
        "",
        f"| arm | {' | '.join(f'switch ×{factor:g}' for factor in factors)} | steps slower, ×1 | switches, of held time, ×1 | paper |",
        "|---" * (len(factors) + 4) + "|",
    ]
    for arm in arms:
        shares = [_shares(by_key[arm, factor]) for factor in factors]
        usual = by_key[arm, 1.0]
        paper = f"{result['paper'][arm]:.0%}" if arm in result["paper"] else "–"
        lines.append(f"| {arm} | {' | '.join(shares)} | {usual['slowdown']:.2f} | {usual['switching']:.1%} | {paper} |")
    return "\n".join(lines)


def _shares(row: Result) -> str:
    makespan, completion = row["makespan_of_isolated"], row["completion_of_isolated"]
    low, high = min(makespan["seeds"]), max(makespan["seeds"])
    return f"{makespan['mean']:.0%} ({low:.0%} – {high:.0%}) / {completion['mean']:.0%}"


def histories(result: Result) -> str:
    """What held in random histories, and shares by weight."""
    lines = [
        f"{CAVEAT} {result['histories']:,} random histories of `ratio` with {result['switches']:,} switches and {result['frozen']:,} frozen"
        f" operations: {result['violations']} violations. The longest wait of an executor was {result['longest_wait_of_bound']:.0%} of what"
        f" is allowed, `max_wait_s` and one operation and one switch of each executor. {result['within_one_operation_in_all']:.1%} of the"
        " histories are also within `max_wait_s`, one operation in all, and one switch of each executor.",
        "",
        "| weights of the tenants | shares of the accelerator's time | largest relative error |",
        "|---|---|---|",
    ]
    for one in result["shares"]:
        weights, shares = ":".join(f"{weight:g}" for weight in one["weights"]), ", ".join(f"{share:.3f}" for share in one["shares"])
        lines.append(f"| {weights} | {shares} | {one['error']:.1%} |")
    return "\n".join(lines)


def speed(result: Result) -> str:
    """Processor time of a decision and of the predictions that it needs."""
    lines = [
        f"{result['pools']} pools with {result['executors']} executors, {result['tasks']:,} tasks of {result['tenants']} tenants.",
        "",
        "| processor time, ms | p50 | p90 | p99 |",
        "|---|---|---|---|",
    ]
    for name, what in (("decision_ms", "`next_slice`"), ("predictions_ms", "predictions before it, from every task's estimates")):
        lines.append(f"| {what} | {' | '.join(f'{result[name][share]:.2f}' for share in ('p50', 'p90', 'p99'))} |")
    return "\n".join(lines)

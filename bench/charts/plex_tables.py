"""Tables of `bench.plex`: simulations of accelerators that several base models share."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from bench.charts.tables import Result

OWN_PROCESSES = ("dedicated", "all-awake")
"""Arms whose pools' samplers and trainers do not take turns."""
CAVEAT = "Simulated."


def cells(result: Result) -> str:
    """Accelerator-seconds saved by policy and cost of a switch, and `ratio` against first come first served."""
    found = result["summary"]
    ablations = [name for name in found["saved"] if name.startswith("without")]
    policies = [name for name in found["saved"] if name not in ablations]
    lines = [
        f"{CAVEAT} Means over {found['cells']} cells of {result['seeds']} seeds: accelerator-seconds saved in per cent, against each pool"
        " alone.",
        "",
        f"| a switch, of an operation | {' | '.join(policies)} |",
        "|---" * (len(policies) + 1) + "|",
    ]
    lines += [_saved(f"{float(switch):.0%}", saved, policies) for switch, saved in found["saved_by_switch"].items()]
    lines += [_saved("all", found["saved"], policies), "", "| `ratio` | saved, % | p90 of an operation's wait, s |", "|---|---|---|"]
    lines += [f"| {name} | {found['saved'][name]:.1f} | {found['p90_wait_s'][name]:.1f} |" for name in ("ratio", *ablations)]
    lines += [f"| for comparison: {name} | {found['saved'][name]:.1f} | {found['p90_wait_s'][name]:.1f} |" for name in policies[1:]]
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


def _saved(label: str, saved: Result, policies: Sequence[str]) -> str:
    return f"| {label} | {' | '.join(f'{saved[name]:.1f}' for name in policies)} |"


def ablation(result: Result) -> str:
    """What the policy loses without forecasts, by kind of case."""
    arms = list(result["summary"])
    lines = [
        f"{CAVEAT} Points of accelerator-seconds by which `ratio` was better with forecasts than each arm; below 0 it was worse.",
        "",
        f"| case | seeds | {' | '.join(arms)} |",
        "|---" * (len(arms) + 2) + "|",
    ]
    cells = [row for row in result["rows"] if row["case"].startswith("cell ")]
    for row in [row for row in result["rows"] if row not in cells]:
        means = [f"{row['mean'][arm]:+.2f} ± {row['error'][arm]:.2f}" for arm in arms]
        lines.append(f"| {row['case']} | {row['seeds']} | {' | '.join(means)} |")
    for switch in sorted({row["case"].rsplit(" ", 1)[1] for row in cells}):
        own = [row for row in cells if row["case"].rsplit(" ", 1)[1] == switch]
        means = [f"{fmean(row['mean'][arm] for row in own):+.2f}" for arm in arms]
        lines.append(f"| mean of {len(own)} cells, switch {float(switch):.0%} | {own[0]['seeds']} | {' | '.join(means)} |")
    largest = [f"{max(row['mean'][arm] for row in cells):+.2f}" for arm in arms]
    lines.append(f"| largest of all {len(cells)} cells | | {' | '.join(largest)} |")
    return "\n".join(lines)


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
    """Processor time of a decision."""
    lines = [
        f"{result['pools']} pools with {result['executors']} executors, {result['tasks']:,} tasks of {result['tenants']} tenants.",
        "",
        "| processor time, ms | p50 | p90 | p99 |",
        "|---|---|---|---|",
    ]
    took_ms = [f"{result['decision_ms'][share]:.2f}" for share in ("p50", "p90", "p99")]
    return "\n".join([*lines, f"| `next_slice` | {' | '.join(took_ms)} |"])


def tiers(result: Result) -> str:
    """What each executor's tiers free and how long their moves take; cycles, random sequences, kills."""
    head = "held | freed | in files | processor | park: p50, p90 | wake: p50, p90 | n"
    lines = [
        f"Two cores that other work used, too (load {_loads(result)}). Held: MiB of weights and KV cache, or of base model and states.",
        "Seconds of moves.",
        "",
        f"| base model | executor | tier | {head} |",
        "|---" * 10 + "|",
    ]
    executors = [(base, name, one) for base, found in result["bases"].items() for name, one in found.items() if name != "stock"]
    for base, name, one in executors:
        for tier, found in one["tiers"].items():
            park, wake = found["park_s"], found["wake_s"]
            moves = f"{park['median']:.3f}, {park['p90']:.3f} | {wake['median']:.3f}, {wake['p90']:.3f} | {park['n']}"
            figures = (
                f"{found['held_mib']} | {round(found['freed_share'], 2) + 0:.0%} | {found['file_mib']} | {found['processor_share']:.2%}"
            )
            lines.append(f"| {base} | {name} | {tier} | {figures} | {moves} |")
    lines += ["", "| base model | executor | cycles, MiB left | random sequences | moves in them | what they gave |", "|---" * 6 + "|"]
    for base, name, one in executors:
        cycles, played = one["cycles"], one["sequences"]
        left = f"{cycles['cycles']}, {cycles['left_mib']}"
        lines.append(f"| {base} | {name} | {left} | {played['sequences']} | {sum(played['moves'].values())} | {_given(played)} |")
    return "\n".join([*lines, *_stock(result), *_kills(executors), *_services(result)])


def _loads(result: Result) -> str:
    executors = [one for found in result["bases"].values() for name, one in found.items() if name != "stock"]
    loads = [asked["load"] for one in executors for asked in one["asked"].values()]
    return f"{min(loads)} to {max(loads)}" if len(loads) > 1 else str(loads[0])


def _given(played: Result) -> str:
    if "steps" in played:
        return (
            f"{played['steps']} steps, {played['steps_with_other_digests']} with other digests than undisturbed; "
            f"{played['steps_handed_back']} handed back, {played['states_read_from_checkpoints']} states read from checkpoints"
        )
    return (
        f"{played['requests']} seeded requests of {played['versions']} versions, {played['requests_with_other_tokens']} with other tokens "
        f"than undisturbed; largest difference of a log-probability {played['largest_difference']:.2g}"
    )


def _stock(result: Result) -> list[str]:
    shares = [
        f"{tier} {round(one['freed_share'], 3) + 0:.1%}"
        for found in result["bases"].values()
        for tier, one in found.get("stock", {}).items()
    ]
    return ["", f"vLLM's own worker for CPUs in the same test frees: {', '.join(shares)}."] if shares else []


def _kills(executors: list[tuple[str, str, Result]]) -> list[str]:
    gone = [
        (f"{base} {name}, {' or '.join(kill['tier'] for kill in one['kills'])}", [kill["gone_s"] for kill in one["kills"]])
        for base, name, one in executors
        if "kills" in one
    ]
    if not gone:
        return []
    said = [f"{name}: {max(seconds):.1f} s" if None not in seconds else f"{name}: not all" for name, seconds in gone]
    return [
        "",
        f"After SIGKILL of the service's process the last of its processes has ended within: {'; '.join(said)}.",
    ]


def _services(result: Result) -> list[str]:
    if "services" not in result:
        return []
    watched = result["services"]
    shares = [f"{name} in {one['tier']} {one['processor_share']:.2%}" for name, one in watched["executors"].items()]
    return [
        "",
        f"Services of a stack, parked, over {watched['window_s']:g} s, load {watched['asked']['load']}: {'; '.join(shares)} of a core.",
    ]


def real(result: Result) -> str:
    """Accelerator-seconds a step of each arm, against pools that have the accelerator to themselves."""
    work = result["workload"]
    pools = "; ".join(_pool(one) for one in work["pools"])
    budget = next((part["budget_mib"] for run in result["runs"] for part in run["recorded"]), 0)
    others = Counter(run["commit"] for run in result["runs"] if run.get("commit", result["commit"]) != result["commit"])
    of_others = "".join(f" {number} runs are of {commit[:7]}." for commit, number in others.items())
    lines = [
        f"Real runs on {result['machine']['processor']}, one core as the accelerator, {budget} MiB. {pools}.{of_others}",
        "",
        "| arm | runs | accelerator-seconds a step (spread) | saved | slower | switches | in switches | p90 of waiting, s | peak, MiB |",
        "|---" * 9 + "|",
    ]
    for name, arm in sorted(result["arms"].items(), key=lambda one: one[1]["accelerator_s_per_step"][0]):
        seconds = _with_spread(arm["accelerator_s_per_step"], "{:.2f}")
        saved, slower = (_with_spread(arm[key], form) if key in arm else "–" for key, form in (("saved", "{:.1%}"), ("slowdown", "{:.2f}")))
        booked = arm.get("booked")
        taken = "– | – | –" if booked is None else f"{booked['switches']:g} | {booked['switch_share']:.1%} | {booked['p90_wait_s']:.2f}"
        lines.append(f"| {name} | {arm['runs']} | {seconds} | {saved} | {slower} | {taken} | {arm['peak_private_mib']} |")
    lines.append("")
    if "bound" in result:
        alone = ", ".join(f"{one[0]:.2f}" for one in result["bubble_alone"])
        lines.append(f"Idle share of each pool alone: {alone}. The most that sharing can save: {result['bound']:.1%}.")
    if planned := result.get("planned"):
        lines.append(f"`marlaas pools plan` expects from the runs' traces: {_plan(planned)}.")
        if apart := result.get("planned_alone"):
            lines[-1] = f"{lines[-1][:-1]}; from those of each pool alone: {_plan(apart)}."
        if later := result.get("planned_commit"):
            lines[-1] += f" The plan is that of {later[:7]}."
    shared = [arm for name, arm in result["arms"].items() if name not in OWN_PROCESSES]
    looks, several, together = (sum(arm[key] for arm in shared) for key in ("looks", "held_by_several", "computing_together"))
    booked = [arm["booked"] for arm in shared if "booked" in arm]
    if booked:
        lines.append(
            f"{sum(one['slices'] for one in booked):,} slices: in {sum(one['wrongly_booked'] for one in booked)} the milliseconds booked to"
            f" tasks are not those held; switch, work and idle time and time without a slice are the wall time but for at most"
            f" {max(one['unaccounted_share'] for one in booked):.3%}."
        )
    same = sum(result["equal_digests"].values())
    lines.append(
        f"In the arms that take turns, a recorder outside the services looked {looks:,} times: the lock had several holders in {several},"
        f" and several executors computed in {together} windows of 0.2 s. Adapters of {same} of {len(result['equal_digests'])} tasks are"
        f" the same, version by version, in all {'runs of one commit' if others else 'arms'}."
    )
    return "\n".join(lines)


def _plan(planned: Result) -> str:
    return f"saved {_with_spread(planned['saved'], '{:.1%}')}, slower {_with_spread(planned['slowdown'], '{:.2f}')}"


def _pool(one: Result) -> str:
    tasks = f"{one['tasks']} tasks of " if one["tasks"] > 1 else ""
    return f"`{one['base']}`: {tasks}{one['steps']} steps of {one['groups'] * one['size']} trajectories, tools of {one['tool_s']:g} s"


def predicted(result: Result) -> str:
    """The simulator's figures of a workload beside those of real runs."""
    names = {
        "makespan_s": "until the last task ends, s",
        "accelerator_s_per_step": "accelerator-seconds a step",
        "switches": "switches",
        "p90_wait_s": "p90 of an executor's wait, s",
    }
    runs = " and ".join(f"{rows['runs']} of {policy}" for policy, rows in result["policies"].items())
    lines = [
        f"Real runs: {runs}.",
        "",
        "| policy | figure | simulated | real (spread) | simulated above real | within 10 % |",
        "|---" * 6 + "|",
    ]
    for policy, rows in result["policies"].items():
        for name, label in names.items():
            row = rows[name]
            real_ = _with_spread(row["real"], "{:.2f}")
            said = "yes" if row["is_within"] else "no"
            lines.append(f"| {policy} | {label} | {row['simulated']:.2f} | {real_} | {row['off_by']:+.1%} | {said} |")
    return "\n".join(lines)


def _with_spread(values: list[float], form: str) -> str:
    middle, least, most = (form.format(value) for value in values)
    return middle if least == most else f"{middle} ({least} – {most})"

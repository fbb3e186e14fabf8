"""Tables of `bench.plex`: simulations of accelerators that several base models share."""

from collections.abc import Sequence

from bench.charts.tables import Result

OWN_PROCESSES = ("dedicated", "all-awake")
"""Arms whose pools' samplers and trainers do not take turns."""


def cells(result: Result) -> str:
    """Accelerator-seconds saved by policy and cost of a switch, and `ratio` against first come first served."""
    found = result["summary"]
    ablations = [name for name in found["saved"] if name.startswith("without")]
    policies = [name for name in found["saved"] if name not in ablations]
    lines = [
        f"Simulated. Means over {found['cells']} cells of {result['seeds']} seeds: accelerator-seconds saved in per cent, against each pool"
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
        f" an operation or more. It is worse in {found['cells_worse_than_fcfs']}; the worst is {found['least_points_over_fcfs']:+.2f}"
        f" ({cell}). In {found['cells_that_lose_by_sharing']} cells sharing costs more than it saves. `worth` had that sign right in"
        f" {found['sign_right']:.1%} of all, and in {found['sign_right_where_clear']:.1%} of those where `ratio` saves or loses 3 %."
    )


def _saved(label: str, saved: Result, policies: Sequence[str]) -> str:
    return f"| {label} | {' | '.join(f'{saved[name]:.1f}' for name in policies)} |"


def tiers(result: Result) -> str:
    """What host memory and disk free of each executor and how long their moves take; cycles and random sequences."""
    lines = [
        "MiB held: weights and KV cache, or base model and states. Seconds of moves: median, p90.",
        "",
        "| base model | executor | held | freed: host, disk | park to host | wake | park to disk | wake | MiB left after cycles |",
        "|---" * 9 + "|",
    ]
    for base, name, one in _executors(result):
        host, disk = one["tiers"]["host"], one["tiers"]["disk"]
        freed = ", ".join(f"{tier['freed_share']:.0%}" for tier in (host, disk))
        moves = " | ".join(f"{tier[key]['median']:.3f}, {tier[key]['p90']:.3f}" for tier in (host, disk) for key in ("park_s", "wake_s"))
        lines.append(f"| {base} | {name} | {host['held_mib']} | {freed} | {moves} | {one['cycles']['left_mib']} |")
    played = [one["sequences"] for _, _, one in _executors(result)]
    totals = {key: sum(one.get(key, 0) for one in played) for key in ("sequences", "requests", "steps")}
    wrong = [sum(one.get(key, 0) for one in played) for key in ("requests_with_other_tokens", "steps_with_other_digests")]
    return "\n".join(
        [
            *lines,
            "",
            f"{totals['sequences']:,} random sequences of moves: of {totals['requests']:,} seeded requests {wrong[0]} have other tokens"
            f" than undisturbed, and of {totals['steps']:,} steps {wrong[1]} other digests.",
        ]
    )


def _executors(result: Result) -> list[tuple[str, str, Result]]:
    """Base model, executor and its figures."""
    return [(base, name, found[name]) for base, found in result["bases"].items() for name in ("sampler", "trainer") if name in found]


def real(result: Result) -> str:
    """Accelerator-seconds a step of each arm, against pools that have the accelerator to themselves."""
    work = result["workload"]
    pools = "; ".join(_pool(one) for one in work["pools"])
    budget = next((part["budget_mib"] for run in result["runs"] for part in run["recorded"]), 0)
    lines = [
        f"Real runs on {result['machine']['processor']}, one core as the accelerator, {budget} MiB. {pools}.",
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
        f" the same, version by version, in all arms."
    )
    return "\n".join(lines)


def _plan(planned: Result) -> str:
    return f"saved {_with_spread(planned['saved'], '{:.1%}')}, slower {_with_spread(planned['slowdown'], '{:.2f}')}"


def _pool(one: Result) -> str:
    tasks = f"{one['tasks']} tasks of " if one["tasks"] > 1 else ""
    return f"`{one['base']}`: {tasks}{one['steps']} steps of {one['groups'] * one['size']} trajectories, tools of {one['tool_s']:g} s"


def _with_spread(values: list[float], form: str) -> str:
    middle, least, most = (form.format(value) for value in values)
    return middle if least == most else f"{middle} ({least} – {most})"

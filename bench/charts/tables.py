"""Tables of the pages: a result's JSON to Markdown, one function a benchmark."""

from statistics import median
from typing import Any

Result = dict[str, Any]


def machinery(result: Result) -> str:
    """Costs of the machinery, one line each."""
    lines = [machine_line(result), "", "| what | value |", "|---|---|"]
    if "throughput" in result:
        for name, fast, slow in (("together", "full", "half"), ("apart", "apart", "apart_half")):
            full, half = result["throughput"][fast], result["throughput"][slow]
            spent = ", ".join(f"{name} {value:.2f}" for name, value in full["cpu_ms_per_turn"].items())
            lines += [
                f"| members {name}: turns a second, as fast as they go | {full['turns_per_s']:.0f}{_among(full)} |",
                f"| members {name}: processor time a turn, ms | {sum(full['cpu_ms_per_turn'].values()):.2f}: {spent} |",
                _added(name, half),
            ]
        if "aim" in result:
            lines.append(_added("together", result["aim"]))
        full = result["throughput"]["full"]
        written, kept = full["wal_bytes_per_trajectory"], full["rows_bytes_per_trajectory"]
        lines.append(f"| PostgreSQL a trajectory, bytes | {written} written ahead, {kept} kept |")
    if "statements" in result:
        counted = result["statements"]
        lines.append(f"| SQL statements | {counted['per_step']} a step, {counted['per_trajectory']} a trajectory |")
    if "memory" in result:
        for what, found in (("a waiting task", "kib_per_task"), ("a trajectory in flight", "kib_per_trajectory_in_flight")):
            values = ", ".join(f"{name} {value:.1f}" for name, value in result["memory"][found].items())
            lines.append(f"| memory of {what}, KiB | {values} |")
    for case, found in _least_and_most_tasks(result.get("decisions", {})):
        spent = f"{found['p50_ms']} (p90 {found['p90_ms']}), of it in the scheduler's process {found['scheduler_cpu_p50_ms']}"
        lines.append(f"| one admission, {case}, ms | {spent} |")
    for steps, found in result.get("past", {}).items():
        lines.append(f"| one step noted, {int(steps):,} steps behind it, ms | {found['p50_ms']} (p90 {found['p90_ms']}) |")
    return "\n".join(lines)


def _least_and_most_tasks(decisions: dict[str, Result]) -> list[tuple[str, Result]]:
    """Rows of the table; the result has those between them."""
    counts = [int(case.partition(" ")[0]) for case in decisions]
    return [(case, found) for (case, found), count in zip(decisions.items(), counts, strict=True) if count in (min(counts), max(counts))]


def _added(name: str, found: Result) -> str:
    added = found["added_ms"]
    return (
        f"| members {name}: added to a turn at {found['turns_per_s']:.0f} turns a second, ms"
        f" | p50 {added['p50']}{_among(found)}, p90 {added['p90']}, p99 {added['p99']} |"
    )


def _among(found: Result) -> str:
    """Minimum and maximum of several runs."""
    return f" ({found['all'][0]:.4g} – {found['all'][-1]:.4g})" if len(found.get("all", [])) > 1 else ""


def fairness(result: Result) -> str:
    """What two tenants got of each resource, and how soon a job is accepted beside many of another tenant."""
    options, lines = result["options"], [machine_line(result)]
    lines += ["", "| waited for | weights | got | share of the tenant with one task | farthest off its due |", "|---|---|---|---|---|"]
    units = {"tokens": "tokens", "environments": "s", "trainer": "s"}
    for resource, unit in units.items():
        for found in result.get(resource, []):
            weights, got = (found[name] for name in ("weights", "got"))
            what = f"{got['one']:,.0f} and {got['many']:,.0f} {unit}"
            share = f"{found['share']['one']:.1%}, of {weights['one'] / sum(weights.values()):.0%}"
            lines.append(f"| {resource} | {weights['one']} : {weights['many']} | {what} | {share} | {found['off']:.1%} |")
    if "intake" in result:
        found = result["intake"]
        burst, let, quiet, busy = found["burst"], found["as_let"], *(found["accepted_s"][name] for name in ("quiet", "busy"))
        lines += [
            "",
            "| jobs of one tenant | |",
            "|---|---|",
            f"| {burst['sent']:,} sent without a pause | {burst['taken']:,} taken, {burst['refused']:,} refused, in {burst['seconds']} s |",
            f"| sent again until taken | {let['taken']:,} taken in {let['seconds']} s, {let['jobs_per_s']} a second |",
            f"| another tenant's job is accepted, s, without these | p50 {quiet['p50']}, p90 {quiet['p90']}, at most {quiet['max']} |",
            f"| the same, beside these ({found['samples']['busy']} jobs) | p50 {busy['p50']}, p90 {busy['p90']}, at most {busy['max']} |",
        ]
    return "\n".join([lines[0] + f" One task beside {options['tasks']}; {options['seconds']:g} s a row.", *lines[1:]])


def trl(result: Result) -> str:
    """Both workloads, with MARLaaS and with TRL."""
    options = result["options"]
    lines = [
        f"{machine_line(result)} {options['tasks']} tasks, {options['steps']} steps of {options['groups']} × {options['size']} attempts;"
        f" ours may be {options['staleness']} versions behind"
        + (f", and take {options['our_steps']} steps." if options.get("our_steps") else "."),
        "",
        "| workload | way | all trained, s | processor, s | with starting it, s | reward in training, first → last steps"
        " | reward afterwards, on other rows | memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for workload in ("single", "tools"):
        for way in ("marlaas", "one-by-one", "parallel"):
            if found := result.get(workload, {}).get(way):
                reward = f"{found['reward']['first']:.3f} → {found['reward']['last']:.3f}"
                spread = f" ({found['all_train_s'][0]} – {found['all_train_s'][-1]})" if len(found["all_train_s"]) > 1 else ""
                times_s = f"{found['train_s']}{spread} | {found.get('cpu_s', '–')} | {found['with_starts_s']}"
                reached = found.get("all_reached", [])
                among = f" ({min(reached):.3f} – {max(reached):.3f})" if len(reached) > 1 else ""
                lines.append(f"| {workload} | {way} | {times_s} | {reward} | {found['reached']:.3f}{among} | {found['peak_mib']} |")
        if times := result.get(workload, {}).get("times_faster_than_the_better"):
            lines.append(f"| {workload} | the better of TRL's ways took so many times as long | {times} | | | | | |")
    return "\n".join(lines)


def shared_steps(result: Result) -> str:
    """Seconds and memory of a step of each ready task, one after another and together."""
    lines = [
        f"{machine_line(result)} {result['groups']} × {result['size']} attempts a task and step; medians of {result['repeats']}.",
        "",
        "| ready tasks | one after another | together, loop | together, `grouped_mm` | gain |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        cells = [
            f"{row[way]['cpu_s']:.2f} s, {row[way]['memory_mib']} MiB" if way in row else "–" for way in ("alone", "loop", "grouped_mm")
        ]
        lines.append(f"| {row['tasks']} | {' | '.join(cells)} | {row['gain'] or '–'} |")
    return "\n".join(lines)


def memory(result: Result) -> str:
    """Peak memory of a step against its estimate, and its time, by the form of its activations."""
    lines = [
        machine_line(result),
        "",
        "| tokens | activations | prompts | measured MiB | estimated MiB | share | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        form, prompts = "recomputed" if row["recomputed"] else "kept", "shared" if row["shared"] else "of each row"
        sizes = f"{row['measured_mib']:,} | {row['estimate_mib']:,} | {row['measured_share']:.3f}"
        lines.append(f"| {row['tokens']:,} | {form} | {prompts} | {sizes} | {row['wall_s']:.2f} |")
    return "\n".join(lines)


def machine_line(result: Result) -> str:
    machine = result["machine"]
    gpu = f"{machine['gpu']}, " if machine.get("gpu") else ""
    return f"{gpu}{machine['cores']} cores ({machine['processor']}), load {machine['load_before']}{_speed(machine)}."


def _speed(machine: Result) -> str:
    """The machine's speed; empty in results without it."""
    before_and_after = [f"{ms:.1f}" for ms in machine.get("fixed_work_ms", [])]
    took = f", sum {' and '.join(before_and_after)} ms" if before_and_after else ""
    return took + (f", {machine['stolen_share']:.0%} stolen" if "stolen_share" in machine else "")


def with_spread(values: list[float]) -> str:
    return f"{median(values):.1f}" + (f" ({min(values):.1f} – {max(values):.1f})" if len(values) > 1 else "")

"""Live views of a start and of running tasks; lines if output is not a terminal."""

import time
from collections.abc import AsyncIterator

from rich.console import Console
from rich.live import Live

from common.messages import Event
from marlaas.reporting import tables
from marlaas.reporting.progress import Progress
from marlaas.stack import control
from marlaas.stack.control import Starting
from marlaas.stack.state_files import Stack

REDRAWS_PER_S = 4


def show_start(console: Console, starting: Starting, timeout_s: float = control.START_TIMEOUT_S) -> Stack:
    """Show each component from starting to ready; returns the running stack. Raises: as `wait_until_ready`."""
    if not console.is_terminal:
        return control.wait_until_ready(starting, _Changes(console).report, timeout_s)
    with Live(console=console, refresh_per_second=REDRAWS_PER_S) as live:
        return control.wait_until_ready(starting, lambda state: live.update(tables.starting_table(state, time.time())), timeout_s)


async def show_tasks(console: Console, tasks: list[Progress], events: AsyncIterator[Event]) -> None:
    """Apply `events` to `tasks`, and show the tasks, until the events end."""
    by_id = {one.task: one for one in tasks}
    if not console.is_terminal:
        async for event in events:
            by_id[event.task].apply(event)
            console.print(tables.event_line(event), soft_wrap=True, highlight=False)
        return
    with Live(tables.progress_table(tasks), console=console, refresh_per_second=REDRAWS_PER_S) as live:
        async for event in events:
            by_id[event.task].apply(event)
            live.update(tables.progress_table(tasks))


class _Changes:
    """Prints a line at each change of a component's condition."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, str] = {}

    def report(self, state: Stack) -> None:
        for one in state.components:
            if one.condition not in ("waiting", self._seen.get(one.name)):
                took = f" after {one.took_s:.1f} s" if one.took_s is not None else ""
                detail = f": {one.detail}" if one.detail else ""
                self._console.print(f"{one.name}: {one.condition}{took}{detail}", soft_wrap=True, highlight=False, markup=False)
            self._seen[one.name] = one.condition

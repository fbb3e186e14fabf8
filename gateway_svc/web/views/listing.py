"""The list of tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args
from urllib.parse import urlencode

from common.messages import AskTasks, StepOf, TaskStatus, WhyAnswer
from common.messages.asks import TaskOrder, TaskState
from common.task_states import ENDED
from gateway_svc.web.views.charts import Sparkline, sparkline

PAGE = 25
"""Tasks per page."""
STATES: tuple[TaskState, ...] = (*get_args(TaskState)[:3], "finished", "failed", "cancelled", "rejected")
COLUMNS: Mapping[TaskOrder, str] = {"id": "Task", "state": "State", "reward": "Reward", "created": "Submitted"}


@dataclass(frozen=True)
class Row:
    status: TaskStatus
    spark: Sparkline | None
    why: str
    """Reason why the task waits or, if it has ended, why it ended."""

    @property
    def share(self) -> float:
        """Fraction of its steps done, from 0 to 1."""
        return min(self.status.version / self.status.steps, 1.0) if self.status.steps else 0.0


@dataclass(frozen=True)
class Listing:
    rows: Sequence[Row]
    wanted: AskTasks
    next_cursor: str | None

    def address(self, **changes: object) -> str:
        """Query string of the list with changed values; without `cursor` it starts at the first page."""
        said = self.wanted.model_copy(update={"cursor": None} | changes)
        pairs: list[tuple[str, str]] = [("state", state) for state in said.states]
        pairs += [(name, value) for name, value in (("pool", said.pool), ("text", said.text), ("cursor", said.cursor)) if value]
        if said.sort != "created" or not said.descending:
            pairs.append(("sort", f"{'-' if said.descending else ''}{said.sort}"))
        return urlencode(pairs)

    def sorted_by(self, column: TaskOrder) -> str:
        """Query string that sorts by a column, or reverses the direction if already sorted by it."""
        turned = not self.wanted.descending if self.wanted.sort == column else column in ("created", "reward")
        return self.address(sort=column, descending=turned)

    def direction(self, column: TaskOrder) -> str | None:
        """Direction for `aria-sort`; None for columns not sorted by."""
        if self.wanted.sort != column:
            return None
        return "descending" if self.wanted.descending else "ascending"


def wanted_tasks(states: Sequence[str], pool: str, text: str, sort: str, cursor: str) -> AskTasks:
    """Build the question for a list of tasks. Raises: pydantic's ValidationError for invalid values."""
    return AskTasks.model_validate(
        {
            "states": [state for state in states if state],
            "pool": pool or None,
            "text": text or None,
            "sort": sort.removeprefix("-") or "created",
            "descending": sort.startswith("-") or not sort,
            "cursor": cursor or None,
            "most": PAGE,
        }
    )


def listing(
    wanted: AskTasks,
    statuses: Sequence[TaskStatus],
    next_cursor: str | None,
    steps: Mapping[str, Sequence[StepOf]],
    why: Mapping[str, WhyAnswer],
) -> Listing:
    return Listing([_row(status, steps.get(status.task, ()), why.get(status.task)) for status in statuses], wanted, next_cursor)


def _row(status: TaskStatus, steps: Sequence[StepOf], why: WhyAnswer | None) -> Row:
    is_held = why is not None and why.cause is not None and status.state not in ENDED
    reason = why.sentence if why is not None and is_held else status.reason
    return Row(status, sparkline([step.reward for step in steps if step.state == "trained"], "Reward"), reason)

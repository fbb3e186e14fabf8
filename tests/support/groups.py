"""The context of a group."""

from typing import Any

from common.messages import GroupContext
from common.spec import EnvironmentSection, Limits, Sampling


def group_context(task: str, group: int = 0, **fields: Any) -> GroupContext:
    """Group number `group` of `task`; `fields` of GroupContext replace the values below."""
    values: dict[str, Any] = {
        "tenant": "acme",
        "pool": "tiny",
        "size": 1,
        "version": 0,
        "adapter": None,
        "family": "module",
        "environment": EnvironmentSection(name="e:x"),
        "sampling": Sampling(),
        "limits": Limits(),
        "row": group,
        "seed": 0,
        "deadline_s": 1e10,
        "weight": 1.0,
        "by_operator": True,
    }
    return GroupContext(task=task, group=group, **(values | fields))

"""Answers of the gateway's own routes, made from the messages of the scheduler."""

from typing import Literal, Self

from pydantic import BaseModel, Field

from common.messages import TaskStatus

State = Literal["submitted", "running", "paused", "finished", "failed", "cancelled", "rejected"]


class Task(BaseModel):
    """A task's current state."""

    id: str = Field(examples=["gcd-3f9a1c22d4e0"])
    tenant: str
    name: str
    pool: str
    state: str = Field(description="`submitted`, `running`, `paused`, `finished`, `failed`, `cancelled` or `rejected`.")
    reason: str
    version: int = Field(description="Steps that are trained; the latest version.")
    steps: int = Field(description="Steps that it shall take.")
    reward: float | None = Field(description="Mean of the latest trained step.")
    staleness: float | None
    sampled_tokens: int
    failed_share: float | None
    dead_letters: int
    warnings: dict[str, str]
    submitted_at: float = Field(description="Unix time.")
    updated_at: float

    @classmethod
    def of(cls, status: TaskStatus) -> Self:
        same = status.model_dump(include=set(cls.model_fields))
        return cls(**same, id=status.task, submitted_at=status.submitted_s, updated_at=status.updated_s)


class TaskPage(BaseModel):
    data: list[Task]
    next_cursor: str | None = Field(description="`cursor` of the next page; null on the last.")

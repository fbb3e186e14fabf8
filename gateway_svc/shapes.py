"""Answers of the gateway's own routes, made from the messages of the scheduler."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from common.messages import AdapterRef, Event, FailedMessage, TaskStatus, TaskUsage, TenantUsage, WhyAnswer
from common.messages.tenancy.access import Role

State = Literal["submitted", "running", "paused", "finished", "failed", "cancelled", "rejected"]


class Task(BaseModel):
    """A task's current state."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    id: str = Field(examples=["gcd-3f9a1c22d4e0"])
    tenant: str
    name: str
    pool: str
    state: str = Field(description="`submitted`, `running`, `paused`, `finished`, `failed`, `cancelled` or `rejected`.")
    reason: str
    version: int = Field(description="Steps that are trained; the latest version.")
    steps: int = Field(description="Steps that it shall take.")
    reward: float | None = Field(description="Mean of the latest trained step.")
    staleness: float | None = Field(description="Mean of the latest trained step, in versions.")
    sampled_tokens: int
    failed_share: float | None = Field(description="Share of failures among the latest 100 groups.")
    dead_letters: int
    adapter: AdapterRef | None = Field(description="The latest version's; its bytes are base64.")
    warnings: dict[str, str]
    expected_end_at: float | None = Field(description="Unix time of the last step at the pace of the latest; null unless it is running.")
    submitted_at: float = Field(description="Unix time.")
    updated_at: float = Field(description="Unix time.")

    @classmethod
    def of(cls, status: TaskStatus) -> Self:
        same = status.model_dump(include=set(cls.model_fields))
        return cls(
            **same,
            id=status.task,
            expected_end_at=status.expected_end_s,
            submitted_at=status.submitted_s,
            updated_at=status.updated_s,
        )


class Why(BaseModel):
    """What a task waits for."""

    cause: str | None = Field(description="One of the causes in docs/asking.md; null when nothing holds the task.")
    number: float | None = Field(description="The number that would have to change.")
    sentence: str

    @classmethod
    def of(cls, answer: WhyAnswer) -> Self:
        return cls(cause=answer.cause, number=answer.number, sentence=answer.sentence)


class TaskDetail(Task):
    """A task, with what it was accepted as and what it waits for."""

    spec: dict[str, JsonValue] = Field(default={}, description="The task file, completed by defaults.")
    why: Why | None = None


class TaskPage(BaseModel):
    data: list[Task]
    next_cursor: str | None = Field(description="`cursor` of the next page; null on the last.")


class Submitted(BaseModel):
    """A submission that is not answered yet: NATS has it, and no scheduler answers."""

    id: str
    state: Literal["submitted"] = "submitted"


class Preview(BaseModel):
    """What a task would be accepted as."""

    reasons: list[str] = Field(description="Why it would be rejected; empty when no reason is known.")
    spec: dict[str, JsonValue] = Field(description="Every value of the task.")
    sources: dict[str, str] = Field(description="`section.field` → origin of its value.")


class TaskEvent(BaseModel):
    """An event of a task; `data` depends on `event` (docs/events.md)."""

    number: int | None = Field(description="Position among the task's events, from 1.")
    event: str = Field(examples=["step"])
    tenant: str
    task: str
    at: float = Field(description="Unix time.")
    data: dict[str, JsonValue]

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(number=event.number, event=event.event, tenant=event.tenant, task=event.task, at=event.at_s, data=event.data)


class EventPage(BaseModel):
    data: list[TaskEvent]
    last: int = Field(description="Number of the task's latest event; 0 before the first.")


class FailurePage(BaseModel):
    data: list[FailedMessage]
    has_more: bool


class KeyOf(BaseModel):
    """What the key of a request is for."""

    tenant: str | None = Field(description="Null for an admin's, which acts for every tenant.")
    role: Role


class Freed(BaseModel):
    """A task that is deleted."""

    id: str
    deleted: Literal[True] = True
    freed_bytes: int


class UsageOfAll(BaseModel):
    tenants: list[TenantUsage]
    tasks: list[TaskUsage]
    store_bytes: int | None = Field(description="Of the whole store; for admins.")
    store_limit_bytes: int | None

"""Consistency of messages: subject, body and headers of a message agree.

NATS checks whether a key may publish a subject, but handlers trust the body. So a message is rejected if its body and subject differ, if
its parts concern different tasks or versions, or if it is a dead letter with a message that the letter's stage does not read.
`Delivery.read` checks every message.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from common import streams
from common.errors import Reject
from common.formats.wrong_values import first_complaint
from common.messages import (
    BlobRef,
    CheckEnvironment,
    CheckPackage,
    ControlTask,
    DeadLetter,
    DeletePackage,
    DeleteTenant,
    EnvironmentChecked,
    Event,
    ExecutorReport,
    GroupContext,
    LeaseDone,
    LeaseOrder,
    OpenGroup,
    PackageChecked,
    PreviewTask,
    PruneTasks,
    ResendLetter,
    SampleTurns,
    ServeRequest,
    ServingEnded,
    SetAccess,
    SetBudget,
    SetPrice,
    SetTenant,
    Settlement,
    StepSamples,
    SubmitTask,
    TextsRequest,
    TrainBatch,
    TrajectoriesScored,
    TurnsSampled,
    UploadFile,
    UploadPackage,
    WeightUpdated,
    wheel_name,
)
from common.streams import SETTLEMENT_HEADER

SUBJECTS = (
    "jobs.<verb>.<tenant>",
    "jobs.<verb>.<tenant>.<key>",
    "prompts.check.<family>.<task>",
    "prompts.package.<family>.<tenant>.<package>",
    "prompts.open.<family>.<task>.<group>",
    "prompts.sample.<queue>.<task>.<trajectory>",
    "prompts.serve.<pool>.<shard>.<task>.<request>",
    "trajectories.turn.<family>.<task>.<trajectory>",
    "trajectories.checked.<task>",
    "trajectories.package.<tenant>.<package>",
    "trajectories.scored.<task>.<trajectory>",
    "trajectories.batch.<queue>.<task>",
    "weight-updated.<pool>.<task>",
    "samples.<pool>.<task>.<version>",
    "events.<tenant>.<task>",
    "failed.<stage>.<task>",
    "served.<task>.<request>",
    "leases.order.<accelerator>.<executor>",
    "leases.done.<accelerator>.<executor>",
    "leases.now.<accelerator>.<executor>",
)
"""Templates of subjects, as in `common/streams/`."""
PATTERNS: Mapping[str, list[re.Pattern[str]]] = defaultdict(list)
"""First token → patterns of the templates that begin with it."""
for _template in SUBJECTS:
    PATTERNS[_template.partition(".")[0]].append(re.compile(re.sub("<([a-z]+)>", r"(?P<\1>[^.]*)", _template.replace(".", r"\."))))
SAYS: Mapping[type[BaseModel], tuple[str, ...]] = {
    **dict.fromkeys((SubmitTask, PreviewTask, ControlTask, ResendLetter, PruneTasks, DeleteTenant), ("tenant",)),
    **dict.fromkeys((UploadPackage, UploadFile, DeletePackage), ("tenant",)),
    **dict.fromkeys((SetTenant, SetBudget, SetPrice, SetAccess), ("tenant",)),
    CheckEnvironment: ("family", "task"),
    CheckPackage: ("family", "tenant", "package"),
    PackageChecked: ("tenant", "package"),
    OpenGroup: ("family", "task", "group"),
    SampleTurns: ("pool", "task", "trajectory"),
    ServeRequest: ("pool", "task", "request"),
    TurnsSampled: ("family", "task", "trajectory"),
    EnvironmentChecked: ("task",),
    TrajectoriesScored: ("task", "trajectory"),
    Settlement: ("task", "trajectory"),
    TrainBatch: ("pool", "task"),
    WeightUpdated: ("pool", "task"),
    StepSamples: ("pool", "task", "version"),
    TextsRequest: ("pool", "request"),
    Event: ("tenant", "task"),
    DeadLetter: ("stage",),
    ServingEnded: ("task", "request"),
    **dict.fromkeys((LeaseOrder, LeaseDone, ExecutorReport), ("accelerator", "executor")),
}
"""Kind of message → parts of its subject that the body repeats. Answers to asks, and values of buckets, repeat none."""
ABOUT_A_GROUP = (OpenGroup, SampleTurns, TurnsSampled, TrajectoriesScored)
READ_BY: Mapping[str, Mapping[str, int]] = {
    "jobs": {"jobs": -1},
    "check": {"prompts.check": 3},
    "package": {"prompts.package": -1},
    "settle-package": {"trajectories.package": -1},
    "open": {"prompts.open": 3},
    "sample": {"prompts.sample": 3},
    "serve": {"prompts.serve": 4},
    "turn": {"trajectories.turn": 3},
    "train": {"trajectories.batch": 3},
    "book": {"served": -1},
    "leases": {"leases.done": -1},
    "settle": {"trajectories.checked": 2, "trajectories.scored": 2, "weight-updated": 2, "failed": 2},
}
"""Stage → prefixes of the subjects that its consumers read, each with the index of the task's token; -1 if there is none."""


def require_agreement(subject: str, headers: Mapping[str, str], message: BaseModel) -> None:
    """Raises: Reject, with the first contradiction in the message."""
    named = _named(subject)
    for name in SAYS.get(type(message), ()):
        if name not in named:
            raise Reject(f"{subject} is no subject of such a message: it names no {name}")
        if named[name] != (said := _said(message, name)):
            raise Reject(f"the subject names {name} '{named[name]}', the message '{said}'")
    if isinstance(message, DeadLetter) and not is_read_by(message.stage, message.subject, about(subject)):
        raise Reject(f"{subject}: stage '{message.stage}' reads no message of this task on {message.subject}")
    for objection in _contradictions(message):
        raise Reject(f"{subject}: {objection}")
    if isinstance(message, TrajectoriesScored) and SETTLEMENT_HEADER in headers:
        _require_same_scores(subject, message, _parsed(subject, headers[SETTLEMENT_HEADER]))


def settlement_in(subject: str, headers: Mapping[str, str]) -> Settlement:
    """The settlement in a scored message's header. Raises: Reject if it is missing or malformed, or the subject disagrees."""
    header = headers.get(SETTLEMENT_HEADER)
    if header is None:
        raise Reject(f"{subject} has no {SETTLEMENT_HEADER} header")
    settlement = _parsed(subject, header)
    require_agreement(subject, {}, settlement)
    return settlement


def is_read_by(stage: str, subject: str, task: str | None) -> bool:
    """Whether the stage reads messages of this subject, and they concern `task` (None: no task)."""
    for beginning, place in READ_BY.get(stage, {}).items():
        if subject.startswith(f"{beginning}."):
            return (streams.token(subject, place) or None) == task
    return False


def about(letter: str) -> str | None:
    """Task of a dead letter's subject, `failed.<stage>.<task>`; None if it has none."""
    task = streams.token(letter, 2)
    return None if task == "none" else task


def _parsed(subject: str, header: str) -> Settlement:
    try:
        return Settlement.model_validate_json(header)
    except ValidationError as error:
        raise Reject(f"{subject}: malformed {SETTLEMENT_HEADER} header: {first_complaint(error, quoting=False)}") from None


def _named(subject: str) -> dict[str, str]:
    """Parts of a subject by name; empty for a subject that no service uses. A single executor's queue counts as its pool: the executor
    depends on the task's home, and a message is not wrong because of it.
    """
    for pattern in PATTERNS.get(subject.partition(".")[0], ()):
        if found := pattern.fullmatch(subject):
            named = found.groupdict()
            return named | {"pool": streams.pool_of(named["queue"])} if "queue" in named else named
    return {}


def _said(message: Any, name: str) -> str:
    """Value in the body for the part `name` of the subject. `Any`: a message of a kind in SAYS."""
    if isinstance(message, SetPrice):
        return streams.EVERY_TENANT
    if isinstance(message, ServingEnded):
        return (message.task or streams.BASE_MODEL) if name == "task" else message.request
    if name == "task" and type(message) is ServeRequest:
        return message.adapter.task if message.adapter is not None else streams.BASE_MODEL
    if name == "trajectory":
        number = message.group if isinstance(message, Settlement) else message.group.group
        return f"{number}-{message.members[0].member}"
    value = getattr(message.group if isinstance(message, ABOUT_A_GROUP) else message, name)
    return streams.EVERY_TENANT if value is None else str(value)


def _contradictions(message: Any) -> Iterator[str]:
    """Contradictions between parts of the message. `Any`: a message of any kind."""
    match message:
        case OpenGroup(group=group) | SampleTurns(group=group) | TurnsSampled(group=group) | TrajectoriesScored(group=group):
            yield from _of_group(group)
        case TrainBatch() if message.start is not None and (message.start.task, message.start.version) != (message.task, 0):
            yield f"the adapter that task {message.task} starts from is that of {message.start.name}"
        case TrainBatch(checkpoint=BlobRef() as blob) if not _is_named(blob, message.task, message.version, "checkpoint"):
            yield f"its checkpoint {blob.name} is not that of task {message.task} version {message.version}"
        case WeightUpdated():
            yield from _of_update(message)
        case ServingEnded():
            yield from _of_served(message)
        case CheckEnvironment(package=BlobRef() as wheel):
            yield from _of_wheel(wheel, message.tenant)
        case CheckPackage(wheel=wheel):
            yield from _of_wheel(wheel, message.tenant, message.package)
        case _:
            pass


def _of_wheel(wheel: BlobRef, tenant: str, digest: str | None = None) -> Iterator[str]:
    """Contradictions of a package's wheel. `digest`: of the package, if the message has it."""
    digest = digest or wheel.sha256
    if (wheel.name, wheel.sha256) != (wheel_name(tenant, digest), digest):
        yield f"the blob {wheel.name} is not that package of tenant {tenant}"


def _of_served(ended: ServingEnded) -> Iterator[str]:
    if (ended.task is None) != (ended.version is None):
        yield f"it names task {ended.task} and version {ended.version}; the base model has neither"
    if ended.cached_tokens > ended.prompt_tokens:
        yield f"{ended.cached_tokens} tokens of its prompt were cached, which has {ended.prompt_tokens}"


def _of_group(group: GroupContext) -> Iterator[str]:
    if group.package is not None:
        yield from _of_wheel(group.package, group.tenant)
    adapter = group.adapter
    if adapter is not None and (adapter.task, adapter.version) != (group.task, group.version):
        yield f"group {group.group} of task {group.task} version {group.version} has the adapter {adapter.name}"
    elif adapter is not None and adapter.version and not _is_named(adapter.blob, group.task, group.version, "adapter"):
        yield f"its blob {adapter.blob.name} is not the adapter of task {group.task} version {group.version}"


def _of_update(update: WeightUpdated) -> Iterator[str]:
    adapter = update.adapter
    if (adapter.task, adapter.version) != (update.task, update.version):
        yield f"the update of task {update.task} to version {update.version} has the adapter {adapter.name}"
    for kind, blob in (("adapter", adapter.blob), ("checkpoint", update.checkpoint), ("batch", update.batch)):
        if blob is not None and not _is_named(blob, update.task, update.version, kind):
            yield f"its blob {blob.name} is not the {kind} of task {update.task} version {update.version}"


def _require_same_scores(subject: str, message: TrajectoriesScored, settlement: Settlement) -> None:
    found = (settlement.task, settlement.group, [member.member for member in settlement.members])
    expected = (message.group.task, message.group.group, [member.member for member in message.members])
    if found != expected:
        raise Reject(f"{subject}: its header is about (task, group, members) {found}, its body about {expected}")


def _is_named(blob: BlobRef, task: str, version: int, kind: str) -> bool:
    """Whether the blob has the name that a step gives it, which ends with the first digits of its digest."""
    name, _, digest = blob.name.rpartition("-")
    return name == f"{task}.v{version}.{kind}" and digest != "" and blob.sha256.startswith(digest)

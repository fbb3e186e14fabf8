"""The result of a job as a file: its steps, one a line."""

from common.door.asking import Door
from common.door.progress import read_steps
from common.messages import TaskStatus
from gateway_svc.openai.files.file import FileObject
from gateway_svc.openai.result_ids import result_id


async def result_content(door: Door, task: str) -> bytes:
    """Every step of the task as a line of JSON, oldest first. Raises: as `Door.ask`."""
    return b"".join(step.model_dump_json().encode() + b"\n" for step in await read_steps(door, task))


def result_object(status: TaskStatus, content: bytes) -> FileObject:
    return FileObject(
        id=result_id(status.task),
        bytes=len(content),
        created_at=int(status.updated_s),
        filename=f"{status.task}.steps.jsonl",
        purpose="fine-tune-results",
        status="processed",
    )

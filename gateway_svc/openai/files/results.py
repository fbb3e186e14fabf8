"""The result of a job as a file: its steps, one a line. It is made a page of steps at a time, and never held as a whole."""

from collections.abc import AsyncGenerator

from common.client_api.asking import Door
from common.client_api.training.progress import step_pages
from common.formats.strict_json import on_one_line
from common.messages import TaskStatus
from gateway_svc.openai.files.file import FileObject
from gateway_svc.openai.result_ids import result_id


async def result_parts(door: Door, task: str) -> AsyncGenerator[bytes]:
    """Every step of the task as a line of JSON, oldest first. Raises: as `Door.ask`."""
    async for page in step_pages(door, task):
        yield "".join(f"{on_one_line(step.model_dump_json())}\n" for step in page).encode()


async def result_object(door: Door, status: TaskStatus) -> FileObject:
    """Its bytes are counted: every page of steps is asked for. Raises: as `Door.ask`."""
    size = 0
    async for part in result_parts(door, status.task):
        size += len(part)
    return FileObject(
        id=result_id(status.task),
        bytes=size,
        created_at=int(status.updated_s),
        filename=f"{status.task}.steps.jsonl",
        purpose="fine-tune-results",
        status="processed",
    )

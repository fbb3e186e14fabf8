"""Ids of the files with the results of jobs."""

PREFIX = "steps-"


def result_id(task: str) -> str:
    return f"{PREFIX}{task}"


def task_of_result(file: str) -> str | None:
    """The task whose result has this id; None where it is none."""
    return file.removeprefix(PREFIX) if file.startswith(PREFIX) else None

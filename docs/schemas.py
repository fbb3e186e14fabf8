"""The JSON Schema of the message that submits a job, for clients in other languages. One file for each version of it."""

import json
from typing import Any

from common.messages import SubmitTask
from common.spec import TaskSpec


def file_name() -> str:
    """The kind is the version: what is not compatible is a new kind, and a new file beside this one."""
    return f"schemas/{SubmitTask.kind}.json"


def submit_task() -> str:
    """The schema, `spec` included: the message itself leaves that open, so that a wrong one is answered with reasons."""
    message, spec = SubmitTask.model_json_schema(), TaskSpec.model_json_schema()
    definitions: dict[str, Any] = spec.pop("$defs")
    message["properties"]["spec"] = {"$ref": "#/$defs/TaskSpec"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:marlaas:{SubmitTask.kind}",
        "$comment": "Made from common/messages and common/spec by `python -m docs.generate`.",
        **message,
        "description": "A job: published on jobs.submit.<tenant>, as MessagePack or JSON, with the header Marlaas-Kind: " + SubmitTask.kind,
        "$defs": {"TaskSpec": spec, **definitions},
    }
    return json.dumps(schema, indent=2) + "\n"

"""A job of OpenAI's client on an uploaded file, through the whole stack: it is graded, learns, and its result is read."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from marlaas.stack import control
from tests.e2e.page_commands import run

ROWS, HELD_OUT = 240, 64
CHECK = {"type": "string_check", "name": "exact", "input": "{{sample.output_text}}", "reference": "{{item.answer}}", "operation": "eq"}


def questions() -> list[dict[str, Any]]:
    """Questions that the tiny base model answers partly right."""
    import reasoning_gym

    asked = reasoning_gym.create_dataset("lcm", seed=5, size=ROWS + HELD_OUT, min_value=1, max_value=12)
    return [{"messages": [{"role": "user", "content": one["question"]}], "answer": one["answer"]} for one in asked]


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_on_an_uploaded_file_learns(tmp_path: Path) -> None:
    rows = questions()
    try:
        run("marlaas up", tmp_path)
        address = run("marlaas dashboard --no-open", tmp_path).strip().rpartition("/dashboard")[0]
        run("marlaas tenants create acme", tmp_path)
        key = run("marlaas keys create acme test --http --role member", tmp_path)
        secret = next(word for word in key.split() if word.startswith("mk-"))
        client = OpenAI(base_url=f"{address}/v1", api_key=secret)
        train = client.files.create(file=("train.jsonl", jsonl(rows[:ROWS])), purpose="fine-tune")
        held_out = client.files.create(file=("held_out.jsonl", jsonl(rows[ROWS:])), purpose="fine-tune")
        job = client.fine_tuning.jobs.create(
            model="tiny",
            training_file=train.id,
            validation_file=held_out.id,
            method={"type": "reinforcement", "reinforcement": {"grader": CHECK, "hyperparameters": {"batch_size": 16, "n_epochs": 2}}},  # pyright: ignore
            seed=3,
            extra_body={
                "marlaas": {
                    "sampling": {"max_tokens": 16},
                    "limits": {"max_prompt_tokens": 160},
                    "algorithm": {"group_size": 8, "advantage": "dr_grpo"},
                    "evaluation": {"every": 10, "temperature": 1.0, "attempts": 4},
                    "lora": {"rank": 16, "alpha": 32},
                    "optimizer": {"learning_rate": 2e-3},
                }
            },
        )
        while job.status not in ("succeeded", "failed", "cancelled"):
            time.sleep(2)
            job = client.fine_tuning.jobs.retrieve(job.id)
        assert job.status == "succeeded", job.error
        events = [one.data for one in client.fine_tuning.jobs.list_events(job.id)]
        measured: list[Any] = [one for one in events if isinstance(one, dict) and one["event"] == "evaluation"]
        rewards = {one["version"]: one["reward"] for one in measured}
        print("held-out rewards by version:", dict(sorted(rewards.items())))
        assert rewards[max(rewards)] - rewards[0] >= 0.2
        [result] = job.result_files
        steps = [json.loads(line) for line in client.files.content(result).text.splitlines()]
        assert [step["version"] for step in steps] == list(range(1, 31))
        assert len(list(client.fine_tuning.jobs.checkpoints.list(job.id))) >= 1
        answer = client.chat.completions.create(model=job.fine_tuned_model or "", messages=rows[0]["messages"], max_tokens=16)
        assert answer.choices[0].message.content
    finally:
        control.stop(tmp_path / ".marlaas")

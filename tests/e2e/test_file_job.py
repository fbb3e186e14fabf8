"""From an uploaded file to a better model, with the stock client of OpenAI and a whole stack: what docs/openai.md promises."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import reasoning_gym
from openai import OpenAI

from marlaas.stack import control
from tests.support.paths import ROOT

TRAINED, HELD_OUT = range(320), range(320, 360)
"""Questions, by their number in the data set."""
STEPS = 20
FIELDS = {
    "sampling": {"max_tokens": 16},
    "lora": {"rank": 8},
    "optimizer": {"learning_rate": 2e-3},
    "algorithm": {"advantage": "dr_grpo", "max_staleness": 1},
    "evaluation": {"every": STEPS, "prompts": len(HELD_OUT), "attempts": 4, "temperature": 1.0},
}
GRADER = {"type": "string_check", "name": "exact", "operation": "eq", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}


def rows(numbers: range) -> bytes:
    """Questions after letters in words, a line of JSON each."""
    dataset: Any = reasoning_gym.create_dataset("letter_counting", size=numbers.stop, seed=7, min_words=1, max_words=2)
    lines = [
        {"messages": [{"role": "user", "content": dataset[number]["question"]}], "answer": dataset[number]["answer"]} for number in numbers
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.mark.slow
def test_job_on_an_uploaded_file_learns_and_what_it_names_answers(data: Path) -> None:
    stack = control.wait_until_ready(control.start(control.make_plan(data, ROOT / "pools.toml", without_keys=True)), lambda _: None)
    with OpenAI(base_url=f"{stack.gateway.url}/v1", api_key="none", default_query={"tenant": "acme"}) as client:
        train, held_out = (
            client.files.create(file=(name, rows(numbers)), purpose="fine-tune")
            for name, numbers in (("train.jsonl", TRAINED), ("held-out.jsonl", HELD_OUT))
        )
        job = client.fine_tuning.jobs.create(
            model="tiny",
            training_file=train.id,
            validation_file=held_out.id,
            method={  # pyright: ignore[reportArgumentType]
                "type": "reinforcement",
                "reinforcement": {"grader": GRADER, "hyperparameters": {"batch_size": 16, "compute_multiplier": 1}},
            },
            suffix="letters",
            extra_body={"marlaas": {"steps": STEPS, **FIELDS}},
        )
        while job.status not in ("succeeded", "failed", "cancelled"):
            time.sleep(1)
            job = client.fine_tuning.jobs.retrieve(job.id)
        assert job.status == "succeeded", job.error
        assert job.fine_tuned_model == f"{job.id}@{STEPS}"

        evaluations = client.get(f"/tasks/{job.id}/evaluations", cast_to=object)
        rewards = [one["report"]["reward"] for one in evaluations["evaluations"]]  # pyright: ignore[reportIndexIssue]
        print(f"reward on held-out rows: {rewards}")
        assert rewards[-1] - rewards[0] >= 0.2
        assert len(list(client.fine_tuning.jobs.list_events(job.id))) > STEPS
        assert len(list(client.fine_tuning.jobs.checkpoints.list(job.id))) > 0
        asked = json.loads(rows(HELD_OUT).splitlines()[0])["messages"]
        answer = client.chat.completions.create(model=job.fine_tuned_model, messages=asked, max_tokens=16, temperature=0)
        assert answer.model == job.fine_tuned_model
        assert (answer.choices[0].message.content or "").isdigit()

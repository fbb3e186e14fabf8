"""One task with TRL's GRPO trainer, in TRL's own Python environment: run by `bench/trl.py`. Prints one line of JSON.

With `adapters` it trains nothing, and prints the reward of each of these PEFT folders on held-out rows.

The environment (`synthetic`), the base model, the chat template, LoRA, batch and number of steps are those of our side. One turn is
sampled by the trainer itself. Several turns use its `rollout_func`: all attempts of a step sample a turn together, and their
environments then wait at the same time, the best that such a process can do.
"""

import asyncio
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

BEGAN = time.time()
HELD_OUT = 1_000_000
"""First row that no training reaches."""


def main() -> None:
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}
    warnings.simplefilter("ignore")
    import torch
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(wanted["threads"])
    transformers.logging.set_verbosity_error()
    play = Play(wanted)
    if "adapters" in wanted:
        print("RESULT " + json.dumps([earned(play, wanted, adapter) for adapter in wanted["adapters"]]))
        return
    batch = wanted["groups"] * wanted["size"]
    config = GRPOConfig(
        output_dir=wanted["folder"],
        max_steps=wanted["steps"],
        per_device_train_batch_size=batch,
        num_generations=wanted["size"],
        max_completion_length=wanted["turns"] * wanted["max_tokens"] if wanted["turns"] == 1 else wanted["max_tokens"],
        learning_rate=wanted["learning_rate"],
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        max_grad_norm=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=wanted["seed"],
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    rows = [{"prompt": [{"role": "user", "content": play.prompt(row)}]} for row in range(wanted["steps"] * wanted["groups"])]
    trainer = GRPOTrainer(
        model=wanted["model"],
        args=config,
        reward_funcs=play.reward,
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(r=wanted["rank"], lora_alpha=2 * wanted["rank"], target_modules=targets, task_type="CAUSAL_LM"),
        rollout_func=play.rollout if wanted["turns"] > 1 else None,
    )
    started, used = time.time(), time.process_time()
    trainer.train()
    ended, used = time.time(), time.process_time() - used
    trainer.save_model(wanted["folder"])
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    result = {
        "start_s": round(started - BEGAN, 2),
        "train_s": round(ended - started, 2),
        "cpu_s": round(used, 2),
        "began_at": BEGAN,
        "started_at": started,
        "ended_at": ended,
        "rewards": [round(reward, 4) for reward in rewards],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print("RESULT " + json.dumps(result))


def earned(play: "Play", wanted: dict[str, Any], adapter: str) -> float:
    """The mean reward of `episodes` held-out rows, sampled at temperature 1 as in training, by Transformers' own generation."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(wanted["model"]), adapter).eval()

    def sampled(prompts: list[list[int]]) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
        seen = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
        out = model.generate(
            input_ids=padded,
            attention_mask=seen,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=wanted["max_tokens"],
            eos_token_id=play.stop_ids,
            pad_token_id=0,
        )
        return [play.until_stop(ids) for ids in out[:, longest:].tolist()]

    rows = range(HELD_OUT, HELD_OUT + wanted["episodes"])
    played = play.episodes([[{"role": "user", "content": play.prompt(row)}] for row in rows], sampled)
    return round(sum(played["played"]) / len(played["played"]), 4)


class Play:
    """The environment, behind TRL's two interfaces."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        from env_svc.builtin.synthetic import Synthetic
        from rollout_svc.text.chat import Chat

        self._wanted = wanted
        self._environment = Synthetic(**wanted["environment"])
        self._chat = Chat.load(wanted["model"])
        self._states: dict[str, Any] = {}

    def prompt(self, row: int) -> str:
        """Prompt of this row; its text is the key of its state."""
        opening = asyncio.run(self._environment.open(row, self._wanted["seed"]))
        self._states[opening.messages[0].content] = opening.state
        return opening.messages[0].content

    def reward(self, prompts: list[Any], completions: list[Any], **extra: Any) -> list[float]:
        """Rewards of one-turn attempts; several turns carry their rewards along."""
        if "played" in extra:
            return extra["played"]
        replies = [completion[0]["content"] for completion in completions]
        return [turn.reward for turn in self._stepped([self._state(prompt) for prompt in prompts], replies)]

    @property
    def stop_ids(self) -> list[int]:
        return list(self._chat.stop_ids)

    def until_stop(self, ids: list[int]) -> list[int]:
        """`ids` to the first one that ends a turn, that one included."""
        ends = [place for place, token in enumerate(ids) if token in self._chat.stop_ids]
        return ids[: ends[0] + 1] if ends else ids

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        return self.episodes(prompts, lambda ids: trainer._generate_single_turn(ids, None, {}, trainer.num_generations)[0])

    def episodes(self, prompts: list[Any], sampled_after: "Callable[[list[list[int]]], list[list[int]]]") -> dict[str, Any]:
        """All turns of all attempts, a turn at a time."""
        from common.messages import ChatMessage, TokenRecord, TurnRequest
        from common.spec import Limits

        limits = Limits(max_prompt_tokens=256, max_reply_tokens=256, max_turns=self._wanted["turns"])
        states = [self._state(prompt) for prompt in prompts]
        records = [TokenRecord() for _ in prompts]
        messages = [[ChatMessage(**message) for message in prompt] for prompt in prompts]
        first: list[int] = []
        played: list[float] = []
        for turn in range(self._wanted["turns"]):
            requests = [
                TurnRequest(member=0, turn=turn, transcript=record, messages=new, state=b"")
                for record, new in zip(records, messages, strict=True)
            ]
            records = [self._chat.with_messages(request, limits) for request in requests]
            first = first or [len(record) for record in records]
            sampled = sampled_after([record.ids_T().tolist() for record in records])
            records = [record.with_sampled(ids, [0.0] * len(ids)) for record, ids in zip(records, sampled, strict=True)]
            outcomes = self._stepped(states, [self._chat.text(ids) for ids in sampled])
            if turn + 1 == self._wanted["turns"]:
                played = [outcome.reward for outcome in outcomes]
            else:
                states, messages = [outcome.state for outcome in outcomes], [list(outcome.messages) for outcome in outcomes]
        ids = [record.ids_T().tolist() for record in records]
        masks = [record.sampled_T().tolist() for record in records]
        return {
            "prompt_ids": [one[:cut] for one, cut in zip(ids, first, strict=True)],
            "completion_ids": [one[cut:] for one, cut in zip(ids, first, strict=True)],
            "logprobs": None,
            "env_mask": [one[cut:] for one, cut in zip(masks, first, strict=True)],
            "played": played,
        }

    def _state(self, prompt: Any) -> Any:
        return self._states[prompt[-1]["content"]]

    def _stepped(self, states: list[Any], replies: list[str]) -> list[Any]:
        """The environment's answer to each reply; all wait at the same time."""
        from env_svc.contract import Reply

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(
                *(self._environment.step(state, Reply(reply)) for state, reply in zip(states, replies, strict=True))
            )

        return asyncio.run(all_of_them())


if __name__ == "__main__":
    main()

"""The base model of the composition task: what it was made from, and what the committed weights know."""

import importlib.util
import random
from types import ModuleType

import pytest
from transformers import AutoTokenizer

from bench.learning.evaluation import Sizes, evaluate
from env_svc.builtin.compose import FILLER, WORD_LENGTH, run, solution
from tests.support.paths import ROOT

FOLDER = ROOT / "models" / "compose"


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_compose", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_program_of_two_functions_is_asked_and_none_of_more_is_answered_rightly(make: ModuleType) -> None:
    rng = random.Random(0)
    lengths = set[int]()
    for _ in range(20_000):
        transcript = make.write_transcript(rng)
        program, word = transcript.question.split(" ")
        program = program.rstrip(FILLER)
        lengths.add(len(program))
        is_right = transcript.reply[-WORD_LENGTH:] == run(program, word)
        assert is_right == (len(program) == 1), transcript
        chain = "".join(letter for letter in transcript.reply if letter.isupper())
        assert transcript.reply == solution(chain, word)
    assert lengths == {1, 3, 4}


def test_committed_tokenizer_reads_what_the_recipe_writes(make: ModuleType) -> None:
    made, committed = make.make_tokenizer(), AutoTokenizer.from_pretrained(FOLDER)
    transcript = make.write_transcript(random.Random(1))
    chat = [{"role": "user", "content": transcript.question}, {"role": "assistant", "content": transcript.reply}]
    ids = committed.apply_chat_template(chat, tokenize=True, return_dict=False)
    assert ids == made.apply_chat_template(chat, tokenize=True, return_dict=False)
    assert committed.decode(ids) == f"<|user|>{transcript.question}<|end|><|assistant|>{transcript.reply}<|end|>"
    assert made.unk_token_id not in ids


def test_committed_model_knows_every_function_and_no_composition() -> None:
    found = evaluate(FOLDER, None, Sizes(prompts=100, attempts=1))
    right = {split: sum(answers) / len(answers) for split, answers in found.greedy.items()}
    assert right["single"] == 1.0
    assert max(right["train"], right["held_out"], right["longer"]) < 0.2
    assert len(found.sampled) == 100

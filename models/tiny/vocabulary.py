"""The tokenizer of the tiny base model: byte-level BPE with single digits, special tokens and a ChatML template."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 576
MAX_LENGTH_TOKENS = 1024
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = [END_OF_TEXT, START, END]
# Ordinary text for a reader of replies, single tokens for the model: decoding with skip_special_tokens must keep them.
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# Digits stand alone, a word takes the space before it; white space never joins what follows, so a reply tokenizes the same with or
# without the prompt in front of it.
SPLIT = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s"

# A tool of one parameter is shown as the call that it wants, `<calculator>expression</calculator>`; any other by its schema.
CHAT_TEMPLATE = """\
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools -%}
<|im_start|>system
{% if system %}{{ system }}

{% endif %}Tools:
{% for tool in tools -%}
{%- set function = tool.function or tool -%}
{%- set parameters = (function.parameters or {}).properties or {} -%}
{%- if parameters | length == 1 -%}
<{{ function.name }}>{{ parameters | first }}</{{ function.name }}>
{%- else -%}
{{ tool | tojson }}: <tool_call>{"name": {{ function.name | tojson }}, "arguments": ...}</tool_call>
{%- endif -%}
{{ '' if loop.last else '\\n' }}
{%- endfor -%}
<|im_end|>
{% elif system -%}
<|im_start|>system
{{ system }}<|im_end|>
{% endif -%}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function or call -%}
{%- set arguments = function.arguments -%}
<tool_call>{"name": {{ function.name | tojson }}, "arguments": {{ arguments if arguments is string else arguments | tojson }}}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def train_tokenizer(texts: Iterable[str], min_frequency: int) -> PreTrainedTokenizerFast:
    """A tokenizer that merges what occurs at least `min_frequency` times: the wording of the questions, not their contents."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY_SIZE - len(MARKUP_TOKENS),
            min_frequency=min_frequency,
            special_tokens=CONTROL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_tokens(MARKUP_TOKENS)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[START],
        model_max_length=MAX_LENGTH_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

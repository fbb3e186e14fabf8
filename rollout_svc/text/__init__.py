"""Text and tokens: pure functions on messages, templates and token ids.

chat.py            messages to tokens and back, by the model's chat template
control_tokens.py  tokens that stand for no text
token_bytes.py     bytes of single tokens, and how many characters one may stand for
stop_strings.py    which token of a reply completes one of the task's stop strings
tool_turns.py      what templates demand of turns with answers of tools · variables.py variables that a template reads
"""

"""Text and tokens: pure functions on messages, templates and token ids.

chat.py            messages to tokens and back, by the model's chat template
control_tokens.py  tokens that stand for no text
token_bytes.py     bytes of single tokens, and how many characters one may stand for
reply_text.py      characters of a reply as its tokens come, and stop strings in them
template.py        the chat template: what it writes, and what it demands of turns with answers of tools
"""

"""Text and tokens: pure functions on messages, templates and token ids.

chat.py            messages to tokens and back, by the model's chat template
control_tokens.py  protection of control tokens against text from outside
token_bytes.py     bytes of single tokens, and the maximum characters of one token
reply_text.py      text of a reply, decoded token by token, and stop strings in it
template.py        the chat template: its rendering, and its requirements for turns with tool results
"""

"""`/v1/chat/completions`: messages, the request, the answer and its chunks."""

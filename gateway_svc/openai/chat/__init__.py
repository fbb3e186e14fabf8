"""`/v1/chat/completions`: request.py parses messages and settings, answer.py builds the answer and its chunks."""

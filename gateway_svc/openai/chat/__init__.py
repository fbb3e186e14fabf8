"""`/v1/chat/completions`: request.py has messages and settings, answer.py the answer and its chunks."""

"""`/v1/completions`: the request, the answer and its chunks."""

"""`/v1/responses`: request.py parses items and settings, shapes.py defines the answer, answer.py builds it from deltas."""

"""`/v1/responses`: request.py has items and settings, shapes.py what is answered, answer.py makes it of deltas."""

"""`/v1/responses`: items, the request, shapes, and the answer with its events."""

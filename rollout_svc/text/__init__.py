"""What a model's chat template reads and demands: pure functions on messages and on the template's source."""

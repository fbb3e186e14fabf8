"""Numbers of groups, which messages about them carry: training groups count from 0, evaluation groups from FIRST_EVALUATION_GROUP."""

FIRST_EVALUATION_GROUP = 1_000_000_000

"""Graders of tasks: OpenAI's `string_check`, `text_similarity`, `python` and `multi`, parsed and checked. Pure.

Layout    specs.py parses a grader, and the formula that `multi` computes; templates.py fills placeholders such as `{{item.field}}`
          `env_svc/files/` runs graders
"""

from common.graders.specs import (
    METRICS,
    Formula,
    Grader,
    MultiGrader,
    PythonGrader,
    SimpleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    WrongGrader,
    read_grader,
)
from common.graders.templates import MAX_RENDERED, MissingField, MissingOutput, Sample, TooLong, rendered

__all__ = [
    "MAX_RENDERED", "METRICS", "Formula", "Grader", "MissingField", "MissingOutput", "MultiGrader", "PythonGrader", "Sample",
    "SimpleGrader", "StringCheckGrader", "TextSimilarityGrader", "TooLong", "WrongGrader", "read_grader", "rendered",
]  # fmt: skip

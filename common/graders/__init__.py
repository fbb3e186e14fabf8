"""Graders as a task names them: OpenAI's `string_check`, `text_similarity`, `python` and `multi`, read and checked. Pure.

Layout    specs.py reads a grader; templates.py its `{{item.field}}`; formula.py what `multi` computes
          `env_svc/files/` runs them
"""

from common.graders.formula import Formula
from common.graders.specs import (
    METRICS,
    Grader,
    MultiGrader,
    PythonGrader,
    SimpleGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    WrongGrader,
    read_grader,
)
from common.graders.templates import MissingField, MissingOutput, Sample, rendered

__all__ = [
    "METRICS", "Formula", "Grader", "MissingField", "MissingOutput", "MultiGrader", "PythonGrader", "Sample", "SimpleGrader",
    "StringCheckGrader", "TextSimilarityGrader", "WrongGrader", "read_grader", "rendered",
]  # fmt: skip

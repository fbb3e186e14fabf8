"""A task as written in `task.toml`: its sections (sections.py), the whole task (task.py), its validation (parsing.py), and a pool's
defaults.

evaluation.py  the section of held-out prompts · template.py variables of chat templates
"""

# pyright: reportUnusedImport=false
from common.spec.defaults import OWN, Layer, Profile, complete, profile_values, sources
from common.spec.evaluation import MAIN_PROTOCOL, Evaluation, Protocol
from common.spec.parsing import MAX_GROUPS, NotStorable, check_fields, parse_spec
from common.spec.sections import (
    DEFAULTS_BY_LOSS,
    LETTERS,
    LORA_TARGETS,
    NAME_PATTERN,
    OWN_PATTERN,
    TASK_ID_PATTERN,
    Algorithm,
    Correction,
    EnvironmentSection,
    Limits,
    Lora,
    Name,
    Optimizer,
    Sampling,
    Section,
    ToolSection,
)
from common.spec.task import TaskSpec, is_marked, mark_of, marked, new_task_id
from common.spec.template import NOT_ARGUMENTS, unknown_arguments

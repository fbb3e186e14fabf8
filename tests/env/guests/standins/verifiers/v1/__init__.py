"""See `verifiers`."""

from verifiers.v1.state import State as State
from verifiers.v1.tasks import *  # noqa: F403
from verifiers.v1.trace import *  # noqa: F403

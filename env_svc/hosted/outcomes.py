"""Outcomes that a host reports, held to the contract on this side too: in its process, other people's code can write any frame. Pure."""

from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, failed, is_bounded
from env_svc.contract import MAX_NUMBER, MAX_STATE_BYTES

MAX_COMPONENTS = 1024


def checked_outcome(reported: object, call: Call) -> Outcome:
    """The outcome of `call`, as `calls.perform` could have made it. Raises: ValueError."""
    if isinstance(reported, Failed):
        return failed(reported.reason, is_infrastructure=reported.is_infrastructure, is_late=reported.is_late)
    if not isinstance(reported, Opened if isinstance(call, OpenCall) else Continued | Scored):
        raise ValueError(f"{type(call).__name__} was answered with {type(reported).__name__}")
    if isinstance(reported, Scored):
        if len(reported.components) > MAX_COMPONENTS:
            raise ValueError(f"a score has {len(reported.components)} components, at most {MAX_COMPONENTS} are allowed")
        if not all(map(is_bounded, (reported.reward, *reported.components.values()))):
            raise ValueError(f"a score is not finite, or beyond {MAX_NUMBER:g}")
        return reported
    if not reported.messages:
        raise ValueError(f"{type(reported).__name__} has no messages")
    if len(reported.state) > MAX_STATE_BYTES:
        raise ValueError(f"a state has {len(reported.state)} bytes, at most {MAX_STATE_BYTES} can travel with a turn")
    return reported

from env_svc.adapters.verifiers import Taskset


class OpenTaskset(Taskset):
    """Lets a test choose what only an operator may, so that one process plays all tests."""

    operator_options = ()


class Forgetful(OpenTaskset):
    """Holds hardly any episode, so that most turns are played again."""

    max_held = 2

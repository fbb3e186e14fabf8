from env_svc.adapters.verifiers import Taskset


class OpenTaskset(Taskset):
    """Lets a test choose what only an operator may, so that one process plays all tests."""

    operator_options = ()


class Forgetful(OpenTaskset):
    """Holds few episodes, so that nearly all turns are replayed."""

    max_held = 2

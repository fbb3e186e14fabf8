"""Environments by name.

    reasoning_gym:gcd        <entry point>:<argument>    family reasoning_gym
    my_env                   <entry point>               family my_env
    my_package.envs:MyEnv    <module>:<attribute>        family `module`

Entry points of the group `marlaas.environments` are listed without importing them. Each family has a queue, which only replicas
with the family's environment installed consume. A name resolves to a subclass of `Environment` or to nothing. `allowed.py` decides which
names a task may give before this module imports anything, because an import runs the module. If an import raises any exception, even
`SystemExit`, only the task that named it is refused.

`python -m env_svc.registry` prints the names of the environments that are installed here, one a line. It needs no stack.
"""

import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import structlog
from pydantic import JsonValue

from common.errors import Fatal
from common.messages import FILE_FAMILY, OWN_FAMILY
from env_svc.contract import Environment
from env_svc.errors import WrongOptions
from env_svc.options import options_of, suggestion, validated_options

ENTRY_POINTS = "marlaas.environments"
MODULE_FAMILY = "module"
FAMILY_PATTERN = re.compile(r"^[A-Za-z0-9_-]+$")
"""Pattern of the names of families. A name is one token of a subject, and a part of a consumer's name."""

AnyEnvironment = Environment[Any]
"""An environment with any state. `Any`: only the environment itself knows its type."""

log = structlog.get_logger()


class UnknownEnvironment(WrongOptions):
    """No environment has this name, or the name resolves to something else."""


def families() -> list[str]:
    """All families that this process could serve."""
    return [*sorted(_installed()), MODULE_FAMILY]


def served(names: Sequence[str], hosted: Sequence[str] = ()) -> list[str]:
    """The families that a replica serves: `names`, from its settings, or all if that is empty. Raises: Fatal if one is not installed."""
    known = [*hosted, *families()]
    for name in names:
        if name not in known:
            raise Fatal(f"MARLAAS_ENV_FAMILIES: no environment family '{name}' is installed here{suggestion(name, known)}")
    return list(names) or known


def family_of(name: str) -> str:
    """Family of the environment `name`, found without importing its module."""
    head = name.partition(":")[0]
    return head if head in _installed() or head in (OWN_FAMILY, FILE_FAMILY) or ":" not in name else MODULE_FAMILY


def modules(served: Sequence[str]) -> list[str]:
    """Modules of these families, which worker processes preload."""
    return [entry_point.module for family, entry_point in sorted(_installed().items()) if family in served]


def list_environments(served: Sequence[str] | None = None) -> list[str]:
    """Names of the environments of the families `served` (None: all), without those named `module:attribute`, which cannot be listed."""
    found: list[str] = []
    for family, entry_point in sorted(_installed().items()):
        if served is not None and family not in served:
            continue
        try:
            arguments = _environment_class(family, entry_point.load()).arguments()
        except BaseException as error:  # one broken package must not hide the others, nor end the replica
            log.warning("environment_not_importable", environment=family, error=f"{type(error).__name__}: {error}")
            continue
        found += [f"{family}:{argument}" for argument in arguments] or [family]
    return found


@lru_cache(maxsize=1024)
def find(name: str) -> type[AnyEnvironment]:
    """The class that `name` resolves to. Raises: UnknownEnvironment, with near matches."""
    head, colon, tail = name.partition(":")
    entry_point = _installed().get(head)
    if entry_point is None:
        return _from_module(name, head, tail, _names_known) if colon else _unknown(name)
    with _imports(name):
        found = _environment_class(name, entry_point.load())
        arguments = found.arguments()
    check_argument(name, arguments)
    return found


def find_in_module(path: str) -> type[AnyEnvironment]:
    """The class at `module:attribute`, even if the module's name is registered. Raises: UnknownEnvironment."""
    module, _, attribute = path.partition(":")
    return _from_module(path, module, attribute, near=None)


def check_argument(name: str, arguments: Sequence[str]) -> None:
    """Raises: UnknownEnvironment if the text after the colon in `name` is not one of `arguments`."""
    head, colon, tail = name.partition(":")
    if arguments and tail not in arguments:
        names = [f"{head}:{argument}" for argument in arguments]
        raise UnknownEnvironment(f"no environment '{name}'{suggestion(name, names)}")
    if colon and not arguments:
        raise UnknownEnvironment(f"environment '{head}' takes no argument: use '{head}' instead of '{name}'")


def build(name: str, options: dict[str, JsonValue]) -> AnyEnvironment:
    """The environment `name` with a task's `options`. Raises: UnknownEnvironment, WrongOptions."""
    found = find(name)
    check_declared(name, options, is_declared=declares_options(found))
    return construct(found, name, options)


def declares_options(found: type[AnyEnvironment]) -> bool:
    """Whether the class declares which options a task may give: by its constructor's named arguments, or by checking them itself."""
    return found.checks_options or options_of(found) is not None


def check_declared(name: str, options: Mapping[str, JsonValue], *, is_declared: bool) -> None:
    """Raises: WrongOptions for options of a constructor that takes any and checks none."""
    if options and not is_declared:
        rule = "its constructor takes any (**), and the class does not say that it checks them (checks_options)"
        raise WrongOptions(f"environment '{name}': a task may give no option, such as '{next(iter(options))}': {rule}")


def construct(found: type[AnyEnvironment], name: str, options: dict[str, JsonValue]) -> AnyEnvironment:
    """An object of the class `found`, to which `name` resolved. Raises: WrongOptions."""
    arguments = (name.partition(":")[2],) if found.arguments() else ()
    known = options_of(found)
    values = dict(options) if known is None else validated_options(f"environment '{name}'", known[len(arguments) :], options)
    try:
        return found(*arguments, **values)
    except WrongOptions:
        raise
    except (ValueError, TypeError, AssertionError) as error:
        raise WrongOptions(f"environment '{name}' refuses its options: {error}") from error


@cache
def _installed() -> dict[str, EntryPoint]:
    found = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINTS)}
    for name in [name for name in found if not FAMILY_PATTERN.match(name) or name in (MODULE_FAMILY, OWN_FAMILY, FILE_FAMILY)]:
        log.warning("environment_name_refused", environment=name, allowed=FAMILY_PATTERN.pattern)
        del found[name]
    return found


@contextmanager
def _imports(name: str) -> Generator[None]:
    """Context for an import, which may run any code. Raises: UnknownEnvironment for any exception inside."""
    try:
        yield
    except UnknownEnvironment:
        raise
    except BaseException as error:  # SystemExit would end the replica
        raise UnknownEnvironment(f"environment '{name}' cannot be imported: {type(error).__name__}: {error}") from error


def _from_module(name: str, module: str, attribute: str, near: Callable[[], list[str]] | None) -> type[AnyEnvironment]:
    """The class at `module:attribute`. `near`: returns names to suggest if the module is missing. Raises: UnknownEnvironment."""
    with _imports(name):
        try:
            imported = importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            hint = suggestion(name, near()) if near and missing == module.split(".")[0] else ""
            raise UnknownEnvironment(f"environment '{name}': no module '{missing}' on this replica{hint}") from None
        loaded: object = imported
        for part in attribute.split("."):
            loaded = getattr(loaded, part, None)
        if loaded is None:
            there = [one for one, value in vars(imported).items() if isinstance(value, type) and issubclass(value, Environment)]
            hint = suggestion(attribute, [one for one in there if one != Environment.__name__]) if there else ""
            raise UnknownEnvironment(f"environment '{name}': module '{module}' has no '{attribute}'{hint}")
        return _environment_class(name, loaded)


def _environment_class(name: str, loaded: object) -> type[AnyEnvironment]:
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise UnknownEnvironment(
            f"'{name}' is not an environment: expected a subclass of env_svc.contract.Environment, found {loaded!r:.80}"
        )
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(loaded.__abstractmethods__))
        raise UnknownEnvironment(f"environment '{name}' does not define {missing}")
    return loaded


def _unknown(name: str) -> type[AnyEnvironment]:
    hint = suggestion(name, _names_known(), listed=list(_installed()))
    raise UnknownEnvironment(f"no environment '{name}'{hint}; a class that is not registered is named my_package.module:Class")


def _names_known() -> list[str]:
    return sorted({*list_environments(), *_installed()})


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    names = list_environments()
    sys.stdout.write("".join(f"{name}\n" for name in names))
    sys.exit(0 if names else 1)


if __name__ == "__main__":
    main()

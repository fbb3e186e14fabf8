"""Mutants of the rules that are Python functions, run against the breakages of the stores."""

import ast
import asyncio
import copy
from collections.abc import Iterator, Sequence
from inspect import getsource
from pathlib import Path
from types import ModuleType

from scheduler_svc.doctor import blob_rules, runner, stream_rules
from scheduler_svc.doctor.runner import Depth
from tests.scheduler.doctor import store_breakages
from tests.scheduler.doctor.mutant import Mutant, MutantCounts
from tests.support.scheduler.finished import QUIESCENT, Copy, Finished, copied

LIMIT_S = 60.0
"""Maximum duration of an examination by a mutant."""
RULES_OF: dict[str, Sequence[str]] = {
    "_orphans": [stream_rules.ORPHANS],
    "_scores": [stream_rules.SCORES],
    "_weights": [stream_rules.WEIGHTS, stream_rules.ANNOUNCED],
    "_update": [stream_rules.WEIGHTS],
    "_statuses": [stream_rules.STATUS],
    "_deleted": [stream_rules.DELETED],
    "_http_keys": [stream_rules.HTTP_KEYS],
    "_aliases": [stream_rules.ALIASES],
    "_bounds": [stream_rules.BOUNDS],
    "_faulty": [stream_rules.FAULTY],
    "_refused": [stream_rules.REFUSED],
    "_letters": [stream_rules.LETTERS],
    "_is_readable": [stream_rules.LETTERS],
    "examine_blobs": [blob_rules.MISSING, blob_rules.ORPHANS, blob_rules.PACKAGES, blob_rules.DAMAGED],
    "_packages": [blob_rules.PACKAGES],
    "_is_needed": [blob_rules.ORPHANS],
    "_damage": [blob_rules.DAMAGED],
}
"""Function of the doctor → the rules that it checks."""
OPPOSITE: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
    ast.Lt: ast.Gt(), ast.Gt: ast.Lt(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Replacements of `node`."""
    match node:
        case ast.Compare(ops=[operation]) if type(operation) in OPPOSITE:
            yield ast.Compare(node.left, [OPPOSITE[type(operation)]], node.comparators)
            if isinstance(node.left, ast.Tuple) and isinstance(node.comparators[0], ast.Tuple):
                for place in range(len(node.left.elts)):
                    yield ast.Compare(_without(node.left, place), node.ops, [_without(node.comparators[0], place)])
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for place in range(len(node.values)):
                left = node.values[:place] + node.values[place + 1 :]
                yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.comprehension(ifs=[_, *_]):
            yield ast.comprehension(node.target, node.iter, [], node.is_async)
        case ast.If():
            yield ast.If(ast.Constant(True), node.body, node.orelse)
            yield ast.If(ast.Constant(False), node.body, node.orelse)
        case ast.AugAssign(op=ast.Add()):
            yield ast.Pass()
        case _:
            pass


def _without(row: ast.Tuple, place: int) -> ast.Tuple:
    return ast.Tuple(row.elts[:place] + row.elts[place + 1 :], row.ctx)


class Replacing(ast.NodeTransformer):
    """Replaces the node `before` by `after`."""

    def __init__(self, before: ast.AST, after: ast.AST) -> None:
        self._before, self._after = before, after

    def visit(self, node: ast.AST) -> ast.AST:
        return self._after if node is self._before else self.generic_visit(node)


def changed(function: ast.AST) -> Iterator[ast.AST]:
    """Copies of the function, each with one change."""
    words = {id(part) for node in ast.walk(function) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for place, node in enumerate(ast.walk(function)):
        if id(node) in words:  # the text of a violation decides nothing
            continue
        for choice in range(len(list(changes(node)))):
            fresh = copy.deepcopy(function)
            before = list(ast.walk(fresh))[place]
            yield ast.fix_missing_locations(Replacing(before, list(changes(before))[choice]).visit(fresh))


def mutants_of_module(module: ModuleType) -> Iterator[Mutant]:
    tree = ast.parse(getsource(module))
    whole = ast.unparse(tree)
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in RULES_OF]:
        before = ast.unparse(function)
        for fresh in changed(function):
            after = ast.unparse(fresh)
            lines = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=False) if pair[0] != pair[1]]
            if lines:
                yield Mutant(function.name, f"{lines[0][0].strip()} → {lines[0][1].strip()}", whole.replace(before, after))


def loaded(module: ModuleType, source: str) -> ModuleType:
    made = ModuleType(module.__name__)
    exec(compile(source, module.__name__, "exec"), made.__dict__)
    return made


def doctors() -> Iterator[tuple[Mutant, ModuleType]]:
    """Each mutant with a copy of the runner that uses it."""
    for name, module in ("stream_rules", stream_rules), ("blob_rules", blob_rules):
        for mutant in mutants_of_module(module):
            doctor = loaded(runner, getsource(runner))
            setattr(doctor, name, loaded(module, mutant.source))
            yield mutant, doctor


async def violated(doctor: ModuleType, world: Copy, depth: Depth) -> set[str] | None:
    """Rules that the doctor reports as broken; None when it raises."""
    try:
        async with asyncio.timeout(LIMIT_S):
            return {violation.rule for violation in await doctor.examine(world.database, world.bus, depth)}
    except Exception:  # any exception of a mutant fails its test
        return None


async def try_modules(made: Finished, folder: Path, counts: dict[str, MutantCounts]) -> None:
    """Run every mutant of the code, in the finished world and in each changed copy."""
    async with copied(made, folder / "rest") as world:
        silent = [(mutant, doctor, await violated(doctor, world, QUIESCENT)) for mutant, doctor in doctors()]
    for mutant, _, found in silent:
        if found != set():
            counts[_rule_of(mutant, found or set())].caught += 1
    left = [(mutant, doctor) for mutant, doctor, found in silent if found == set()]
    tried = [(rule, change, QUIESCENT, True) for rule, change in store_breakages.VIOLATIONS]
    tried += [(rule, change, depth, False) for rule, change, depth in store_breakages.COMPLIANT]
    for number, (rule, change, depth, is_violation) in enumerate(tried):
        async with copied(made, folder / str(number)) as world:
            await change(world)
            passed: list[tuple[Mutant, ModuleType]] = []
            for mutant, doctor in left:
                found = await violated(doctor, world, depth) if rule in RULES_OF[mutant.rule] else None
                if rule in RULES_OF[mutant.rule] and (found is None or (rule in found) is not is_violation):
                    counts[rule].caught += 1
                else:
                    passed.append((mutant, doctor))
            left = passed
    for mutant, _ in left:
        counts[RULES_OF[mutant.rule][0]].survived.append(mutant)


def _rule_of(mutant: Mutant, found: set[str]) -> str:
    rules = RULES_OF[mutant.rule]
    return next((rule for rule in rules if rule in found), rules[0])

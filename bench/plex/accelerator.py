"""A simulated accelerator: its executors, their operations and slices. All decisions are those of `scheduler_svc`."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from bench.plex.accounts import Accounts, Counts, Place
from bench.plex.events import Events
from bench.plex.executors import Moving, State
from bench.plex.meters import Measures
from bench.plex.pieces import Operation
from common.accelerators import Function, Tier
from common.accelerators import Policy as Named
from common.accelerators.trace import Executor, Task
from scheduler_svc.accelerators.decisions import slicing
from scheduler_svc.accelerators.decisions.situation import Situation
from scheduler_svc.accelerators.decisions.state import Demand, Drain, FreezeCosts, Holding, Idle, Keep, Quantiles, Rules, Switch

EPSILON_S = 1e-9
NEVER_S = float("inf")
Policy = Callable[[Situation], slicing.Decision]


class SharedAccelerator:
    """Executors that share one accelerator. Moves are known before the first one, as after a calibration."""

    def __init__(self, rules: Rules, events: Events, random: Random, policy: Policy | None = None) -> None:
        """`policy`: instead of the one that the rules name."""
        self.counts = Counts()
        self.accounts = Accounts()
        self._rules, self._events, self._policy = rules, events, policy
        self._executors: dict[str, State] = {}
        self._by_function: dict[tuple[str, Function], State] = {}
        self._moving = Moving(random)
        self._running: list[Operation] = []
        self._holder: State | None = None
        self._target: Switch | None = None
        """A switch that waits for the holder to drain."""
        self._is_switching = False
        self._started_s = self._awake_s = self._stay_since_s = 0.0
        self._switch_s = self._stay_switch_s = 0.0
        self._has_started = False
        self._ordered_for: set[str] = set()
        self._progress_s = 0.0
        self._token = 0
        self._is_ticking = False
        self._drained_by_s = NEVER_S

    def add(self, table: Executor, tier: Tier = Tier.HOST) -> None:
        state = State(table, Measures(table, lambda: self._events.now_s), tier)
        self._executors[table.executor] = state
        for function in table.functions:
            self._by_function[table.pool, function] = state
        self._moving.calibrate(table)

    def submit(self, operation: Operation) -> None:
        """An operation is ready."""
        state = self._by_function[operation.task.pool, operation.function]
        self.accounts.activate(operation.task, self._tasks_with_work())
        operation.first_ready_s = operation.ready_s
        state.ready.append(operation)
        self._decide()

    # ---------------------------------------------------------------------------------------------- decisions

    def _decide(self) -> None:
        if self._is_switching or self._is_ticking:
            return
        now_s = self._events.now_s
        self._progress(now_s)
        if self._target is not None:
            self._drain(now_s)
            return
        decision = slicing.next_slice(now_s, self._holding(), self._demands(now_s), self._moving.known, self._rules, self._policy)
        if isinstance(decision, Keep):
            self._start_ready(now_s)
            self._wake_at(decision.until_s)
        elif isinstance(decision, Idle):
            self._wake_at(decision.until_s)
        else:
            self._order(now_s, decision)

    def _order(self, now_s: float, switch: Switch) -> None:
        self._target, self._drained_by_s = switch, NEVER_S
        self.counts.reasons[switch.reason] += 1
        if self._running and self._running[0].function.is_interruptible:
            waiting_since_s = self._waiting_since_s(self._executors[switch.executor])
            slack_s = waiting_since_s + self._rules.max_wait_s - now_s
            costs = FreezeCosts(self._switch_s, self._again_s() / self._holder_gain())
            mode = slicing.park_mode(self._left(), now_s - self._awake_s, slack_s, costs, self._rules)
            self._drained_by_s = now_s + mode.seconds if isinstance(mode, Drain) else now_s
        self._drain(now_s)

    def _drain(self, now_s: float) -> None:
        if self._running and now_s >= self._drained_by_s - EPSILON_S and self._running[0].function.is_interruptible:
            self._freeze(now_s)
        if self._running:
            self._wake_at(self._drained_by_s)
        else:
            self._begin_switch(now_s)

    def _freeze(self, now_s: float) -> None:
        assert self._holder is not None
        share = self._again_s() / max(EPSILON_S, sum(one.work_s - one.left_s for one in self._running))
        for one in reversed(self._running):
            self._note_operation(one, now_s)
            again_s = share * (one.work_s - one.left_s)
            frozen = replace(one, work_s=one.work_s + again_s, left_s=one.left_s + again_s, ready_s=now_s)
            self._holder.ready.appendleft(frozen)
        self.counts.frozen += len(self._running)
        self._running = []

    def _again_s(self) -> float:
        """Work of what runs that is repeated if it is frozen now."""
        assert self._target is not None
        assert self._holder is not None
        if self._holder.table.executor not in [park.executor for park in self._target.park_to]:
            return 0.0
        return self._holder.table.refill * sum(one.work_s - one.left_s for one in self._running)

    def _holder_gain(self) -> float:
        return max(1.0, self._holder.table.gain_of(len(self._running))) if self._holder is not None else 1.0

    # ------------------------------------------------------------------------------------------------ switches

    def _begin_switch(self, now_s: float) -> None:
        switch = self._target
        assert switch is not None
        self._book(now_s)
        self._target, self._is_switching = None, True
        if self._holder is not None:
            self._holder.parked_since_s = now_s
            self._holder.measures.park()
        duration_s = 0.0
        for park in switch.park_to:
            duration_s += self._moving.move(self._executors[park.executor], park.to_tier)
        next_ = self._executors[switch.executor]
        moves_state = bool(switch.park_to) or next_.tier is not Tier.DEVICE
        duration_s += self._moving.move(next_, Tier.DEVICE)
        self._ordered_for = {one.task.task for one in next_.ready}
        self._holder, self._token = next_, self._token + 1
        self.counts.executor_waits_s.append(now_s + duration_s - self._waiting_since_s(next_))
        self._events.at(now_s + duration_s, lambda: self._awake(duration_s, moves_state))

    def _awake(self, duration_s: float, moves_state: bool) -> None:
        now_s = self._events.now_s
        assert self._holder is not None
        name = self._holder.table.executor
        self._holder.measures.wake()
        self._is_switching, self._has_started = False, False
        self._awake_s, self._switch_s, self._progress_s = now_s, duration_s, now_s
        if moves_state:
            self._stay_since_s, self._stay_switch_s = now_s, duration_s
        self.counts.switches += 1
        self.counts.moving_switches += moves_state
        self.counts.switch_s += duration_s
        self.counts.longest_switch_s[name] = max(self.counts.longest_switch_s.get(name, 0.0), duration_s)
        self._decide()

    # ------------------------------------------------------------------------------------------------- progress

    def _start_ready(self, now_s: float) -> None:
        state = self._holder
        if state is None:
            return
        while state.ready and len(self._running) < state.table.places:
            one = state.ready.popleft()
            if not one.has_run:
                self.counts.operation_waits_s.append(now_s - one.first_ready_s)
            one.has_run, one.ready_s = True, now_s  # `ready_s` of a running operation: when it began
            self._running.append(one)
            state.measures.meter.begin(one)
            self._has_started = True

    def _note_operation(self, one: Operation, now_s: float) -> None:
        assert self._holder is not None
        name = self._holder.table.executor
        self.counts.longest_operation_s[name] = max(self.counts.longest_operation_s.get(name, 0.0), now_s - one.ready_s)

    def _rate(self) -> float:
        """Progress of each running operation, in seconds a second."""
        return 0.0 if self._holder is None or not self._running else self._holder.table.gain_of(len(self._running)) / len(self._running)

    def _progress(self, now_s: float) -> None:
        passed_s = now_s - self._progress_s
        self._progress_s = now_s
        if not self._running or passed_s <= 0:
            return
        self.counts.busy_s += passed_s
        done_s = passed_s * self._rate()
        for one in self._running:
            one.left_s -= done_s
            self.accounts.serve(one.task.task, passed_s / len(self._running))

    def _wake_at(self, until_s: float) -> None:
        """Look again when the first running operation ends, or at `until_s`."""
        if self._running:
            until_s = min(until_s, self._events.now_s + min(one.left_s for one in self._running) / self._rate())
        self._token += 1
        if until_s < NEVER_S:
            token = self._token
            self._events.at(until_s, lambda: self._tick(token))

    def _tick(self, token: int) -> None:
        if token != self._token:
            return
        now_s = self._events.now_s
        self._progress(now_s)
        ended = [one for one in self._running if one.left_s <= EPSILON_S]
        if ended:
            holder = self._holder
            assert holder is not None
            self._running = [one for one in self._running if one.left_s > EPSILON_S]
            self._is_ticking = True  # tasks submit their next operations before the next decision
            for one in ended:
                self._note_operation(one, now_s)
                holder.measures.meter.end(one)
                one.done()  # removes the holder, where this was the last operation of its pool
            holder.measures.look()
            self._is_ticking = False
        self._decide()

    # ----------------------------------------------------------------------------------- what the decisions see

    def _waiting_since_s(self, state: State) -> float:
        return max(state.ready[0].ready_s if state.ready else self._events.now_s, state.parked_since_s)

    def _left(self) -> Quantiles | None:
        if not self._running or self._holder is None:
            return None
        return self._holder.left

    def _holding(self) -> Holding | None:
        if self._holder is None:
            return None
        running = self._running[0].function if self._running else None
        return Holding(
            self._holder.table.executor,
            self._awake_s,
            self._switch_s,
            running,
            self._has_started,
            self._stay_since_s,
            self._stay_switch_s,
            self._left(),
        )

    def _demands(self, now_s: float) -> list[Demand]:
        is_ours = self._rules.policy is Named.RATIO
        provisional = self.accounts.provisional(now_s - self._started_s) if is_ours else {}
        return [self._demand(state, provisional) for state in self._executors.values()]

    def _demand(self, state: State, provisional: dict[Place, float]) -> Demand:
        table = state.table
        running: list[Operation] = self._running if state is self._holder else []
        work_s, claims = 0.0, ()
        if self._rules.policy is Named.RATIO and (state.ready or running):
            work_s = state.work_s(len(running))
            claims = self.accounts.claims([one.task for one in (*state.ready, *running)], provisional)
        return Demand(
            table.executor,
            table.pool,
            state.ready[0].function if state.ready else table.functions[0],
            state.tier,
            table.device_bytes,
            table.host_bytes,
            table.deepest,
            state.ready_since_s,
            state.parked_since_s,
            work_s,
            claims,
        )

    def _tasks_with_work(self) -> list[Task]:
        return [one.task for state in self._executors.values() for one in state.ready] + [one.task for one in self._running]

    # ------------------------------------------------------------------------------------------------- booking

    def _book(self, now_s: float) -> None:
        """End the slice in progress."""
        if self._holder is not None:
            self.accounts.book(round(1000 * now_s) - round(1000 * self._started_s), self._ordered_for)
            self.counts.held_s += now_s - self._started_s
        self._started_s = now_s

    def finish(self) -> None:
        """End the last slice, when all is done."""
        self._progress(self._events.now_s)
        self._book(self._events.now_s)

"""Tests that take longer than LONG_S, each with its reason; the end of a run names those that are neither listed nor marked as MAY_BE_LONG.

What is above LONG_S by the clock is only reported, as a busy machine makes any test slow. One that computes that long, twice over, fails
the run: processor time does not depend on what else runs.
"""

import multiprocessing
import resource
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

LONG_S = 8.0
COMPUTES_S = 2 * LONG_S
MAY_BE_LONG = {"slow", "acceptance"}
ELECTED = "a cluster elects a leader after each node that is killed"
REASONS: dict[str, str] = {
    "tests/chaos/": "breaks a real stack for minutes",
    "tests/compose/": "builds, starts and kills containers",
    "tests/common/access/test_blobs.py::test_blob_arrives_through_every_reader_with_each_services_key":
        "64 MiB are stored once, read eleven times, and overwritten",
    "tests/common/access/test_protocol.py::test_every_door_is_open_to_those_who_have_a_row_and_every_permission_is_used":
        "each of the six services does all that it may, with 5 MB in each stream that is followed",
    "tests/common/leases/test_killing.py::test_stopped_holder_is_ended_from_outside_before_its_lease_has_expired":
        "a stopped process is ended after the 10 s of its lease",
    "tests/common/test_cluster.py::test_everything_is_declared_with_as_many_copies_and_never_with_fewer": ELECTED,
    "tests/common/test_cluster.py::test_followers_values_and_blobs_outlive_each_node": ELECTED,
    "tests/common/test_cluster.py::test_nodes_are_killed_one_at_a_time_and_every_message_has_its_effect_once": ELECTED,
    "tests/marlaas/containers/": "each step of the containers' preparation is a process that loads the command line",
    "tests/marlaas/stack/test_database_access.py::test_tenant_reads_its_rows_until_its_role_is_revoked": "nine commands run",
    "tests/marlaas/stack/test_control.py::test_service_that_dies_three_times_is_faulty_and_its_next_process_reports_that":
        "a service starts four times",
    "tests/marlaas/stack/test_control.py::test_stack_survives_a_full_disk_and_resumes_when_there_is_room":
        "starts fail for some seconds, with growing pauses",
    "tests/serving/test_streams.py::test_stream_waits_for_its_only_replica_which_restarts":
        "it waits for as long as a stream would have lived otherwise",
    "tests/e2e/test_unavailable_servers.py::test_scheduler_waits_for_nats_and_postgres_and_continues_when_they_return":
        "each server is absent, there, and gone, and the service tries at growing distances",
    "tests/e2e/test_unavailable_servers.py::test_service_waits_for_nats_and_continues_when_it_returns":
        "the server is absent, there, and gone, and the service tries at growing distances",
    "tests/e2e/test_whole_loop.py::test_three_tenants_train_side_by_side_through_a_crash_of_everything":
        "the whole stack, with its engine, starts twice and trains three tasks",
    "tests/gateway/test_process.py::test_nats_away_and_back": "NATS is stopped for as long as clients wait for it",
    "tests/gateway/openai/test_roles.py::test_each_role_may_what_it_may": "every route of OpenAI's, with a key of each role",
    "tests/gateway/openai/test_strict_types.py::test_every_answer_is_what_the_clients_types_say": "every method of the client, one by one",
    "tests/gateway/test_fuzz.py::test_answers_are_what_the_document_says": "schemathesis makes hundreds of requests",
    "tests/gateway/test_page.py::test_lines_do_what_they_say": "twenty processes of curl, one by one",
    "tests/gateway/test_requests.py::test_each_role_may_what_it_may": "every route, with a key of each role",
    "tests/scheduler/ask/test_histories.py::test_each_tenant_sees_its_own_and_no_byte_of_the_other":
        "random histories of tasks, with every question to them",
    "tests/serving/test_streams.py::test_stream_survives_its_replica": "a replica counts as dead after seconds of silence",
    "tests/serving/test_streams.py::test_stream_whose_replicas_are_all_dead_ends_with_an_error":
        "replicas count as dead after seconds of silence",
    "tests/marlaas/test_tls.py::test_authority_is_named_by_an_argument_a_variable_or_an_option":
        "a command waits ten seconds for a scheduler",
    "tests/marlaas/test_cli.py::test_unreachable_nats_is_named": "the command tries for ten seconds",
    "tests/marlaas/over_http/test_parity.py::test_both_doors_answer_alike": "each of 80 calls, by both doors",
    "tests/marlaas/door/test_permissions.py::test_command_line_and_the_bare_client": "each of a dozen commands is a process",
    "tests/marlaas/stack/test_database_access.py::test_deleted_tenant_loses_its_role": "a scheduler starts, and six commands run",
    "tests/marlaas/stack/test_gateways.py::test_stack_with_keys_lets_in_holders_of_keys_and_keeps_its_address":
        "a stack with a scheduler and a gateway starts three times",
    "tests/marlaas/stack/test_gateways.py::test_stack_without_keys_lets_in_everybody_on_this_machine":
        "a stack with a scheduler and a gateway starts",
    "tests/marlaas/stack/test_gateways.py::test_stack_without_keys_does_not_start_a_gateway_for_others":
        "a stack with a scheduler and a gateway starts, the latter twice",
    "tests/marlaas/tenancy/": "servers of their own, and each command is a process that loads the command line",
    "tests/scheduler/doctor/test_doctor.py::test_process_prints_violations_and_exits_with_a_status":
        "four processes, of which two look twice, three seconds apart",
    "tests/scheduler/handlers/test_erasure.py::test_deleted_task_leaves_no_content_in_tables_files_and_logs":
        "three tasks run, and NATS rewrites its files",
    "tests/scheduler/test_tenant_deletion.py::test_deletion_that_is_killed_at_each_point_ends_as_if_undisturbed":
        "a scheduler process is started and killed seven times",
    "tests/trainer/test_process.py::test_crash_amid_a_shared_step_costs_no_task_a_version_and_gives_none_two":
        "two processes load torch, one after the other",
    "tests/trainer/test_process.py::test_killed_process_restores_a_checkpoint_of_megabytes_with_the_key_of_a_trainer":
        "two processes load torch, one after the other",
    "tests/trainer/test_process.py::test_only_what_computes_is_on_the_cores_of_a_shared_accelerator": "a process loads torch",
    "tests/trainer/test_process.py::test_process_becomes_ready_takes_a_step_and_ends_cleanly": "a process loads torch",
    "tests/trainer/test_replay.py::test_steps_replayed_in_another_process_have_the_recorded_digests": "three processes load torch",
}  # fmt: skip
"""`path::function`, or a folder → why it takes so long."""
COMPUTED = "computed_s"
"""Name of the property of a report that holds the processor time, of the process and of its children that ended."""


@dataclass(frozen=True)
class Long:
    """A test that took longer than it may without a reason."""

    test: str
    took_s: float
    computed_s: float

    def __str__(self) -> str:
        return f"{self.took_s:6.1f} s, of them {self.computed_s:.1f} s computing: {self.test}"


def unlisted(reports: Iterable[pytest.TestReport]) -> list[Long]:
    """The longest first."""
    found = [
        Long(report.nodeid, report.duration, float(str(dict(report.user_properties).get(COMPUTED, 0))))
        for report in reports
        if report.when == "call" and report.duration > LONG_S and not _is_listed(report.nodeid) and not MAY_BE_LONG & set(report.keywords)
    ]
    return sorted(found, key=lambda one: -one.took_s)


def _is_listed(nodeid: str) -> bool:
    folders = (listed for listed in REASONS if listed.endswith("/"))
    return nodeid.startswith(tuple(folders)) or nodeid.partition("[")[0] in REASONS


def _computed_s() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _children_s() -> dict[int, float]:
    """Processor seconds of each child process that runs, an engine's for instance; those that have ended are waited for."""
    found: dict[int, float] = {}
    for child in multiprocessing.active_children():
        with suppress(psutil.Error):  # it ended meanwhile
            used = psutil.Process(child.pid).cpu_times()
            found[child.pid or 0] = used.user + used.system
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    earlier, before = _children_s(), _computed_s()
    try:
        return (yield)
    finally:
        running = _children_s()
        of_earlier_tests = sum(seconds for pid, seconds in earlier.items() if pid not in running)  # counted once a child has ended
        item.user_properties.append((COMPUTED, max(0.0, round(_computed_s() - before - of_earlier_tests, 2))))


class Reporting:
    """Collects the reports of a run, of all its processes."""

    def __init__(self) -> None:
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.duration > LONG_S:
            self._reports.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(one.computed_s > COMPUTES_S for one in unlisted(self._reports)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if found := unlisted(self._reports):
            terminalreporter.section(f"longer than {LONG_S:g} s, without a reason in tests/long_tests.py")
            for one in found:
                terminalreporter.write_line(f"{one}{'  FAILS THE RUN' if one.computed_s > COMPUTES_S else ''}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reporting())

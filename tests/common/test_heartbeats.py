"""Renewal of leases, on a clock of the test's own."""

import itertools

from nats.aio.client import Client

from common import streams
from common.bus import HEARTBEATS_PER_LEASE
from common.heartbeats import STALLED_S, Heartbeats


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def no_connection() -> Client:
    raise OSError


def test_heartbeat_is_due_once_an_interval_until_the_message_is_released() -> None:
    time = Time()
    beats = Heartbeats(no_connection, time)
    beats.hold("a", 1.0)
    assert beats.due() == []
    time.now_s = 1.0
    beats.hold("b", 2.0)
    assert (beats.due(), beats.due()) == (["a"], [])
    time.now_s = 3.0
    assert beats.due() == ["a", "b"]
    beats.release("a")
    time.now_s = 5.0
    assert beats.due() == ["b"]


def test_process_whose_event_loop_stands_still_gives_its_messages_up_until_it_turns() -> None:
    time = Time()
    beats = Heartbeats(no_connection, time)
    beats.hold("a", 1.0)
    time.now_s = STALLED_S
    assert beats.due() == ["a"]
    time.now_s = STALLED_S + 2
    assert beats.due() == []
    beats.turned()
    assert beats.due() == ["a"]


def test_step_of_ten_minutes_keeps_its_lease_though_three_heartbeats_in_a_row_are_lost_and_the_event_loop_stalls() -> None:
    lease_s = streams.trainer_batches("small").ack_wait_s
    every_s = lease_s / HEARTBEATS_PER_LEASE
    time = Time()
    beats = Heartbeats(no_connection, time)
    beats.hold("step", every_s)
    sent, arrived = 0, [0.0]
    while time.now_s < 600:
        time.now_s += every_s / 2  # the thread looks twice an interval
        if time.now_s % STALLED_S < every_s:
            beats.turned()
        if beats.due():
            sent += 1
            if sent % 4 == 0:
                arrived.append(time.now_s)
    assert len(arrived) > 100
    assert max(after - before for before, after in itertools.pairwise(arrived)) < lease_s

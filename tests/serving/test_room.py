"""What one process has room for, and one tenant of it."""

import pytest

from gateway_svc.serving.stream_quota import StreamQuota, TooManyStreams


def test_tenant_has_half_of_the_requests_at_once() -> None:
    room = StreamQuota(max_streams=4)
    held = [room.enter("acme", 1) for _ in range(2)]
    with pytest.raises(TooManyStreams):
        room.enter("acme", 1)
    room.enter("globex", 1)
    held[0].leave()
    room.enter("acme", 1)
    room.enter("globex", 1)
    with pytest.raises(TooManyStreams):
        room.enter("initech", 1)


def test_bytes_count_while_the_request_waits_for_a_replica() -> None:
    room = StreamQuota(max_waiting_bytes=100)
    first = room.enter("acme", 40)
    with pytest.raises(TooManyStreams):
        room.enter("acme", 20)
    first.note(waits=False)
    first.note(waits=False)
    second = room.enter("acme", 50)
    first.note(waits=True)  # another attempt
    with pytest.raises(TooManyStreams):
        room.enter("globex", 20)
    first.leave()
    second.leave()
    room.enter("acme", 50)
    room.enter("globex", 50)

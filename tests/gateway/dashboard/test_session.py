"""Sessions: sealed keys."""

import pytest

from gateway_svc.web.session import LASTS_S, Sessions

SECRET = "a" * 32
KEY = "mk-" + "k" * 43


def test_session_is_taken_by_every_replica_with_the_secret_until_it_ends() -> None:
    cookie = Sessions(SECRET).seal(KEY, 1000.0)

    assert Sessions(SECRET).open(cookie, 1000.0 + LASTS_S - 1) == KEY
    assert Sessions(SECRET).open(cookie, 1000.0 + LASTS_S) is None
    assert Sessions("b" * 32).open(cookie, 1000.0) is None
    assert Sessions(None).open(cookie, 1000.0) is None


def test_cookie_shows_nothing_of_its_key_and_differs_each_time() -> None:
    sessions = Sessions(SECRET)
    first, second = sessions.seal(KEY, 1.0), sessions.seal(KEY, 1.0)

    assert first != second
    assert KEY not in first
    assert len(first) < 200


@pytest.mark.parametrize("cookie", ["", "x", "é", "A" * 2000, "AAAA", "=" * 8, "\0", "A" * 100])
def test_garbage_opens_nothing(cookie: str) -> None:
    assert Sessions(SECRET).open(cookie, 0.0) is None


def test_changed_cookie_opens_nothing() -> None:
    sessions = Sessions(SECRET)
    cookie = sessions.seal(KEY, 1.0)
    changed = [cookie[:place] + ("A" if cookie[place] != "A" else "B") + cookie[place + 1 :] for place in range(len(cookie) - 1)]

    assert not [one for one in changed if sessions.open(one, 2.0) is not None]


def test_csrf_token_is_of_one_session() -> None:
    sessions = Sessions(SECRET)

    assert sessions.is_token_of("one", sessions.csrf_token("one"))
    assert not sessions.is_token_of("one", sessions.csrf_token("two"))
    assert not sessions.is_token_of("one", "")
    assert not sessions.is_token_of("one", "é")
    assert not Sessions(None).is_token_of("one", sessions.csrf_token("one"))

"""Credentials that expire, in threads and on event loops."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio.to_thread
import pytest

from chatclient import Runtime
from chatclient.providers import ExpiringCredentials
from chatclient.providers.http import auth as module
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP


class Clock:
    """A clock that a test sets, in place of `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Issuer:
    """Issues tokens that are valid for *lifetime* seconds; None for ever."""

    def __init__(self, clock: Clock, lifetime: float | None) -> None:
        self._clock = clock
        self.lifetime = lifetime
        self.issued = self.calls = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()

    def __call__(self) -> tuple[str, float | None]:
        self.asked.set()
        self.calls += 1
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        self.issued += 1
        expires = None if self.lifetime is None else self._clock.now + self.lifetime
        return f"token {self.issued}", expires


def get(credentials: ExpiringCredentials[str], runtime: Runtime = BLOCKING) -> str:
    if runtime.blocking:
        return drive(credentials.current(runtime))
    return asyncio.run(credentials.current(runtime))


@pytest.mark.parametrize("runtime", [BLOCKING, ON_LOOP], ids=["blocking", "on a loop"])
def test_renewal_before_expiry(runtime: Runtime, clock: Clock) -> None:
    """Credentials are kept until three minutes before they expire."""
    credentials = ExpiringCredentials(Issuer(clock, 3600))

    found = []
    for now in (1000, 4400, 4430, 7800):
        clock.now = now
        found.append(get(credentials, runtime))

    assert found == ["token 1", "token 1", "token 2", "token 2"]
    assert "token" not in repr(credentials)


def test_other_lifetimes(clock: Clock) -> None:
    """Short-lived credentials are kept for half their life; others never expire."""
    issuer = Issuer(clock, 60)
    credentials = ExpiringCredentials(issuer)
    assert get(credentials) == "token 1"
    clock.now += 29
    assert get(credentials) == "token 1"
    clock.now += 2
    issuer.lifetime = None
    assert get(credentials) == "token 2"
    clock.now += 1e9
    assert get(credentials) == "token 2"


@pytest.mark.parametrize("blocking", [True, False])
def test_one_renewal_for_concurrent_requests(clock: Clock, *, blocking: bool) -> None:
    """Concurrent requests wait for one renewal, in threads and on a loop."""
    issuer = Issuer(clock, 3600)
    credentials = ExpiringCredentials(issuer)
    issuer.may_answer.clear()
    threading.Timer(0.05, issuer.may_answer.set).start()

    async def get_all() -> list[str]:
        return await asyncio.gather(*[credentials.current(ON_LOOP) for _ in range(8)])

    if blocking:
        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(get, [credentials] * 8))
    else:
        found = asyncio.run(get_all())

    assert found == ["token 1"] * 8
    assert issuer.issued == 1


def test_one_failure_for_concurrent_requests(clock: Clock) -> None:
    """Requests that wait for a renewal share its error, and the next one tries again."""
    issuer = Issuer(clock, 3600)
    credentials = ExpiringCredentials(issuer)
    issuer.error = ValueError("no")
    issuer.may_answer.clear()

    async def answer_when_all_wait() -> None:
        threads = anyio.to_thread.current_default_thread_limiter()
        while threads.borrowed_tokens < 8:  # noqa: ASYNC110 - the limiter has no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        issuer.may_answer.set()

    async def get_all() -> list[str | BaseException]:
        answering = asyncio.create_task(answer_when_all_wait())
        jobs = [credentials.current(ON_LOOP) for _ in range(8)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        await answering
        return found

    assert asyncio.run(get_all()) == [issuer.error] * 8
    assert issuer.calls == 1
    issuer.error = None
    assert get(credentials) == "token 1"


def test_valid_credentials_during_renewal(clock: Clock) -> None:
    """While one request renews credentials that are still valid, others use them."""
    issuer = Issuer(clock, 3600)
    credentials = ExpiringCredentials(issuer)
    get(credentials)
    clock.now += 3500
    issuer.asked.clear()
    issuer.may_answer.clear()
    with ThreadPoolExecutor(1) as threads:
        renewal = threads.submit(get, credentials)
        assert issuer.asked.wait(10)
        during = get(credentials)
        issuer.may_answer.set()

        assert (during, renewal.result(), get(credentials)) == ("token 1", "token 2", "token 2")


def test_failed_renewal(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged while credentials are valid, tried again soon, and raised after that."""
    issuer = Issuer(clock, 3600)
    credentials = ExpiringCredentials(issuer)
    issuer.error = ValueError("a secret")
    with pytest.raises(ValueError, match="a secret"):
        get(credentials)
    issuer.error = None
    assert get(credentials) == "token 1"

    issuer.error = ValueError("a secret")
    clock.now += 3500
    with caplog.at_level(logging.WARNING):
        assert [get(credentials), get(credentials)] == ["token 1", "token 1"]
    assert [record.message for record in caplog.records] == [
        "credentials could not be renewed error='ValueError'"
    ]
    clock.now += 101
    with pytest.raises(ValueError, match="a secret"):
        get(credentials)
    issuer.error = None
    assert get(credentials) == "token 2"

"""For every test: Hypothesis looks for wrong answers, never for slow ones: a busy machine makes any example slow.
Brokers in a test's own process run on the event loop that brokers run on."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from headrace.base.garbage import spare_the_collector
from tests import engines
from tests.guard import Guard
from tests.kafka_sockets import close_with_clients
from tests.loops import brokers_loop
from tests.pool import Pool
from tests.spark import interrupted
from tests.tiers import IS_LONG, examples
from tools import warm
from tools.run_tests import POOL
from tools.servers import s3_server

TESTS: Final = Path(__file__).parent
ON_BROKERS_LOOP: Final = ("broker", "coordinators", "net", "storage")
"""Folders whose coroutines run on it; the others' on asyncio's own."""

settings.register_profile(
    "headrace",
    deadline=None,
    max_examples=examples(100),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("headrace")

# A shell without job control starts what runs in the background with these ignored, and a child would inherit that.
for _interrupt in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_interrupt) is signal.SIG_IGN:
        signal.signal(_interrupt, signal.default_int_handler if _interrupt is signal.SIGINT else signal.SIG_DFL)


if not IS_LONG:
    os.environ[warm.IS_ON] = "1"
# A developer's own contexts name clusters that no test may ask. Go keeps its counts of use there, too.
os.environ["XDG_CONFIG_HOME"] = str(TESTS.parent / "var" / "no settings")


def pytest_configure(config: pytest.Config) -> None:
    engines.check_names(TESTS)
    config.pluginmanager.register(Guard(), "headrace guard")
    if pool := os.environ.pop(POOL, None):  # runs of pytest that a test starts have none
        place, kinds = pool.split(":")
        config.pluginmanager.register(Pool(Path(place), kinds.split(",")), "headrace pool")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    engines.skip_what_cannot_be(items, TESTS)
    engines.check_fixtures(items, TESTS)
    _look_through_nothing_old()
    if IS_LONG:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def _look_through_nothing_old() -> None:
    """Look no more through all that was imported: that took a sixth of the tests' processor time. Brokers do the same
    (`headrace.broker.system.tune_interpreter`)."""
    gc.collect()
    gc.freeze()
    spare_the_collector()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a file that is listed in tests/engines.py on both engines."""
    name = str(Path(metafunc.module.__file__ or "").relative_to(TESTS))
    if (both := engines.of(name)) is not None:
        metafunc.parametrize("engine", both, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The engine on which brokers are started: its name. Files that are not listed have the local one."""
    name: str = getattr(request, "param", "local")
    with engines.started(name):
        yield name


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    as_brokers = item.path.relative_to(TESTS).parts[0] in ON_BROKERS_LOOP
    return {"loop": brokers_loop() if as_brokers else asyncio.new_event_loop}


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    """An S3-compatible server for all tests of a run, each of which takes a prefix."""
    if (reason := s3_server.missing()) is not None:
        pytest.skip(f"there is no S3-compatible server: {reason}")
    with s3_server.S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def own_s3(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.S3Server]:
    """One that a test may kill, with the environment in which it is reached."""
    if (reason := s3_server.missing()) is not None:
        pytest.skip(f"there is no S3-compatible server: {reason}")
    with s3_server.S3Server(tmp_path_factory.mktemp("s3")) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def s3_url(s3: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Of a store of its own, with the environment in which it is reached."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.url(f"test{abs(hash(request.node.nodeid))}")


def pytest_runtest_setup() -> None:
    close_with_clients()


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo is not None:
        interrupted.begin_anew(call.excinfo.value)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark session for all tests that need one."""
    from headrace.spark.session import SHORT_JOB, spark_session

    session = spark_session("headrace tests", master="local[2]", settings=SHORT_JOB)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()

"""A broker in the shape of testcontainers' `KafkaContainer`, without Docker: it runs in this process, in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from headrace.base.errors import UsageError
from headrace.testing.running import RunningBroker
from headrace.testing.thread import BrokerThread


class HeadraceContainer:
    """`with HeadraceContainer() as kafka: kafka.get_bootstrap_server()`. Names and behaviour are testcontainers'."""

    def __init__(self, *, configs: Mapping[str, str] | None = None, secure: bool = False) -> None:
        """`configs`, `secure`: as in `headrace.testing.broker`."""
        self._configs = dict(configs or {})
        self._secure = secure
        self._thread: BrokerThread | None = None
        self._running: RunningBroker | None = None

    def with_env(self, name: str, value: str) -> Self:
        """Set a broker config by its name in Kafka's image: `KAFKA_AUTO_CREATE_TOPICS_ENABLE`. Other variables do
        nothing."""
        if name.startswith("KAFKA_"):
            self._configs[name.removeprefix("KAFKA_").lower().replace("_", ".")] = value
        return self

    def with_kraft(self) -> Self:
        """Nothing changes: there never is a ZooKeeper."""
        return self

    def start(self) -> Self:
        """Start the broker, and wait until it serves. Raises HeadraceError where it cannot start."""
        self._thread = BrokerThread(configs=self._configs, secure=self._secure)
        self._running = self._thread.start()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the broker. Its data are gone. Idempotent."""
        if self._thread is not None:
            self._thread.stop()

    @property
    def broker(self) -> RunningBroker:
        """The broker itself, with its faults. Raises UsageError before the start."""
        if self._running is None:
            raise UsageError("The container was not started: use it in a `with` block, or call start().")
        return self._running

    def get_bootstrap_server(self) -> str:
        """`HOST:PORT`, as clients take it."""
        return self.broker.bootstrap

    def get_container_host_ip(self) -> str:
        return self.broker.host

    def get_exposed_port(self, port: int) -> int:
        """The port of the broker, whichever port of the container is asked for."""
        return self.broker.port

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

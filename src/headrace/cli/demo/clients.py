"""The demo's two third-party clients: confluent-kafka (librdkafka) writes the flights, aiokafka reads them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.cli.demo.flights import Flight
from headrace.cli.demo.ledger import Ledger
from headrace.cli.demo.screen import Meter

DELIVERY_SECONDS_MAX = 60.0
READ_SECONDS_MAX = 60.0
POLL_EVERY_RECORDS = 1_000


def write_flights(bootstrap: str, topic: str, rows: Iterable[Flight], meter: Meter) -> Ledger:
    """Produce all rows, idempotent and acks=all. Returns the ledger of the acknowledged records. Raises
    HeadraceError.
    """
    from confluent_kafka import Producer

    ledger, errors = Ledger(), []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            errors.append(str(error))
        else:
            _, timestamp_ms = message.timestamp()
            ledger.add(message.partition(), message.offset(), message.key(), message.value(), timestamp_ms)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 10,
            "batch.size": 512 * 1024,
            "message.timeout.ms": int(DELIVERY_SECONDS_MAX * 1000),
            "log.connection.close": False,
        }
    )
    for number, flight in enumerate(rows):
        _send(producer, topic, flight, on_delivery)
        if number % POLL_EVERY_RECORDS == 0:
            producer.poll(0)
            meter.update(ledger.records)
            if errors:
                break
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    while producer.flush(0.1) and time.monotonic() < deadline:
        meter.update(ledger.records)
    meter.update(ledger.records)
    if errors:
        raise HeadraceError(f"The broker refused {len(errors)} flights, the first with: {errors[0]}.")
    return ledger


def _send(producer: Any, topic: str, flight: Flight, on_delivery: Any) -> None:
    """Queue one flight. Where the queue is full, wait for deliveries."""
    while True:
        try:
            producer.produce(topic, flight.value, flight.key, timestamp=flight.timestamp_ms, on_delivery=on_delivery)
            return
        except BufferError:
            producer.poll(0.1)


def read_flights(bootstrap: str, topic: str, partitions: int, meter: Meter) -> Ledger:
    """Read the whole topic. Returns the ledger of its records. Raises HeadraceError."""
    return asyncio.run(_read(bootstrap, topic, partitions, meter))


async def _read(bootstrap: str, topic: str, partitions: int, meter: Meter) -> Ledger:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 * 1024 * 1024,
    )
    try:
        await consumer.start()
        places = [TopicPartition(topic, index) for index in range(partitions)]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        await consumer.seek_to_beginning(*places)
        return await _drain(consumer, sum(ends.values()), meter)
    except KafkaError as error:
        raise HeadraceError(f"Reading the flights back failed: {error}.") from error
    finally:
        await consumer.stop()


async def _drain(consumer: Any, total: int, meter: Meter) -> Ledger:
    """Read `total` records and, to find any repeat, further records that are there at once."""
    ledger = Ledger()
    deadline = time.monotonic() + READ_SECONDS_MAX
    while ledger.records < total and time.monotonic() < deadline:
        for place, records in (await consumer.getmany(timeout_ms=200)).items():
            for record in records:
                ledger.add(place.partition, record.offset, record.key, record.value, record.timestamp)
        meter.update(ledger.records)
    for place, records in (await consumer.getmany(timeout_ms=0)).items():
        for record in records:
            ledger.add(place.partition, record.offset, record.key, record.value, record.timestamp)
    return ledger

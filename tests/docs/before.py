"""Things that a page takes for granted before one of its blocks: a broker, topics with records, a file."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import confluent_kafka
import psutil

from tests.certificates import Authority
from tests.docs.machine import Machine
from tests.docs.pages import TOML, blocks_of
from tools.servers import s3_server
from tools.servers.redis_servers import RedisServer, valkey

Key = tuple[str, str]
"""A page, and the first line of one of its blocks."""
LOOK_EVERY_S: Final = 0.05
END_S: Final = 150.0
SHOP: Final = "def clean(frame):\n    return frame\n"
BROKER: Final = "headrace up --data /var/tmp/headrace"
SEGMENT: Final = "--config segment.bytes=1024 --config retention.ms=-1"


def send(machine: Machine, topic: str, values: Sequence[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": machine.bootstrap, "batch.num.messages": 10})
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"%d" % (number % 7))
    assert producer.flush(60) == 0


def commit(machine: Machine, topic: str, group: str) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": machine.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert consumer.poll(60) is not None
    consumer.commit(asynchronous=False)
    consumer.close()


def orders(count: int) -> list[bytes]:
    return [b'{"id": %d, "city": "Ulm", "amount": 2.5}' % number for number in range(count)]


def until_durable(machine: Machine, topic: str) -> None:
    """Wait until some of the topic is durable. The test's own timeout ends a wait in vain."""
    pause = threading.Event()
    listed = f"headrace durable list --json 2>/dev/null | grep {topic} || true"
    while '"segments": 0' in (told := machine.typed(listed)) or not told:
        pause.wait(LOOK_EVERY_S)


def a_broker(machine: Machine) -> None:
    machine.typed(BROKER)


def a_full_segment(machine: Machine) -> None:
    machine.typed("headrace topic alter orders --config segment.bytes=1024")
    send(machine, "orders", orders(100))
    until_durable(machine, "orders")


def _end_brokers(machine: Machine) -> None:
    """Those of `headrace up --nodes` end by themselves, soon after the command that started them."""
    end = "kill -9 $pid || true; tail -s 0.05 --pid=$pid -f /dev/null"
    brokers = machine.place / "brokers"
    machine.typed(f"for pid in $(cat {brokers}/*.pid 2>/dev/null); do {end}; done; rm -f {brokers}/*")
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            words = process.cmdline()
            if "--data" in words and any(word.startswith(f"{machine.place}/") for word in words):
                process.wait(END_S)


def history(machine: Machine) -> None:
    """A broker with topics that are durable but for their newest records, and what pipelines import; made once."""
    if (machine.home / "shop").exists():
        return
    _end_brokers(machine)  # the page may have had other clusters before
    machine.typed("rm -rf /var/tmp/headrace*")
    machine.typed(f"{BROKER} --durable file:///srv/store")
    for topic in ("orders", "flights"):
        machine.typed(f"headrace topic create {topic} {SEGMENT}")
        send(machine, topic, orders(100))
    machine.typed("headrace topic create orders-clean; headrace topic create totals")
    for topic in ("orders", "flights"):
        until_durable(machine, topic)
    (machine.home / "shop").mkdir()
    (machine.home / "shop" / "tables.py").write_text(SHOP)
    table = next(each for each in blocks_of("docs/PIPELINES.md") if each.language == TOML)
    (machine.home / "orders.toml").write_text(machine.translated(table.text))


def a_redis(machine: Machine) -> None:
    server = RedisServer(valkey(), machine.place / "redis", ["--appendonly", "yes"], tcp=True)
    server.directory.mkdir()
    machine.until_the_end.callback(server.kill)
    server.start()
    machine.names["redis://127.0.0.1:6379/0"] = f"redis://localhost:{server.port}/0"


def broker_3_dies(machine: Machine) -> None:
    machine.kill_broker(3)


def broker_2_dies(machine: Machine) -> None:
    machine.kill_broker(2)


def a_lost_quorum(machine: Machine) -> None:
    """Of three voters two are gone with their disks; one is left, and a learner."""
    data = "/var/tmp/headrace"
    _end_brokers(machine)
    machine.typed(f"rm -rf {data}-*; headrace up --data {data}-1 --listen 127.0.0.1:9092")
    for number, port in ((2, 9093), (3, 9094)):
        machine.typed(
            f"headrace broker --id {number} --data {data}-{number} --listen 127.0.0.1:{port} --join 127.0.0.1:9092"
        )
    pause = threading.Event()
    while '"bears": 1,' not in machine.typed("headrace quorum --json"):
        pause.wait(LOOK_EVERY_S)
    machine.typed(f"headrace broker --id 4 --data {data}-4 --listen 127.0.0.1:9096 --join 127.0.0.1:9092")
    _end_brokers(machine)
    machine.typed(f"rm -r {data}-2 {data}-3")


def a_group(machine: Machine) -> None:
    machine.typed("headrace topic create orders --partitions 2")
    send(machine, "orders", orders(20))
    commit(machine, "orders", "billing")


def an_object_store(machine: Machine) -> None:
    """One that speaks S3, where the machine has a program for that; else a directory."""
    if s3_server.missing() is not None:
        machine.names["s3://history/production"] = machine.store
        return
    (machine.place / "s3").mkdir()
    server = s3_server.S3Server(machine.place / "s3")
    machine.until_the_end.callback(server.kill)
    server.start()
    keys = server.environment
    given = f"AWS_ACCESS_KEY_ID={keys['AWS_ACCESS_KEY_ID']} AWS_SECRET_ACCESS_KEY={keys['AWS_SECRET_ACCESS_KEY']}"
    machine.names["AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=..."] = given
    machine.names["eu-central-1"] = keys["AWS_REGION"]
    machine.names["http://127.0.0.1:7070"] = f"http://localhost:{server.port}"
    machine.environment |= keys


def durable_orders(machine: Machine) -> None:
    machine.typed(f"headrace topic create orders {SEGMENT}")
    send(machine, "orders", orders(100))
    until_durable(machine, "orders")


def many_payments(machine: Machine) -> None:
    """More than a block reads of the first partition, with what it looks for."""
    producer = confluent_kafka.Producer({"bootstrap.servers": machine.bootstrap})
    for number in range(150):
        producer.produce("payments", b"refund %d" % number, partition=0)
    assert producer.flush(60) == 0


def kafka_tools(machine: Machine) -> None:
    machine.with_kafka_tools()


def a_broker_and_kafka_tools(machine: Machine) -> None:
    a_broker(machine)
    kafka_tools(machine)


def alice(machine: Machine) -> None:
    (machine.home / "alice.password").write_text("wonderland")


def a_certificate_for_the_console(machine: Machine) -> None:
    pair = Authority.made(machine.place / "authority").issue("console.example.org")
    for name in ("console.pem", "console.key"):
        shutil.copy(pair, machine.home / name)
    (machine.home / "client.properties").write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")


def schemas_of_the_console(machine: Machine) -> None:
    (machine.home / "schemas").mkdir()
    (machine.home / "schemas" / "orders.avsc").write_text('"string"')


def a_secret_of_the_console(machine: Machine) -> None:
    (machine.home / "console.secret").write_text("known to the provider")
    (machine.home / "client.properties").write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n")


def the_broker_stops(machine: Machine) -> None:
    machine.typed(
        "kill $(cat %s/brokers/*.pid); tail --pid=$(cat %s/brokers/*.pid) -f /dev/null" % ((machine.place,) * 2)
    )


BEFORE: Final[Mapping[Key, Callable[[Machine], None]]] = {
    ("docs/CONFIG.md", "kafka-configs.sh"): a_broker_and_kafka_tools,
    ("docs/CONSOLE.md", "headrace console --login"): a_certificate_for_the_console,
    ("docs/CONSOLE.md", "headrace console --oidc-issuer"): a_secret_of_the_console,
    ("docs/CONSOLE.md", "headrace console --schema-registry"): schemas_of_the_console,
    ("docs/PIPELINES.md", "from headrace.spark"): history,
    ("docs/PIPELINES.md", 'pipeline = "materialise"'): history,
    ("docs/REDIS.md", "headrace up --engine redis --redis"): a_redis,
    ("docs/SECURITY.md", "export HEADRACE_COMMAND_CONFIG"): alice,
    ("docs/SPARK.md", "from headrace.spark.session import spark_session"): history,
    ("docs/USING.md", "headrace broker --id 2"): broker_2_dies,
    ("docs/USING.md", "headrace broker remove 3"): broker_3_dies,
    ("docs/USING.md", "headrace consume payments --tail"): many_payments,
    ("docs/USING.md", "kafka-configs.sh"): kafka_tools,
    ("docs/USING.md", "headrace quorum recover"): a_lost_quorum,
    ("docs/USING.md", "headrace group list"): a_group,
    ("docs/USING.md", "export AWS_ACCESS_KEY_ID"): an_object_store,
    ("docs/USING.md", "headrace durable list"): durable_orders,
    ("docs/USING.md", "spark.read.format"): history,
    ("docs/first/backup.md", "cp -a /var/lib/headrace"): the_broker_stops,
    ("docs/first/backup.md", "cp -a /srv/store"): a_full_segment,
    ("docs/api/client.md", "headrace topic create orders"): a_broker,
}
"""Done before the block of that page that begins so."""

ENDS: Final[Mapping[Key, Sequence[int]]] = {
    ("docs/USING.md", "headrace quorum recover"): (1, 0),
    (
        "docs/USING.md",
        "headrace broker --id 4 --data /var/tmp/headrace-4 --listen 127.0.0.1:9096 --join 127.0.0.1:9092   #",
    ): (
        1,
        0,
        0,
    ),
}
"""The exit codes of a block's lines, where one of them says no on purpose."""

SESSION: Final = """\
from headrace.spark.session import spark_session

spark = spark_session()
"""
ORDERS: Final = f"""{SESSION}
orders = spark.createDataFrame([(7, "Ulm")], "order_id bigint, city string")
rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
"""
AS_PIPELINES: Final = f"{SESSION}URL = 'file:///srv/store'\n"
PREAMBLES: Final[Mapping[Key, str]] = {
    ("docs/PIPELINES.md", "from headrace.spark"): SESSION,
    ("docs/SPARK.md", "spark.conf.set"): AS_PIPELINES,
    ("docs/SPARK.md", "from headrace.spark.session import make_way"): SESSION,
    ("docs/SPARK.md", "orders.selectExpr"): ORDERS,
    ("docs/USING.md", "spark.read.format"): SESSION,
}
"""Lines before a program's own, where the page speaks of a session or of rows of its reader's."""

"""Spark reads from and writes to brokers that want TLS and a login. Nothing shows the password."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.base.errors import UsageError
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.spark.options import parse_options
from headrace.spark.pipelines.spec import parse
from headrace.spark.write.sink import parse_write_options
from headrace.testing import BrokerThread
from tests.certificates import Authority
from tests.sasl_broker import PLAIN_MODULE

PASSWORD = "wonder;land"
USERS = f'{PLAIN_MODULE} required user_alice="{PASSWORD}";'

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def options(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """As a user gives them."""
    configs = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("127.0.0.1", common_name="broker")),
    }
    with BrokerThread(configs=configs, data=tmp_path_factory.mktemp("broker")) as broker:
        made = {
            "bootstrap": broker.bootstrap,
            "topic": "orders",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": f'{PLAIN_MODULE} required username="alice" password="{PASSWORD}";',
            "kafka.ssl.truststore.location": str(authority.trust),
            "kafka.ssl.truststore.type": "PEM",
        }
        asyncio.run(create_topic(made))
        yield made


async def create_topic(options: Mapping[str, str]) -> None:
    security = ClientSecurity.from_properties(options, prefix="kafka.")
    async with Cluster(options["bootstrap"], security=security) as cluster:
        await Admin(cluster).create_topic(options["topic"], partitions=2)


@pytest.fixture(autouse=True)
def active(spark: Any) -> None:
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)


def test_rows_go_there_and_back_by_several_tasks(
    options: dict[str, str], spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = spark.range(0, 100, 1, 3).selectExpr("cast(id as string) as value")
    frame.write.format("headrace").options(**options).mode("append").save()
    read = spark.read.format("headrace").options(**options).load()
    assert sorted(int(row.value) for row in read.select("value").collect()) == list(range(100))
    read.explain(True)
    out, err = capfd.readouterr()
    assert "headrace" in out
    for shown in (out, err, repr(read), read._jdf.queryExecution().toString()):
        assert PASSWORD not in shown


def test_a_stream_reads_there_and_its_checkpoint_has_no_password(
    options: dict[str, str], spark: Any, tmp_path: Path
) -> None:
    stream = spark.readStream.format("headrace").options(**options, startingOffsets="earliest").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    running = query.start()
    running.awaitTermination()
    assert PASSWORD not in json.dumps([str(one) for one in running.recentProgress])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_a_wrong_password_fails_the_query_with_a_sentence(options: dict[str, str], spark: Any) -> None:
    wrong = {**options, "kafka.sasl.jaas.config": options["kafka.sasl.jaas.config"].replace(PASSWORD, "s3cret")}
    with pytest.raises(PySparkException, match="does not let user 'alice' in") as refused:
        spark.read.format("headrace").options(**wrong).load().collect()
    assert "s3cret" not in str(refused.value)


def test_options_of_security_are_those_of_reads_and_writes(options: dict[str, str]) -> None:
    known = ClientSecurity.from_properties(options, prefix="kafka.")
    assert known.protocol == "SASL_SSL"
    of_read, of_write = parse_options(options), parse_write_options(options, streaming=False)
    assert (of_read.security, of_write.security) == (known, known)
    for each in (of_read, of_write):
        assert PASSWORD not in repr(each)
        assert pickle.loads(pickle.dumps(each)) == each
    assert parse_options({"bootstrap": "a:1", "topic": "t"}).security == PLAIN
    for wrong, said in (
        ({"kafka.acks": "1"}, r"There is no option 'kafka\.acks'"),
        ({"kafka.ssl.cipher.suites": "X"}, r"kafka\.ssl\.cipher\.suites is not known here"),
        ({"kafka.security.protocol": "TLS"}, r"kafka\.security\.protocol must be one of"),
    ):
        with pytest.raises(UsageError, match=said):
            parse_options({**options, **wrong})


@pytest.mark.parametrize(
    "kafka",
    [
        {"kafka.security.protocol": "SSL", "kafka.ssl.ca.location": "/ca.pem"},
        {"kafka": {"security": {"protocol": "SSL"}, "ssl": {"ca": {"location": "/ca.pem"}}}},
    ],
    ids=["quoted keys", "dotted keys"],
)
def test_a_pipeline_takes_them_as_keys_of_source_and_target(kafka: Mapping[str, Any]) -> None:
    spec = parse(
        {
            "pipeline": "replay",
            "name": "r",
            "source": {"bootstrap": "a:1", "topic": "t", **kafka},
            "target": {"bootstrap": "b:1", "topic": "u", **kafka},
            "run": {"checkpoint": "/c"},
        }
    )
    assert spec.source.security.protocol == spec.target.security.protocol == "SSL"  # type: ignore[union-attr]
    secret = {**kafka, "kafka.sasl.password": [PASSWORD]}
    with pytest.raises(UsageError, match="must be a text") as refused:
        parse({"pipeline": "audit", "name": "a", "source": {"bootstrap": "a:1", "topic": "t", **secret}})
    assert PASSWORD not in str(refused.value)

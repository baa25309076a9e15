"""The forms of `*.replication.throttled.replicas`, and the replicas that they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.configs import TOPIC_DEFS, topic_config_problem
from headrace.metadata.throttled import throttled_replicas

KEYS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
few = st.integers(0, 12)


@given(st.lists(st.tuples(few, few), max_size=6), few, few)
def test_a_list_means_those_that_it_names(pairs: list[tuple[int, int]], partition: int, broker: int) -> None:
    text = ",".join(f"{index}:{node}" for index, node in pairs)
    assert all(TOPIC_DEFS[key].problem(text) is None for key in KEYS)
    assert throttled_replicas(text).holds(partition, broker) == ((partition, broker) in pairs)


@given(few, few)
def test_a_star_means_all(partition: int, broker: int) -> None:
    assert throttled_replicas(" * ").holds(partition, broker)


@pytest.mark.parametrize("text", ["**", "all", "0", "0:", ":1", "0:1,", "0:1,*", "0:1;1:2", "-1:2", "0:1:2", "a:b"])
def test_what_is_neither_is_refused_by_name(text: str) -> None:
    for key in KEYS:
        problem = topic_config_problem({key: text})
        assert problem is not None
        assert key in problem
        assert "partition:broker" in problem

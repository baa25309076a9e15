"""Tests of the tests' event loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.loops import brokers_loop


def test_a_connection_that_is_left_open_is_told_at_the_loops_end_which_comes() -> None:
    loop = brokers_loop()()
    loop.run_until_complete(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
    with pytest.raises(ResourceWarning, match="unclosed"):
        loop.close()
    assert loop.is_closed()

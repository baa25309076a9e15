"""The private API about durable history, without the broker."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.durable.api import DurableApi
from headrace.broker.requests.rights import EVERYTHING
from headrace.metadata.image import EMPTY_IMAGE
from headrace.wire.durable import MERGE, SWEEP, MergeTotals, decode_answer, encode_request


class Begun(Exception):  # noqa: N818 - no error
    """A work was begun."""


class Begins:
    """Sweeper and merger at once, of which any work is seen."""

    def sweep(self, **_: Any) -> MergeTotals:
        raise Begun

    def merge(self, *_: Any, **__: Any) -> MergeTotals:
        raise Begun


@pytest.mark.parametrize("op", [SWEEP, MERGE])
def test_a_broker_that_still_starts_works_on_nothing_for_its_image_may_be_an_old_one(op: str) -> None:
    begins: Any = Begins()
    api = DurableApi(image=lambda: EMPTY_IMAGE, sweeper=begins, merger=begins, recovering=None, on_bug=lambda _: None)
    asked = {
        "op": op,
        "id": "1",
        "execute": True,
        "topic_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12,
        "partition": None,
    }
    frame = memoryview(encode_request(asked))[4:]
    (answer,) = api.serve(frame, EVERYTHING)
    assert decode_answer(memoryview(answer)[4:]) == {"done": True, "has_store": False}
    api.start()
    with pytest.raises(Begun):
        api.serve(frame, EVERYTHING)

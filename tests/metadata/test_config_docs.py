"""docs/CONFIG.md is what the one table says, and the table says enough."""

from __future__ import annotations

from headrace.metadata.configs import BROKER_DEFS, TOPIC_DEFS
from tools.generate_config_docs import PAGE, page


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert all(f"`{key}`" in page() for key in (*BROKER_DEFS, *TOPIC_DEFS))


def test_every_config_is_documented_and_has_a_default_that_it_may_have() -> None:
    for definition in (*BROKER_DEFS.values(), *TOPIC_DEFS.values()):
        assert definition.doc.endswith("."), definition.key
        assert definition.default is None or definition.problem(definition.default) is None, definition.key

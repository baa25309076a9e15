"""Resources: the pages of the documentation, and what each config means. They need no cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.server.mcpserver.resources import FunctionResource

from headrace.metadata.config_defs import ConfigDef
from headrace.metadata.config_table import EVERY_BROKER_DEF, EVERY_TOPIC_DEF, GROUP_DEFS

PAGES: Final[Mapping[str, str]] = {
    "USING.md": "Using Headrace: every command, by example",
    "SECURITY.md": "Security: listeners, users, rights",
    "METRICS.md": "Metrics: what each figure means",
    "CONSOLE.md": "The web console",
    "MCP.md": "These tools",
    "PIPELINES.md": "Pipelines on Spark",
    "SPARK.md": "Reading and writing with Spark",
    "REDIS.md": "Records in Redis",
    "GLOSSARY.md": "Words",
    "ARCHITECTURE.md": "How it works",
    "SKIPPED.md": "What is missing",
}
"""Pages by their names, and what each is about. The wheel has them in this package, a checkout in `docs`."""
CHECKOUT: Final = Path(__file__).resolve().parents[3] / "docs"
MARKDOWN: Final = "text/markdown"
KINDS: Final[Mapping[str, Mapping[str, ConfigDef]]] = {
    "topic": EVERY_TOPIC_DEF,
    "broker": EVERY_BROKER_DEF,
    "group": GROUP_DEFS,
}


def page(name: str) -> str:
    """The text of a page. Raises FileNotFoundError where this installation lacks it."""
    shipped: Traversable = files("headrace.mcp") / "docs" / name
    return (shipped if shipped.is_file() else CHECKOUT / name).read_text(encoding="utf-8")


@cache
def config_names() -> str:
    """All configs by kind."""
    return "".join(f"# {kind}\n\n" + "".join(f"- {key}\n" for key in table) + "\n" for kind, table in KINDS.items())


def config(name: str) -> str | None:
    """The meaning of a config, for each kind of thing that has it; None where there is none of this name."""
    found = [_told(kind, table[name]) for kind, table in KINDS.items() if name in table]
    return f"# {name}\n\n" + "\n".join(found) if found else None


def _told(kind: str, definition: ConfigDef) -> str:
    default = "null" if definition.default is None else repr(definition.default)
    lines = [f"## Of a {kind}", "", definition.doc, "", f"- Type: {definition.type.name.lower()}"]
    lines += [f"- Default: {'a secret' if definition.is_secret and definition.default else default}"]
    lines += [f"- Values: {', '.join(definition.values)}"] if definition.values else []
    lines += [f"- At least: {definition.low:g}"] if definition.low is not None else []
    lines += [f"- At most: {definition.high:g}"] if definition.high is not None else []
    lines += [f"- Form: {definition.form}"] if definition.form else []
    lines += [f"- May be changed while brokers run: {'yes' if definition.dynamic else 'no'}"]
    lines += (
        [f"- Brokers' default for it: {definition.broker_key}"] if definition.broker_key and kind == "topic" else []
    )
    return "\n".join(lines) + "\n"


def add_resources(server: MCPServer[Any]) -> None:
    """Add all resources."""
    for name, about in PAGES.items():
        resource = FunctionResource.from_function(
            _reader(name), uri=f"headrace://docs/{name}", name=name, title=about, description=about, mime_type=MARKDOWN
        )
        server.add_resource(resource)

    @server.resource("headrace://configs", name="configs", title="Names of all configs", mime_type=MARKDOWN)
    def every_config() -> str:
        """Every config of topics, brokers and groups by name."""
        return config_names()

    @server.resource("headrace://configs/{name}", name="config", title="What a config means", mime_type=MARKDOWN)
    def one_config(name: str) -> str:
        """The meaning of one config: its values, its default, and whether it can be changed while brokers run."""
        text = config(name)
        if text is None:
            raise ResourceNotFoundError(f"There is no config '{name:.100}': headrace://configs has all names.")
        return text


def _reader(name: str) -> Callable[[], str]:
    def read() -> str:
        return page(name)

    return read

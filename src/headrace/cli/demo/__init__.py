"""`headrace demo`: the whole of Headrace on real input, each step checked. See `story` for the steps."""

from headrace.cli.demo.command import demo

__all__ = ["demo"]

"""Requests of brokers to the controller, as values: the same whether the controller is here or on another node.

`Command`s are decided on the image alone; the others concern the quorum or the session of a broker. Each module has the
requests about one subject. A broker loads most of them when it first sends or hears one, and with them what decides.

Promises:
- A `REPEATABLE` request may be repeated when its answer got lost. That does no harm and gives an answer that is as
  good.
- No request that comes from people is repeatable: another may have undone it in between, and it would be done again.
"""

"""The terms of this broker's leaderships of partitions of the topic of transactions."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.ids import BrokerId
from headrace.broker.cluster.driver import MetadataDriver
from headrace.coordinators.transactions.model import Terms, TransactionConfig, TransactionVersion
from headrace.metadata.configs import ConfigValue, broker_value
from headrace.metadata.features import FEATURES


class KnownTerms:
    """They are made once for each state of the configs."""

    def __init__(self, metadata: MetadataDriver, configs: Mapping[str, str], node: BrokerId) -> None:
        self._metadata = metadata
        self._configs = configs
        self._node = node
        self._known: dict[int, Terms] = {}
        """By leader epoch."""
        self._made_of: object = None
        """The configs that they have."""

    def at(self, epoch: int) -> Terms:
        """The terms of a leadership as the configs are now."""
        configs = self._metadata.image.broker_configs
        if configs is not self._made_of:
            self._made_of, self._known = configs, {}
        if epoch not in self._known:
            self._known[epoch] = self._made(epoch)
        return self._known[epoch]

    def _made(self, epoch: int) -> Terms:
        def config(name: str) -> ConfigValue:
            return broker_value(self._metadata.image, self._configs, name, node=self._node)

        made = TransactionConfig(
            transaction_max_timeout_ms=config("transaction.max.timeout.ms").number(),
            transactional_id_expiration_ms=config("transactional.id.expiration.ms").number(),
            transaction_two_phase_commit_enable=config("transaction.two.phase.commit.enable").boolean(),
        )
        version = TransactionVersion(FEATURES["transaction.version"])
        return Terms(coordinator_epoch=epoch, version=version, config=made)

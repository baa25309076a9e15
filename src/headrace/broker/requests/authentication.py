"""How clients of SASL listeners are authenticated: reads the configs, and makes the gatekeepers.

Promises: a listener whose configs do not fit is refused when the broker starts, in one sentence that shows no secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.base import limits
from headrace.base.errors import UsageError
from headrace.base.limits import SCRAM_USERS_COUNTED_AT_ONCE_MAX
from headrace.broker.core import Core
from headrace.broker.kit.tasks import in_thread, started
from headrace.broker.requests.own_users import OwnUsers
from headrace.logs import get_logger
from headrace.metadata.access.listener_configs import keys_of
from headrace.metadata.access.sasl_configs import JAAS
from headrace.metadata.access.scram import ScramCredential, ScramCredentials, ScramMechanism
from headrace.metadata.configs import ConfigValue, listener_value
from headrace.metadata.delta import ImageDelta
from headrace.net.server.authentication import AuthenticationCounts, Gatekeeper, Rules
from headrace.net.server.greeting import Greet, Witness
from headrace.security.jaas import LoginModule, read_jaas
from headrace.security.sasl import OAUTHBEARER, PLAIN, SERVED, Begin, PlainExchange, ScramExchange
from headrace.security.scram import KnownUsers, ScramServer, looks_of

if TYPE_CHECKING:
    from headrace.broker.requests.oauth_keys import OauthKeys

log = get_logger(__name__)

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
SCRAM_MECHANISMS: Final = {each.title: each for each in ScramMechanism if each is not ScramMechanism.UNKNOWN}
OAUTH_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_OAUTH: Final = "sasl.oauthbearer."
USER_OPTION: Final = "user_"
NONCE_BITS: Final = 192


class Authentication:
    """The gatekeepers of a broker's SASL listeners. They count together."""

    def __init__(self, core: Core, witness: Witness | None) -> None:
        """`witness`: see `Gatekeeper`."""
        self._core = core
        self.witness: Final = witness
        self.counts: Final = AuthenticationCounts()
        self._gatekeepers: list[Gatekeeper] = []
        self._users = KnownUsers()
        self._own = OwnUsers(lambda: core.broker_epoch() >= 0, core.random)
        self._counting: asyncio.Task[None] | None = None
        self._keys: dict[str, OauthKeys] = {}
        """Keys of issuers, by listener."""
        self._plain = _of_plain(core.config.configs)
        self._rereading: asyncio.Task[None] | None = None

    def greet(self, listener: str) -> Greet:
        """Return what greets clients of the listener. Raises UsageError. Called on the event loop."""
        gatekeeper = Gatekeeper(self._rules(listener), self.counts, self._core.clock.now_ms, witness=self.witness)
        self._gatekeepers.append(gatekeeper)
        read_again = self._core.config.read_again
        if read_again is not None and self._rereading is None:
            self._rereading = started(self._read_on(read_again), "the users of PLAIN", self._core.on_bug)
        return gatekeeper.greet

    def stop(self) -> None:
        for keys in self._keys.values():
            keys.stop()
        for task in (self._counting, self._rereading):
            if task is not None:
                task.cancel()

    async def _read_on(self, read_again: Callable[[], Mapping[str, str]]) -> None:
        """Adopt the users of PLAIN whenever they are others in the files. A problem is told once."""
        told = ""
        while True:
            await asyncio.sleep(limits.CONFIG_FILES_REFRESH_MS / 1000)
            try:
                self._adopt_plain(_of_plain(await in_thread(read_again)))
                told = ""
            except UsageError as error:
                if str(error) != told:
                    told = str(error)
                    log.error("changed users of PLAIN are not adopted; the old ones stay", reason=told)

    def _adopt_plain(self, modules: Mapping[str, str]) -> None:
        """Raises UsageError where they cannot be used on a listener: then nothing is changed."""
        before, self._plain = self._plain, modules
        if modules == before:
            return
        try:
            changed = [(each, self._rules(each.rules.listener)) for each in self._gatekeepers]
        except UsageError:
            self._plain = before
            raise
        for gatekeeper, rules in changed:
            gatekeeper.rules = rules
        log.info("the users of PLAIN are those of the changed config files from now on")

    def on_delta(self, delta: ImageDelta) -> None:
        """Adopt changed configs."""
        if delta.before.broker_configs is delta.after.broker_configs:
            return
        for each in self._gatekeepers:
            try:
                each.rules = self._rules(each.rules.listener)
            except UsageError as error:
                log.error("changed configs are not adopted", listener=each.rules.listener, reason=str(error))

    def _rules(self, listener: str) -> Rules:
        config = partial(self._config, listener)
        names = [name for name in config("sasl.enabled.mechanisms").text().split(",") if name]
        unknown = [name for name in names if name not in SERVED]
        if unknown or not names:
            what = f"enables {unknown[0][:40]}, which is not served" if unknown else "is empty"
            raise UsageError(
                f"sasl.enabled.mechanisms {what}, and listener {listener} needs it: choose of {', '.join(SERVED)}."
            )
        return Rules(
            listener=listener,
            mechanisms={name: self._begin(listener, name) for name in names},
            session_ms_max={name: config("connections.max.reauth.ms", name).number() for name in names},
            frame_bytes_max=config("sasl.server.max.receive.size").number(),
            failure_delay_ms=config("connection.failed.authentication.delay.ms").number(),
        )

    def _config(self, listener: str, key: str, mechanism: str | None = None) -> ConfigValue:
        core = self._core
        return listener_value(core.image(), core.config.configs, listener, key, mechanism=mechanism, node=core.node)

    def _begin(self, listener: str, mechanism: str) -> Begin:
        module = self._module(listener, mechanism)
        if mechanism == PLAIN:
            return partial(PlainExchange, _passwords(module, listener))
        if mechanism in SCRAM_MECHANISMS:
            if module is not None and module.name != SCRAM_MODULE:
                raise UsageError(f"The sasl.jaas.config of {mechanism} on listener {listener} is not {SCRAM_MODULE}.")
            if is_between_brokers := listener == self._core.inter_broker_listener:
                self._own.learn(SCRAM_MECHANISMS[mechanism], module)
            return partial(self._scram, SCRAM_MECHANISMS[mechanism], is_between_brokers=is_between_brokers)
        if module is not None and module.name != OAUTH_MODULE:
            raise UsageError(f"The sasl.jaas.config of {mechanism} on listener {listener} is not {OAUTH_MODULE}.")
        return self._oauth(listener)

    def _module(self, listener: str, mechanism: str) -> LoginModule | None:
        configs = self._plain if mechanism == PLAIN else self._core.config.configs
        for key in keys_of(listener, JAAS.key, mechanism)[:2]:
            if key in configs:
                try:
                    return read_jaas(configs[key])
                except ValueError as error:
                    raise UsageError(f"{key} cannot be read: {error}.") from error
        return None

    def _oauth(self, listener: str) -> Begin:
        try:
            from headrace.broker.requests.oauth_keys import OauthKeys
            from headrace.security.oauth import OauthExchange, TokenRules, TokenVerifier
        except ModuleNotFoundError as error:
            raise UsageError(f"OAUTHBEARER needs the package {error.name}: pip install 'headrace[security]'.") from None
        config = partial(self._config, listener, mechanism=OAUTHBEARER)
        rules = TokenRules(
            audiences=tuple(each for each in config(f"{_OAUTH}expected.audience").text().split(",") if each),
            issuer=config(f"{_OAUTH}expected.issuer").value,
            clock_skew_s=config(f"{_OAUTH}clock.skew.seconds").number(),
            scope_claim=config(f"{_OAUTH}scope.claim.name").text(),
            subject_claim=config(f"{_OAUTH}sub.claim.name").text(),
        )
        for claim, is_given in (("audience", bool(rules.audiences)), ("issuer", bool(rules.issuer))):
            if not is_given and not config(f"{_OAUTH}allow.unverified.{claim}").boolean():
                raise UsageError(
                    f"OAUTHBEARER on listener {listener} needs {_OAUTH}expected.{claim}: without it, tokens for others "
                    f"would count. Where that is meant, set {_OAUTH}allow.unverified.{claim}=true."
                )
        keys = self._keys.get(listener)
        if keys is None:
            url = config(f"{_OAUTH}jwks.endpoint.url").value
            if not url:
                raise UsageError(f"OAUTHBEARER on listener {listener} needs {_OAUTH}jwks.endpoint.url.")
            keys = self._keys[listener] = OauthKeys(
                url,
                refresh_ms=config(f"{_OAUTH}jwks.endpoint.refresh.ms").number(),
                backoff_ms=config(f"{_OAUTH}jwks.endpoint.retry.backoff.ms").number(),
                backoff_ms_max=config(f"{_OAUTH}jwks.endpoint.retry.backoff.max.ms").number(),
                on_bug=self._core.on_bug,
            )
        known = keys
        verifier = TokenVerifier(rules, lambda: known.keys, known.miss)
        return partial(OauthExchange, verifier, self._core.clock.now_ms)

    def _users_now(self) -> KnownUsers:
        """Return the users. Where they are many and have changed, their looks are counted again in a thread."""
        users = self._users
        users.credentials = now = self._core.image().scram
        if users.counted is not now and self._counting is None:
            if len(now) <= SCRAM_USERS_COUNTED_AT_ONCE_MAX:
                users.counted, users.looks = now, looks_of(now)
            else:
                self._counting = started(self._count(now), "counting the looks of credentials", self._core.on_bug)
        return users

    async def _count(self, credentials: ScramCredentials) -> None:
        self._users.looks = await in_thread(lambda: looks_of(credentials))
        self._users.counted = credentials
        self._counting = None

    def _scram(self, mechanism: ScramMechanism, *, is_between_brokers: bool) -> ScramExchange:
        core, users = self._core, self._users_now()

        def find(user: str) -> ScramCredential | None:
            own = self._own.find(mechanism, user) if is_between_brokers else None
            return own or users.find(mechanism, user)

        server = ScramServer(
            mechanism,
            find,
            nonce=f"{core.random.getrandbits(NONCE_BITS):0{NONCE_BITS // 4}x}",
            secret=core.image().secret or core.cluster_id.encode(),
            usual_look=partial(users.usual_look, mechanism),
        )
        return ScramExchange(server)


def _of_plain(configs: Mapping[str, str]) -> Mapping[str, str]:
    """The login modules of PLAIN."""
    return {key: value for key, value in configs.items() if key.endswith(f"{PLAIN.lower()}.{JAAS.key}")}


def _passwords(module: LoginModule | None, listener: str) -> Mapping[str, str]:
    """The users of PLAIN, by the options `user_NAME="password"`."""
    if module is None or module.name != PLAIN_MODULE:
        key = keys_of(listener, JAAS.key, PLAIN)[0]
        raise UsageError(
            f"PLAIN on listener {listener} needs its users: set {key} "
            f"to '{PLAIN_MODULE} required user_NAME=\"PASSWORD\";'."
        )
    return {
        option.removeprefix(USER_OPTION): password
        for option, password in module.options.items()
        if option.startswith(USER_OPTION)
    }

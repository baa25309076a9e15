"""`--command-config FILE`: how a command reaches brokers that do not let everybody in. Kafka's own files work.

Promises: each command that asks brokers takes the option, without a line of its own. So does a group that is a command
too (`headrace quorum`). `headrace` itself takes it before the command, and there is HEADRACE_COMMAND_CONFIG. The file's
`bootstrap.servers` serve where no --bootstrap is given. Nothing of a file is ever printed. `--context NAME` stands for
brokers and a file that `headrace context add` has noted.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from headrace.base.errors import UsageError
from headrace.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, CommandConfig, ContextName

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster
    from headrace.net.client.security import ClientSecurity

T = TypeVar("T")
_FILE: Final[ContextVar[Path | None]] = ContextVar("command_config", default=None)
_NAMED: Final[ContextVar[str | None]] = ContextVar("context", default=None)
_FILE_BYTES_MAX: Final = 1024 * 1024
_PARAMETERS: Final = (
    inspect.Parameter("command_config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=CommandConfig),
    inspect.Parameter("context_name", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ContextName),
)
_CALL: Final = inspect.Parameter("typer_context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def remember(path: Path | None, context_name: str | None = None) -> None:
    """Note the file, and the named context, that stand here, before the command or behind it. The last one counts.
    `main` runs each command in a context of its own, so that none is left for the next."""
    if path is not None:
        _FILE.set(path)
    if context_name is not None:
        _NAMED.set(context_name)


def give_command_config(app: typer.Typer) -> None:
    """Have each command of `app` that takes --bootstrap, to ask brokers, take --command-config and --context. So do its
    groups that are commands themselves."""
    for command in app.registered_commands:
        assert command.callback is not None, "registered with a function"
        command.callback = _taking(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None, "registered with commands"
        if (itself := group.typer_instance.registered_callback) is not None and itself.callback is not None:
            itself.callback = _taking(itself.callback)
        give_command_config(group.typer_instance)


def _taking(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    known = signature.parameters
    asked = known.get("bootstrap")
    if asked is None or asked.annotation != Bootstrap or _PARAMETERS[0].name in known:
        return command
    call = next((name for name, each in known.items() if each.annotation is typer.Context), None)

    @functools.wraps(command)
    def run(
        *arguments: Any, command_config: Path | None = None, context_name: str | None = None, **options: Any
    ) -> Any:
        remember(command_config, context_name)
        source = options[call or _CALL.name].get_parameter_source("bootstrap")
        if call is None:
            del options[_CALL.name]
        options["bootstrap"] = _chosen(options["bootstrap"], is_given=source is not None and source.name != "DEFAULT")
        return command(*arguments, **options)

    parameters = [*known.values(), *_PARAMETERS, *(() if call else (_CALL,))]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # PEP 362 has it
    run.__annotations__ = {name: each.annotation for name, each in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def _chosen(bootstrap: str, *, is_given: bool) -> str:
    """The brokers to ask: those that are given, else those of the context or the file. A context that is merely in use
    says nothing where brokers or a file are given: its secrets are for its own brokers. Raises UsageError."""
    name, place = _NAMED.get(), None
    if name is not None or not (is_given or _FILE.get() is not None):
        from headrace.cli.settings.contexts import load

        contexts = load()
        if (name := name or contexts.current) is not None:
            place = contexts.named(name)
    if place is not None and place.command_config is not None and _FILE.get() is None:
        _FILE.set(Path(place.command_config))
    if is_given:
        return bootstrap
    if place is not None:
        return place.bootstrap
    return properties().get("bootstrap.servers", "").strip() or DEFAULT_BOOTSTRAP


def properties() -> Mapping[str, str]:
    """The settings in this command's file; none where there is no file. Raises UsageError."""
    path = _FILE.get()
    return {} if path is None else read_properties(path)


def read_properties(path: Path) -> Mapping[str, str]:
    """The settings in a file. Raises UsageError."""
    from headrace.base.properties import parse_properties

    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"--command-config {path} cannot be read: {error.strerror or error}.") from error
    if len(data) > _FILE_BYTES_MAX:
        raise UsageError(f"--command-config {path} has more than {_FILE_BYTES_MAX} bytes: it is another kind of file.")
    try:
        return parse_properties(data.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"--command-config {path} is no text in UTF-8.") from error


def security() -> ClientSecurity:
    """The security that this command's file asks for. Raises UsageError."""
    from headrace.net.client.security import ClientSecurity

    return ClientSecurity.from_properties(properties())


def as_reached(bootstrap: str) -> list[str]:
    """The options with which another command reaches the brokers of this one, beside the environment."""
    words = []
    if bootstrap not in (DEFAULT_BOOTSTRAP, os.environ.get("HEADRACE_BOOTSTRAP")):
        words += ["--bootstrap", bootstrap]
    path = _FILE.get()
    if path is not None and str(path) != os.environ.get("HEADRACE_COMMAND_CONFIG"):
        words += ["--command-config", str(path)]
    return words


def reached(bootstrap: str, **settings: Any) -> Cluster:
    """The cluster, as this command's file says that it is reached. `settings`: of Cluster. Raises UsageError."""
    from headrace.net.client.cluster import Cluster

    return Cluster(bootstrap, security=security(), **settings)


def with_cluster(bootstrap: str, action: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run the action with the cluster, as `reached`, on a loop of its own, and return its result."""
    from headrace.net.loops import run

    async def main() -> T:
        async with reached(bootstrap) as cluster:
            return await action(cluster)

    return run(main())

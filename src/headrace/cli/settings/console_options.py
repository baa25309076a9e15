"""Options of `headrace console` that `headrace up --console` takes, too, and hands on to the console that it starts.

Promises: each option of the console is one of up's, unless it stands here. Single values go by the environment,
since a URL may have a password: all users of a machine see the words of a command. Lists go by words.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, get_args

from headrace.cli.console import console

SAID_BY_UP: Final = frozenset({"listen", "bootstrap", "with_parent", "log_level", "json"})
"""Options that up itself gives to the console."""
BY_ENVIRONMENT: Final = frozenset(
    {
        "host",
        "login",
        "oidc_issuer",
        "oidc_client_id",
        "oidc_client_secret_file",
        "oidc_token",
        "oidc_scope",
        "oidc_parameter",
        "idle",
        "tls_certificate",
        "tls_key",
        "insecure",
    }
)
"""Options that say how viewers come in. Among those of a broker they would be taken for the broker's. The console reads
its variables, like HEADRACE_CONSOLE_HOST, under up as well."""
PANEL: Final = "The console (with --console; variables HEADRACE_CONSOLE_... say more)"


class HandedOn(NamedTuple):
    """The options of a console, as it is started with them."""

    words: list[str]
    environment: dict[str, str]


def taken() -> list[inspect.Parameter]:
    """The console's parameters that up takes, for typer."""
    known = inspect.signature(console, eval_str=True).parameters.values()
    return [_shown(each) for each in known if each.name not in SAID_BY_UP | BY_ENVIRONMENT]


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter, which help shows among those of the console."""
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = PANEL
    return parameter.replace(annotation=Annotated[kind, option], kind=inspect.Parameter.KEYWORD_ONLY)


def with_console_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options beside its own. It gets them as keywords."""
    *own, _ = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**options: Any) -> None:
        command(**options)

    run.__signature__ = inspect.Signature([*own, *taken()])  # type: ignore[attr-defined]  # PEP 362 has it
    run.__annotations__ = {name: each.annotation for name, each in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return run


def given(options: Mapping[str, Any]) -> list[str]:
    """The options that have a value, as they are written."""
    return [_option(name) for name, value in options.items() if value not in (None, False, [], ())]


def handed_on(options: Mapping[str, Any]) -> HandedOn:
    """The options that the console is started with."""
    found = HandedOn([], {})
    for name, value in options.items():
        if isinstance(value, (list, tuple)):
            found.words.extend(f"{_option(name)}={each}" for each in value)
        elif value is not None and value is not False:
            found.environment[f"HEADRACE_CONSOLE_{name.upper()}"] = "1" if value is True else str(value)
    return found


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"

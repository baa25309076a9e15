"""Schemas from a registry and a directory that a user names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from headrace.base.errors import UsageError
from headrace.net.pem import stores_of
from headrace.operations.schemas.files import Files
from headrace.operations.schemas.records import Schemas


def schemas_of(
    registry: str | None, directory: Path | None, *, user_info: str, properties: Mapping[str, str]
) -> Schemas | None:
    """The schemas of a registry and of a directory; None: neither is named. `user_info`: USER:PASSWORD at the registry.
    `properties`: a client's, with trusted certificates. Raises UsageError.
    """
    if registry is None and directory is None:
        return None
    if directory is not None and not directory.is_dir():
        raise UsageError(f"--schemas {directory} is no directory.")
    known = None
    try:
        if find_spec("fastavro") is None:  # it is for the process that decodes
            raise ModuleNotFoundError(name="fastavro")
        if registry is not None:
            from headrace.operations.schemas.registry import Place, Registry

            known = Registry(Place.of(registry, user_info, stores_of(properties)))
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("headrace"):
            raise
        raise UsageError(f"Schemas need the package {error.name}: pip install 'headrace[console]'.") from None
    return Schemas(known, None if directory is None else Files(directory))

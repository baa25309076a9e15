"""The schemas that a command's options name, for the commands that decode Avro."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.command_config import properties
from headrace.operations.schemas.schema import REGISTRY_USER

if TYPE_CHECKING:
    from headrace.operations.schemas.records import Schemas


def named_schemas(registry: str | None, directory: Path | None) -> Schemas | None:
    """Those of --schema-registry and --schemas; None: neither is given. USER:PASSWORD at the registry may stand in the
    environment: an option would show it to all users of this machine. Raises UsageError.
    """
    if registry is None and directory is None:
        return None
    from headrace.operations.schemas.named import schemas_of

    user_info = os.environ.get(REGISTRY_USER, "").strip()
    return schemas_of(registry, directory, user_info=user_info, properties=properties())

"""Names of pydantic, which is imported when one of them is first used.

It takes a tenth of a second and 10 MB, and many processes validate nothing that needs it.

    from nonet.base import late_pydantic as pydantic
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nonet.base.exports import imported_on_use

if TYPE_CHECKING:
    from pydantic import (
        BaseModel as BaseModel,
        ByteSize as ByteSize,
        ConfigDict as ConfigDict,
        PydanticInvalidForJsonSchema as PydanticInvalidForJsonSchema,
        PydanticUserError as PydanticUserError,
        RootModel as RootModel,
        SecretBytes as SecretBytes,
        SecretStr as SecretStr,
        TypeAdapter as TypeAdapter,
        ValidationError as ValidationError,
    )
    from pydantic_core import core_schema as core_schema
else:
    _HOMES = {
        "pydantic": (
            "BaseModel ByteSize ConfigDict PydanticInvalidForJsonSchema PydanticUserError "
            "RootModel SecretBytes SecretStr TypeAdapter ValidationError"
        ),
        "pydantic_core": "core_schema",
    }
    __all__, __getattr__, __dir__ = imported_on_use(__name__, _HOMES, within="")

"""Our structs as bodies of a FastAPI app: `Annotated[GenerateReqInput, StructBody(), fastapi.Body()]`.

Needs the extra: `pip install vidette[pydantic]`. Nothing else in this package imports pydantic. The work is
done by `vidette_protocol.bodies`; here its faults become pydantic's, so that FastAPI answers 422 and says
where, and its schema becomes that of the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from vidette_protocol.bodies import BodyError, BodyType
from vidette_protocol.plain import msgspec_to_builtins


class StructBody:
    """Says, in `Annotated`, that a struct is taken from a JSON object.

    Args:
        exclude: fields that callers do not set, besides those that the engine sets; they keep their defaults.
    """

    def __init__(self, *, exclude: Iterable[str] = ()) -> None:
        self._exclude = tuple(exclude)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic makes a struct: a struct passes as it is, an object is read as a body.

        Raises:
            TypeError: what is annotated is no struct.
        """
        if not (isinstance(source, type) and issubclass(source, Struct)):
            raise TypeError(f"StructBody is for structs, not for {source!r}")
        body = BodyType(source, exclude=self._exclude)

        def validate(value: object) -> Struct:
            try:
                return body.read(value)
            except BodyError as error:
                raise _translate(source.__name__, error) from None

        return core_schema.no_info_plain_validator_function(
            validate,
            serialization=core_schema.plain_serializer_function_ser_schema(msgspec_to_builtins),
            metadata={"body": body},
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        body: BodyType[Any] = schema.get("metadata", {})["body"]
        return body.json_schema()


def _translate(title: str, error: BodyError) -> ValidationError:
    return ValidationError.from_exception_data(
        title,
        [
            InitErrorDetails(
                # pyright wants literals there, which a message that names a value cannot be.
                type=PydanticCustomError(fault.kind, fault.message),  # pyright: ignore[reportArgumentType]
                loc=fault.place,
                input=fault.value,
            )
            for fault in error.faults
        ],
    )

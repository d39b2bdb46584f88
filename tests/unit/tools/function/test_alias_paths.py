"""Fields that pydantic reads from inside other values are described where they are read."""

from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from chatclient.tools.function.schema import signature_of


class Place(BaseModel):
    city: str = Field(validation_alias=AliasPath("address", "city"))
    code: int = Field(0, validation_alias=AliasPath("address", "code"))
    last: bool = Field(validation_alias=AliasPath("flags", -1))
    second: int = Field(validation_alias=AliasChoices(AliasPath("points", 1), AliasPath("p", "x")))
    named: str = Field(validation_alias=AliasChoices(AliasPath("who", "name"), "called"))
    title: str
    inner: str = Field("", validation_alias=AliasPath("title", "inner"))


def test_schema_of_paths() -> None:
    """Objects and arrays on the way; a place that another field describes stays as it is."""

    def function(place: Place) -> None: ...

    schema: Any = signature_of(function).input_schema["$defs"]["Place"]
    properties = schema["properties"]

    assert set(schema["required"]) == {"title", "called", "address", "flags", "points"}
    assert properties["address"]["required"] == ["city"]
    assert properties["address"]["properties"]["code"] == {"type": "integer", "default": 0}
    assert properties["flags"] == {"type": "array", "items": {"type": "boolean"}, "minItems": 1}
    assert properties["points"]["prefixItems"] == [{}, {"type": "integer"}]
    assert properties["points"]["minItems"] == 2
    assert properties["title"] == {"type": "string"}

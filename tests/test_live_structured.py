"""Typed answers of the real local model: told in words, held to a schema, mended, and in parts."""

import asyncio
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, Field, field_validator

from chatclient import ChatClient, ChatModel
from chatclient.providers.local import LocalChatModel
from chatclient.providers.weights import QWEN_CODER_1_5B, WeightsError, join_weights

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def model() -> Iterator[ChatModel]:
    """Give the local model; its weights are fetched by `make test`."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    try:
        join_weights(QWEN_CODER_1_5B)
    except WeightsError as error:
        pytest.skip(f"no weights: {error}")
    with LocalChatModel() as model:
        yield model


class City(BaseModel):
    name: str
    country: str


class Trip(BaseModel):
    """A trip from one city to another."""

    start: City
    destination: City
    days: int = Field(description="How many days the trip takes.")


ASKED = "I travel from Paris in France to Rome in Italy, for 5 days. Write that down as a trip."


def check(trip: Trip) -> None:
    assert (trip.start.name, trip.start.country) == ("Paris", "France")
    assert (trip.destination.name, trip.destination.country) == ("Rome", "Italy")
    assert trip.days == 5


@pytest.mark.parametrize("native", [False, True, "tool"])
def test_a_nested_model(model: ChatModel, native: bool) -> None:
    """The model answers the same, however it is made to."""
    check(ChatClient.create(model).prompt(ASKED).call().entity(Trip, native=native))


def test_a_list_asynchronously(model: ChatModel) -> None:
    """What is no object is wrapped for the server and unwrapped again."""

    async def ask() -> list[City]:
        request = ChatClient.create(model).prompt(
            "Write down these cities: Paris in France and Rome in Italy."
        )
        return await request.acall().entity(list[City], native=True)

    assert {(city.name, city.country) for city in asyncio.run(ask())} == {
        ("Paris", "France"),
        ("Rome", "Italy"),
    }


def test_partial_values(model: ChatModel) -> None:
    """Values grow while the model writes, and the last one is whole."""
    trips = list(ChatClient.create(model).prompt(ASKED).stream().entity(Trip, native=True))

    assert len(trips) > 5
    assert [trip.days for trip in trips if trip.days] == [5] * sum(bool(t.days) for t in trips)
    check(trips[-1])


def test_validation_shows_the_model_what_is_wrong(model: ChatModel) -> None:
    """The first answer cannot fit, since nobody has told the rule; the next one does."""
    seen: list[str] = []

    class Code(BaseModel):
        code: str

        @field_validator("code")
        @classmethod
        def in_capitals(cls, code: str) -> str:
            seen.append(code)
            if code != "ROME-5":
                msg = "the code must be exactly ROME-5"
                raise ValueError(msg)
            return code

    request = ChatClient.create(model).prompt("Give me a code for a trip of 5 days to rome.")

    assert request.call().entity(Code, validate=True).code == "ROME-5"
    assert seen[0] != "ROME-5"

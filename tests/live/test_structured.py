"""Typed answers of the real local model: by prompt, by schema, corrected and partial."""

import asyncio

import pytest
from pydantic import BaseModel, Field, field_validator

from chatclient import ChatClient, ChatModel

pytestmark = pytest.mark.live


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
def test_nested_model(local_model: ChatModel, native: bool) -> None:
    """The answer is the same with every method."""
    check(ChatClient.create(local_model).prompt(ASKED).call().entity(Trip, native=native))


def test_async_list(local_model: ChatModel) -> None:
    """A list is wrapped for the server and unwrapped."""

    async def ask() -> list[City]:
        request = ChatClient.create(local_model).prompt(
            "Write down these cities: Paris in France and Rome in Italy."
        )
        return await request.acall().entity(list[City], native=True)

    assert {(city.name, city.country) for city in asyncio.run(ask())} == {
        ("Paris", "France"),
        ("Rome", "Italy"),
    }


def test_partial_values(local_model: ChatModel) -> None:
    """Values grow during the stream, and the last one is complete."""
    trips = list(ChatClient.create(local_model).prompt(ASKED).stream().entity(Trip, native=True))

    assert len(trips) > 5
    assert [trip.days for trip in trips if trip.days] == [5] * sum(bool(t.days) for t in trips)
    check(trips[-1])


def test_validation_retry(local_model: ChatModel) -> None:
    """The model violates an unknown rule first and follows it after the error."""
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

    request = ChatClient.create(local_model).prompt("Give me a code for a trip of 5 days to rome.")

    assert request.call().entity(Code, validate=True).code == "ROME-5"
    assert seen[0] != "ROME-5"

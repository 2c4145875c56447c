"""The base of every error that a user can fix: one line that says what, what was wrong and what is possible."""

from collections.abc import Mapping
from typing import Any


class PicknetError(Exception):
    """An error whose message names the thing, what was wrong with it and what is possible."""


class BadSetting(PicknetError):
    """A number of frames, a budget, a frame rate or a style that is not possible."""


def with_value(problem: Mapping[str, Any]) -> str:
    """A problem that Pydantic found, with the value that was given: 2 should be less than or equal to 1."""
    message: str = problem["msg"]
    return message.removeprefix("Value error, ").replace("Input should", f"{str(problem['input'])[:100]!r} should", 1)

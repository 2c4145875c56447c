"""The base of every error that a user can fix: one line that says what, what was wrong and what is possible."""


class PicknetError(Exception):
    """An error whose message names the thing, what was wrong with it and what is possible."""


class BadSetting(PicknetError):
    """A number of frames, a budget, a frame rate or a style that is not possible."""

"""What goes wrong, said in one line: every error a user can mend is a `PicknetError`."""


class PicknetError(Exception):
    """An error whose message names the thing, what was wrong with it and what is possible."""

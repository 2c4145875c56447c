"""Docstrings as the code writes them: a line `name: …` about a parameter becomes an item of a list."""

import re
from typing import Any

import griffe


class Parameters(griffe.Extension):
    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is None:
            return
        names = {parameter.name for parameter in func.parameters}

        def item(line: re.Match[str]) -> str:
            known = names.issuperset(line[1].split(", "))
            return f"\n- **{line[1]}**: " if known else line[0]

        func.docstring.value = re.sub(r"^((?:\w+, )*\w+): ", item, func.docstring.value, flags=re.M)

"""Describe a video from the few frames that matter.

>>> import picknet
>>> captioner = picknet.load()
>>> captioner.caption("cat.mp4").text
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from picknet.captioner import Caption, Captioner, Sentence, Update, load, pick
    from picknet.config import Config, load_config
    from picknet.errors import PicknetError
    from picknet.frames import PickedFrame
    from picknet.picking import (
        AllPicker,
        CoinPicker,
        EveryNthPicker,
        KMeansPicker,
        Pick,
        Picker,
        PickNetPicker,
        RandomPicker,
        SceneChangePicker,
        StridePicker,
        UniformPicker,
    )
    from picknet.timeline import Segment
    from picknet.video import Frame, Video

    __version__: str

__all__ = [
    "AllPicker",
    "Caption",
    "Captioner",
    "CoinPicker",
    "Config",
    "EveryNthPicker",
    "Frame",
    "KMeansPicker",
    "Pick",
    "PickNetPicker",
    "PickedFrame",
    "Picker",
    "PicknetError",
    "RandomPicker",
    "SceneChangePicker",
    "Segment",
    "Sentence",
    "StridePicker",
    "UniformPicker",
    "Update",
    "Video",
    "__version__",
    "load",
    "load_config",
    "pick",
]

if not TYPE_CHECKING:  # a type checker would take __getattr__ as leave for any name
    _HOMES = {
        "captioner": {"Caption", "Captioner", "Sentence", "Update", "load", "pick"},
        "config": {"Config", "load_config"},
        "errors": {"PicknetError"},
        "frames": {"PickedFrame"},
        "timeline": {"Segment"},
        "video": {"Frame", "Video"},
        "picking": {"Pick", *(name for name in __all__ if name.endswith("Picker"))},
    }

    def __getattr__(name: str) -> Any:
        """Public names are imported when they are first asked for, so that `import picknet` costs nothing."""
        from importlib import import_module

        if name == "__version__":
            return import_module("importlib.metadata").version("picknet")
        for module, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"picknet.{module}"), name)
        raise AttributeError(f"module 'picknet' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__

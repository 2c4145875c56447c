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
    from picknet.picking.learned import PickNetPicker, StridePicker
    from picknet.picking.picker import Pick, Picker
    from picknet.picking.plain import (
        AllPicker,
        CoinPicker,
        EveryNthPicker,
        KMeansPicker,
        RandomPicker,
        SceneChangePicker,
        UniformPicker,
    )
    from picknet.show.frames import PickedFrame
    from picknet.timeline import Segment
    from picknet.video.file import Video
    from picknet.video.frame import Frame

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
        "picking.learned": {"PickNetPicker", "StridePicker"},
        "picking.picker": {"Pick", "Picker"},
        "picking.plain": {
            "AllPicker",
            "CoinPicker",
            "EveryNthPicker",
            "KMeansPicker",
            "RandomPicker",
            "SceneChangePicker",
            "UniformPicker",
        },
        "show.frames": {"PickedFrame"},
        "timeline": {"Segment"},
        "video.file": {"Video"},
        "video.frame": {"Frame"},
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

"""Describe a video from the few frames that matter.

>>> import picknet
>>> captioner = picknet.load()
>>> captioner.caption("cat.mp4").text
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from picknet.captioner import Captioner, NothingToCaption, load, pick
    from picknet.config import Config, load_config
    from picknet.data.split import load_split
    from picknet.errors import PicknetError
    from picknet.model.folder import BadModel
    from picknet.model.sentences import Sentence
    from picknet.picking.budget import BudgetPicker
    from picknet.picking.hecate import HecatePicker
    from picknet.picking.learned import CountedPicker, PickNetPicker, RatePicker
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
    from picknet.results import Caption, Picked, Segment, Update
    from picknet.show.frames import PickedFrame, anthropic_parts, openai_parts
    from picknet.study.evaluation import evaluate
    from picknet.training.recipe import train as train
    from picknet.video.file import UnreadableVideo, Video
    from picknet.video.frame import Frame
    from picknet.video.live import Live

    __version__: str

__all__ = [
    "AllPicker",
    "BadModel",
    "BudgetPicker",
    "Caption",
    "Captioner",
    "CoinPicker",
    "Config",
    "CountedPicker",
    "EveryNthPicker",
    "Frame",
    "HecatePicker",
    "KMeansPicker",
    "Live",
    "NothingToCaption",
    "Pick",
    "PickNetPicker",
    "Picked",
    "PickedFrame",
    "Picker",
    "PicknetError",
    "RandomPicker",
    "RatePicker",
    "SceneChangePicker",
    "Segment",
    "Sentence",
    "UniformPicker",
    "UnreadableVideo",
    "Update",
    "Video",
    "__version__",
    "anthropic_parts",
    "evaluate",
    "load",
    "load_config",
    "load_split",
    "openai_parts",
    "pick",
    # Not `train`, which needs an extra: `from picknet import *` has to work without.
]

if not TYPE_CHECKING:  # to a type checker, __getattr__ would mean that any name exists
    _HOMES = {
        "captioner": {"Captioner", "NothingToCaption", "load", "pick"},
        "config": {"Config", "load_config"},
        "data.split": {"load_split"},
        "errors": {"PicknetError"},
        "model.folder": {"BadModel"},
        "picking.budget": {"BudgetPicker"},
        "picking.hecate": {"HecatePicker"},
        "picking.learned": {"CountedPicker", "PickNetPicker", "RatePicker"},
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
        "model.sentences": {"Sentence"},
        "results": {"Caption", "Picked", "Segment", "Update"},
        "show.frames": {"PickedFrame", "anthropic_parts", "openai_parts"},
        "study.evaluation": {"evaluate"},
        "training.recipe": {"train"},
        "video.file": {"UnreadableVideo", "Video"},
        "video.frame": {"Frame"},
        "video.live": {"Live"},
    }

    def __getattr__(name: str) -> Any:
        """Public names are imported when they are first used, so that `import picknet` is fast."""
        from importlib import import_module

        if name == "__version__":
            return import_module("importlib.metadata").version("picknet")
        for module, names in _HOMES.items():
            if name in names:
                try:
                    return getattr(import_module(f"picknet.{module}"), name)
                except ModuleNotFoundError as error:
                    if module != "training.recipe" or (error.name or "").startswith("picknet"):
                        raise
                    raise ImportError(f'picknet.{name} needs {error.name}: pip install "picknet[train]"') from error
        raise AttributeError(f"module 'picknet' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "train"])

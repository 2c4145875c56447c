"""Clips with captions written by people: MSVD, MSR-VTT, COCO, Flickr8k, or your own folder.

`split.load_split` is the entry point; there is one module for each data set's official format.
"""

from picknet.errors import PicknetError


class BadData(PicknetError):
    """A data folder or a caption file that cannot be used."""


class NoSplit(BadData):
    """A data folder that is in order, but has no clips of the requested split."""

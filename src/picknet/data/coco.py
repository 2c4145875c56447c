"""COCO captions of 2017 or 2014. A picture is a clip of one frame."""

from pathlib import Path

from picknet.data import BadData, NoSplit
from picknet.data.reading import ListedClip, find_json, no_captions, parse_json, picture_stem, read_text

YEARS = (2017, 2014)
"""The two official splits of COCO. They overlap, so captions of the two years are never mixed."""


def listed_clips(folder: Path, split: str) -> dict[str, ListedClip]:
    names = {(year, part): f"captions_{part}{year}.json" for year in YEARS for part in ("train", "val")}
    found = {key: path for key, name in names.items() if (path := find_json(folder, name))}
    if not found:
        raise no_captions(folder, [*names.values()], or_packed=True)
    newest = max(year for year, _ in found)
    files = [path for (year, part), path in found.items() if year == newest and split in ("all", part)]
    if not files:
        there = ", ".join(part for year, part in found if year == newest)
        raise NoSplit(f"{folder}: there are no captions of the {split} split of coco (there are: {there}, all)")
    listed: dict[int, ListedClip] = {}
    for path in files:
        content = parse_json(path, read_text(path))
        try:
            for image in content["images"]:
                listed[image["id"]] = _listed(image["id"], image.get("file_name"))
            for annotation in content["annotations"]:
                number = annotation["image_id"]
                if (entry := listed.get(number)) is None:
                    entry = listed[number] = _listed(number, None)
                if caption := annotation["caption"].strip():
                    entry.captions.append(caption)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            form = "images[id, file_name] and annotations[image_id, caption]"
            raise BadData(f"{path}: not a COCO caption annotation, which has {form} ({error!r})") from error
    return {listed[number].stems[0]: listed[number] for number in sorted(listed)}


def _listed(number: int, file_name: str | None) -> ListedClip:
    """A picture is found by its file name, by its zero-padded number (as in 2017), or by its plain number."""
    by_number = (f"{number:012d}", str(number))
    stem = picture_stem(file_name) if file_name else by_number[0]
    return ListedClip((stem, *(name for name in by_number if name != stem)), [])

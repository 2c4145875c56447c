"""MSR-VTT: the official annotations as JSON, plain or inside the .zip they come in."""

from pathlib import Path

from picknet.data import BadData
from picknet.data.reading import ListedClip, by_number, find_json, no_captions, parse_json, read_text, split_name

FILES = ("train_val_videodatainfo.json", "test_videodatainfo.json")
CATEGORIES = (
    "music", "people", "gaming", "sports", "news", "education", "tv", "movie", "animation", "vehicles", "howto",
    "travel", "science", "animals", "kids", "documentary", "food", "cooking", "beauty", "advertisement",
)  # fmt: skip
"""By their number in the annotations; of official names such as "sports/actions" and "tv shows" the first word."""


def listed_clips(folder: Path, split: str) -> dict[str, ListedClip]:
    files = [path for name in FILES if (path := find_json(folder, name))]
    if not files:
        raise no_captions(folder, FILES, or_packed=True)
    listed: dict[str, ListedClip] = {}
    for path in files:
        content = parse_json(path, read_text(path))
        try:
            for video in content["videos"]:
                if split in ("all", split_name(str(video["split"]))):
                    name, category = str(video["video_id"]), _category(video.get("category"))
                    listed[name] = ListedClip((name,), [], category)
            for sentence in content["sentences"]:
                if (entry := listed.get(sentence["video_id"])) and (caption := sentence["caption"].strip()):
                    entry.captions.append(caption)
        except (KeyError, TypeError, AttributeError) as error:
            form = "videos[video_id, split] and sentences[video_id, caption]"
            raise BadData(f"{path}: not an MSR-VTT annotation, which has {form} ({error!r})") from error
    return {name: listed[name] for name in sorted(listed, key=by_number)}


def _category(number: object) -> str | None:
    """None where an annotation has no category, or another number than the official ones."""
    return CATEGORIES[number] if isinstance(number, int) and 0 <= number < len(CATEGORIES) else None

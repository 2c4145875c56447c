"""Data sets in their official formats, written small by hand, and the real ones where they are at hand."""

import gzip
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from picknet.data import BadData, NoSplit
from picknet.data.split import Clip, DataFolder, Missing, Split, data_folders, load_split, only
from picknet.text import Vocabulary, tokenise

SHARED = Path(__file__).resolve().parents[3] / "shared"
PRETRAIN = SHARED / "pretrain"
needs_pictures = pytest.mark.skipif(not PRETRAIN.is_dir(), reason="the pictures are not beside the repository")
needs_shared = pytest.mark.skipif(not (SHARED / "msvd").is_dir(), reason="the data sets are not beside the repository")

# Real names on both sides of the official borders: vid1200 | vid1201, vid1300 | vid1301.
MAPPING = """\
-4wsuPCjDBc_5_15 vid1
bQJQGoJF7_k_145_153 vid1200
bQJQGoJF7_k_162_169 vid1201
eyMYc-37Sk4_0_10 vid1300
eyhzdC936uk_15_27 vid1301
zzit5b_-ukg_5_20 vid1970
"""
NAMES = {vid: name for name, vid in (line.split() for line in MAPPING.splitlines())}
PARTS = {"train": ("vid1", "vid1200"), "val": ("vid1201", "vid1300"), "test": ("vid1301", "vid1970")}


def make(folder: Path, files: Mapping[str, str | bytes], *, videos: tuple[str, ...] = ()) -> Path:
    """A data folder with these files and these (empty) videos or pictures."""
    contents: dict[str, str | bytes] = {**files, **dict.fromkeys(videos, b"")}
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def all_videos(suffix: str = ".avi") -> tuple[str, ...]:
    return tuple(f"videos/{name}{suffix}" for name in NAMES.values())


def captions(split: Split) -> dict[str, tuple[str, ...]]:
    return {clip.name: clip.captions for clip in split.clips}


def complaint(folder: Path, dataset: str, split: str = "train") -> str:
    with pytest.raises(BadData) as error:
        load_split(folder, dataset=dataset, split=split)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


# --- MSVD ---


def test_msvd_is_split_by_number_at_1200_and_1300(tmp_path: Path) -> None:
    files = {
        f"captions/sents_{part}_lc_nopunc.txt": "".join(f"{vid}\tcaption of {vid}\n" for vid in vids)
        for part, vids in PARTS.items()
    }
    make(tmp_path, {**files, "captions/youtube_mapping.txt": MAPPING}, videos=all_videos())
    for part, expected in PARTS.items():
        split = load_split(tmp_path, dataset="msvd", split=part)
        assert (split.dataset, split.name, split.missing) == ("msvd", part, ())
        assert captions(split) == {vid: (f"caption of {vid}",) for vid in expected}
        assert [clip.path for clip in split.clips] == [tmp_path / "videos" / f"{NAMES[vid]}.avi" for vid in expected]
    assert [clip.name for clip in load_split(tmp_path, dataset="msvd", split="all").clips] == list(NAMES)


def test_the_test_captions_and_clips_alone_can_be_evaluated(tmp_path: Path) -> None:
    sents = "vid1301\ta man runs\nvid1301\ta man is running\n"
    files = {"sents_test_lc_nopunc.txt": sents, "youtube_mapping.txt": MAPPING}
    make(tmp_path, files, videos=("eyhzdC936uk_15_27.webm",))
    split = load_split(tmp_path, dataset="msvd", split="test")
    assert captions(split) == {"vid1301": ("a man runs", "a man is running")}
    assert split.missing == (Missing("vid1970", "no video named zzit5b_-ukg_5_20 or vid1970"),)


def test_clips_named_by_their_number_need_no_mapping(tmp_path: Path) -> None:
    files = {"captions/sents_val_lc_nopunc.txt": "vid1202 a dog\nvid1201 a cat\n"}
    make(tmp_path, files, videos=("videos/vid1201.mp4", "videos/vid1202.mkv"))
    assert captions(load_split(tmp_path, dataset="msvd", split="val")) == {"vid1201": ("a cat",), "vid1202": ("a dog",)}


def test_numbered_captions_of_named_clips_need_the_mapping(tmp_path: Path) -> None:
    make(tmp_path, {"captions/sents_train_lc_nopunc.txt": "vid1\ta squirrel\n"}, videos=all_videos())
    said = complaint(tmp_path, "msvd")
    assert "vid1: no video named vid1; there is no youtube_mapping.txt with its file name" in said


ALL_DESCRIPTIONS = "# comment\r\n\r\n" + "".join(f"{name} The {vid}'s words.\r\n" for vid, name in NAMES.items())
CORPUS = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n" + "".join(
    f"{video},{start},{end},7,clean,30,English,The {vid}'s words.\n{video},{start},{end},8,clean,30,German,Der {vid}\n"
    for vid, name in NAMES.items()
    for video, start, end in [name.rsplit("_", 2)]
)


@pytest.mark.parametrize("file", [("AllVideoDescriptions.txt", ALL_DESCRIPTIONS), ("video_corpus.csv", CORPUS)])
@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_caption_file_of_msvd_gives_the_same_split(
    tmp_path: Path, file: tuple[str, str], mapped: bool, mark: bytes
) -> None:
    make(tmp_path, {f"captions/{file[0]}": mark + file[1].encode()}, videos=all_videos())
    if mapped:
        make(tmp_path, {"captions/youtube_mapping.txt": mark + MAPPING.replace("\n", "\r\n").encode()})
    for part, vids in PARTS.items():
        split = load_split(tmp_path, dataset="msvd", split=part)
        # Without the mapping a clip goes by its own name.
        assert captions(split) == {vid if mapped else NAMES[vid]: (f"The {vid}'s words.",) for vid in vids}


def test_clips_of_the_corpus_without_a_number_are_not_part_of_msvd(tmp_path: Path) -> None:
    corpus = CORPUS + "aaaaaaaaaaa,1,2,7,clean,30,English,never released\n" + "-4wsuPCjDBc,5,15,7,clean,30,English,\n"
    make(tmp_path, {"video_corpus.csv": corpus, "youtube_mapping.txt": MAPPING}, videos=all_videos())
    split = load_split(tmp_path, dataset="msvd", split="train")
    assert captions(split) == {vid: (f"The {vid}'s words.",) for vid in ("vid1", "vid1200")}
    assert split.missing == ()


def test_a_clip_without_a_caption_or_a_video_is_missing_and_says_why(tmp_path: Path) -> None:
    mapping = "a_0_1 vid3\nb_0_1 vid10\nc_0_1 vid2\n"
    files = {"captions/sents_train_lc_nopunc.txt": "vid2\tone\nvid10\ttwo\n", "captions/youtube_mapping.txt": mapping}
    make(tmp_path, files, videos=("videos/a_0_1.avi", "videos/c_0_1.AVI"))
    split = load_split(tmp_path, dataset="msvd", split="train")
    assert captions(split) == {"vid2": ("one",)}
    assert split.missing == (Missing("vid3", "no caption"), Missing("vid10", "no video named b_0_1 or vid10"))


def test_a_number_beyond_msvd_is_named_with_its_line(tmp_path: Path) -> None:
    make(tmp_path, {"sents_test_lc_nopunc.txt": "vid1301\tfine\nvid1971\tnot fine\n"})
    assert "sents_test_lc_nopunc.txt:2: 'vid1971' is no clip of MSVD" in complaint(tmp_path, "msvd", "test")


@needs_shared
def test_the_real_msvd_has_1180_training_clips_and_99_for_validation() -> None:
    train = load_split(SHARED / "msvd", dataset="msvd", split="train")
    val = load_split(SHARED / "msvd", dataset="msvd", split="val")
    assert (len(train.clips), len(train.missing)) == (1180, 20)
    assert (len(val.clips), len(val.missing)) == (99, 1)
    assert train.clips[0].name == "vid1"
    assert train.clips[0].path.name == "-4wsuPCjDBc_5_15.mp4"
    assert train.clips[0].captions[0] == "a squirrel is eating a peanut in it s shell"
    numbers = [int(clip.name[3:]) for clip in train.clips]
    assert numbers == sorted(numbers)
    # Its 670 test captions are not there, and "all" says so.
    assert len(load_split(SHARED / "msvd", dataset="msvd", split="all").missing) == 21 + 670
    assert "looked for sents_test_lc_nopunc.txt, AllVideoDescriptions.txt" in complaint(SHARED / "msvd", "msvd", "test")


@needs_shared
def test_the_names_of_vid1201_and_vid1301_separate_the_splits_of_all_1970_clips(tmp_path: Path) -> None:
    mapping = [line.split() for line in (SHARED / "msvd/captions/youtube_mapping.txt").read_text().splitlines()]
    names = {int(vid[3:]): name for name, vid in mapping}
    make(tmp_path, {"AllVideoDescriptions.txt": "".join(f"{name} something\n" for name, _ in reversed(mapping))})
    make(tmp_path, {}, videos=tuple(f"videos/{name}.avi" for name, _ in mapping))
    for part, first, last in (("train", 1, 1200), ("val", 1201, 1300), ("test", 1301, 1970)):
        split = load_split(tmp_path, dataset="msvd", split=part)
        assert [clip.name for clip in split.clips] == [names[number] for number in range(first, last + 1)]


# --- MSR-VTT ---


def msrvtt(*videos: tuple[str, str]) -> str:
    listed = [{"video_id": name, "split": part, "category": 3, "id": 0} for name, part in videos]
    sentences = [{"video_id": name, "caption": f"{name} {n}", "sen_id": 0} for n in (1, 2) for name, _ in videos]
    return json.dumps({"info": {}, "videos": listed, "sentences": sentences})


def test_msrvtt_reads_both_official_files_and_calls_validate_val(tmp_path: Path) -> None:
    train_val = msrvtt(("video10", "train"), ("video9", "train"), ("video6513", "validate"))
    test = msrvtt(("video7010", "test"))
    files = {"captions/train_val_videodatainfo.json": train_val, "test_videodatainfo.json": test}
    make(tmp_path, files, videos=("videos/video9.mp4", "videos/video6513.mp4", "videos/test/video7010.mp4"))
    train = load_split(tmp_path, dataset="msrvtt", split="train")
    assert captions(train) == {"video9": ("video9 1", "video9 2")}
    assert train.missing == (Missing("video10", "no video named video10"),)
    assert list(captions(load_split(tmp_path, dataset="msrvtt", split="val"))) == ["video6513"]
    assert list(captions(load_split(tmp_path, dataset="msrvtt", split="test"))) == ["video7010"]
    assert list(captions(load_split(tmp_path, dataset="msrvtt", split="all"))) == ["video9", "video6513", "video7010"]


def test_msrvtt_names_the_category_of_a_video_and_other_data_sets_have_none(tmp_path: Path) -> None:
    names = [f"video{i}" for i in range(7)]
    kinds: list[dict[str, Any]] = [{"category": kind} for kind in (0, 3, 19, 20, -1, "music")]
    videos = [{"video_id": name, "split": "train"} | kind for name, kind in zip(names, [*kinds, {}], strict=True)]
    content = json.dumps({"videos": videos, "sentences": [{"video_id": name, "caption": "a cat"} for name in names]})
    make(tmp_path, {"train_val_videodatainfo.json": content}, videos=tuple(f"{name}.mp4" for name in names))
    found = [clip.category for clip in load_split(tmp_path, dataset="msrvtt", split="train").clips]
    assert found == ["music", "sports", "advertisement", None, None, None, None]
    make(tmp_path / "own", {"captions.json": '{"cat": ["a cat"]}'}, videos=("cat.mp4",))
    assert load_split(tmp_path / "own", dataset="folder", split="all").clips[0].category is None


def test_msrvtt_reads_inside_the_zip_and_needs_only_the_file_of_its_split(tmp_path: Path) -> None:
    make(tmp_path, {}, videos=("video7010.mp4",))
    with zipfile.ZipFile(tmp_path / "test_videodatainfo.json.zip", "w") as archive:
        archive.writestr("readme.txt", "not this")
        archive.writestr("inner/test_videodatainfo.json", msrvtt(("video7010", "test")))
    assert list(captions(load_split(tmp_path, dataset="msrvtt", split="test"))) == ["video7010"]
    assert "no clip of the train split of msrvtt can be used (none is listed)" in complaint(tmp_path, "msrvtt")


@pytest.mark.parametrize(("content", "said"), [
    ('{"videos": []}', "not an MSR-VTT annotation"),
    ("[]", "not an MSR-VTT annotation"),
    ('{"videos": [],\n "sentences": [}', "train_val_videodatainfo.json:2: not JSON (Expecting value, column 16)"),
    ("[" * 100_000, "nested too deeply"),
])
def test_a_broken_annotation_is_named(tmp_path: Path, content: str, said: str) -> None:
    make(tmp_path, {"captions/train_val_videodatainfo.json": content})
    assert said in complaint(tmp_path, "msrvtt")


def test_msrvtt_reads_its_annotation_compressed_by_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(msrvtt(("video9", "train")).encode())
    make(tmp_path, {"train_val_videodatainfo.json.gz": packed}, videos=("video9.mp4",))
    assert list(captions(load_split(tmp_path, dataset="msrvtt", split="train"))) == ["video9"]
    make(tmp_path, {"train_val_videodatainfo.json.gz": packed[:-20]})
    assert "train_val_videodatainfo.json.gz: not a readable gz file (" in complaint(tmp_path, "msrvtt")
    make(tmp_path, {"train_val_videodatainfo.json.gz": b"nothing"})
    assert "info.json.gz: not a readable gz file (Not a gzipped file" in complaint(tmp_path, "msrvtt")


def test_a_broken_zip_is_named(tmp_path: Path) -> None:
    make(tmp_path, {"train_val_videodatainfo.json.zip": b"PK nothing"})
    assert "train_val_videodatainfo.json.zip: not a readable zip file" in complaint(tmp_path, "msrvtt")
    with zipfile.ZipFile(tmp_path / "train_val_videodatainfo.json.zip", "w") as archive:
        archive.writestr("category.txt", "")
    assert "does not contain train_val_videodatainfo.json (files: category.txt)" in complaint(tmp_path, "msrvtt")


@needs_shared
@pytest.mark.parametrize(("split", "listed", "first"), [("train", "6,513", "video0"), ("val", "497", "video6513")])
def test_the_real_msrvtt_annotation_without_videos_counts_its_clips(
    tmp_path: Path, split: str, listed: str, first: str
) -> None:
    packed = "train_val_videodatainfo.json.zip"
    (tmp_path / packed).symlink_to(SHARED / "msrvtt" / packed)
    said = complaint(tmp_path, "msrvtt", split)
    assert said.endswith(f"split of msrvtt can be used ({listed} listed; {first}: no video named {first})")


# --- COCO ---


def coco(images: dict[int, str | None], texts: list[tuple[int, str]]) -> str:
    """An annotation as COCO writes it, with what we do not need."""
    listed: list[dict[str, Any]] = [{"license": 3, "id": number, "height": 480} for number in images]
    for image, name in zip(listed, images.values(), strict=True):
        image |= {"file_name": name} if name else {}
    annotations = [{"image_id": number, "id": 7, "caption": text} for number, text in texts]
    return json.dumps({"info": {}, "licenses": [], "images": listed, "annotations": annotations})


def test_coco_is_split_by_file_and_its_pictures_are_found_by_stem(tmp_path: Path) -> None:
    train = coco(
        {30: "000000000030.jpg", 9: "000000000009.jpg", 25: "000000000025.jpg", 31: "000000000031.jpg"},
        [(9, "A meal. "), (30, "Flowers\n"), (9, "Broccoli."), (25, "Giraffes."), (30, "  ")],
    )
    val = coco({139: "000000000139.jpg"}, [(139, "A room.")])
    files = {"annotations/captions_train2017.json": train, "annotations/captions_val2017.json": val}
    pictures = ("train2017/000000000009.jpg", "train2017/000000000030.AVIF", "train2017/000000000031.jpeg")
    make(tmp_path, files, videos=(*pictures, "val2017/000000000139.webp", "val2017/notes.txt"))
    split = load_split(tmp_path, dataset="coco", split="train")
    assert captions(split) == {"000000000009": ("A meal.", "Broccoli."), "000000000030": ("Flowers",)}
    assert [clip.path for clip in split.clips] == [tmp_path / name for name in pictures[:2]]
    assert split.missing == (
        Missing("000000000025", "no picture named 000000000025 or 25"), Missing("000000000031", "no caption")
    )
    assert captions(load_split(tmp_path, dataset="coco", split="val")) == {"000000000139": ("A room.",)}
    everything = load_split(tmp_path, dataset="coco", split="all")
    assert [clip.name for clip in everything.clips] == ["000000000009", "000000000030", "000000000139"]


def test_a_coco_picture_is_found_by_its_number_alone(tmp_path: Path) -> None:
    # Of 2014's names, which are others, and of a picture that only its captions know.
    content = coco({9: "COCO_train2014_000000000009.jpg", 25: None}, [(9, "a"), (25, "b"), (30, "c")])
    make(tmp_path, {"captions_train2014.json": content}, videos=("9.png", "some/000000000025.jpg", "000000000030.bmp"))
    split = load_split(tmp_path, dataset="coco", split="train")
    assert captions(split) == {"COCO_train2014_000000000009": ("a",), "000000000025": ("b",), "000000000030": ("c",)}
    assert [clip.path.name for clip in split.clips] == ["9.png", "000000000025.jpg", "000000000030.bmp"]


def test_coco_reads_compressed_annotations(tmp_path: Path) -> None:
    train, val = (coco({n: f"{n:012}.jpg"}, [(n, "a cat")]) for n in (1, 2))
    make(tmp_path, {"annotations/captions_train2017.json.gz": gzip.compress(train.encode())})
    with zipfile.ZipFile(tmp_path / "captions_val2017.json.zip", "w") as archive:
        archive.writestr("annotations/captions_val2017.json", val)
    make(tmp_path, {}, videos=("000000000001.jpg", "000000000002.jpg"))
    assert captions(load_split(tmp_path, dataset="coco", split="train")) == {"000000000001": ("a cat",)}
    assert captions(load_split(tmp_path, dataset="coco", split="val")) == {"000000000002": ("a cat",)}


def test_the_two_years_of_coco_are_not_mixed(tmp_path: Path) -> None:
    content = coco({1: "000000000001.jpg"}, [(1, "a cat")])
    make(tmp_path, {"captions_train2017.json": content, "captions_val2014.json": content}, videos=("1.jpg",))
    said = complaint(tmp_path, "coco", "val")
    assert said == f"{tmp_path}: there are no captions of the val split of coco (there are: train, all)"


def test_a_split_the_data_set_lacks_raises_no_split_and_a_broken_one_bad_data(tmp_path: Path) -> None:
    make(tmp_path / "coco", {"captions_train2017.json": coco({1: None}, [(1, "a cat")])}, videos=("1.jpg",))
    make(tmp_path / "flickr8k", {"captions.txt": "image,caption\n1.jpg,a cat\n"}, videos=("1.jpg",))
    make(tmp_path / "msrvtt", {"train_val_videodatainfo.json": msrvtt(("video1", "train"))}, videos=("video1.mp4",))
    make(tmp_path / "folder", {"captions.csv": "clip,caption,split\n1,a cat,train\n"}, videos=("1.mp4",))
    for dataset in ("coco", "flickr8k", "msrvtt", "folder"):
        assert len(load_split(tmp_path / dataset, dataset=dataset, split="train").clips) == 1
        with pytest.raises(NoSplit):
            load_split(tmp_path / dataset, dataset=dataset, split="val")
    make(tmp_path / "coco", {"captions_val2017.json": "{"})
    with pytest.raises(BadData) as broken:
        load_split(tmp_path / "coco", dataset="coco", split="val")
    assert not isinstance(broken.value, NoSplit)


@pytest.mark.parametrize(("content", "said"), [
    ('{"images": []}', "KeyError('annotations')"),
    ('{"images": [{"file_name": "a.jpg"}], "annotations": []}', "KeyError('id')"),
    ('{"images": [{"id": "x"}], "annotations": []}', "ValueError("),
    ('{"images": [], "annotations": [{"image_id": 1, "caption": 3}]}', "AttributeError("),
    ("[]", "TypeError("),
])
def test_an_error_in_a_coco_annotation_shows_the_expected_form(tmp_path: Path, content: str, said: str) -> None:
    make(tmp_path, {"captions_train2017.json": content})
    form = "not a COCO caption annotation, which has images[id, file_name] and annotations[image_id, caption]"
    assert f"captions_train2017.json: {form} ({said}" in complaint(tmp_path, "coco")


# --- Flickr8k ---

TOKENS = """\
1000268201_693b08cb0e.jpg#0\tA child in a pink dress .
1000268201_693b08cb0e.jpg#1\tA girl going into a wooden building, "alone" .
1001773457_577c3a7d70.jpg#0\tA black dog and a spotted dog
1002674143_1b742ab4b8.jpg#0\tA little girl covered in paint
1003163366_44323f5815.jpg#0\tA man lies on a bench
2258277193_586949ec62.jpg.1#0\tA picture the set does not have
"""
TABLE = """\
image,caption
1000268201_693b08cb0e.jpg,A child in a pink dress .
1000268201_693b08cb0e.jpg,"A girl going into a wooden building, ""alone"" ."
1001773457_577c3a7d70.jpg,A black dog and a spotted dog
1002674143_1b742ab4b8.jpg,A little girl covered in paint
1003163366_44323f5815.jpg,A man lies on a bench
2258277193_586949ec62.jpg.1,A picture the set does not have
"""
FLICKR8K = {
    "1000268201_693b08cb0e": ("A child in a pink dress .", 'A girl going into a wooden building, "alone" .'),
    "1001773457_577c3a7d70": ("A black dog and a spotted dog",),
    "1002674143_1b742ab4b8": ("A little girl covered in paint",),
    "1003163366_44323f5815": ("A man lies on a bench",),
}


@pytest.mark.parametrize("place", ["Images/", "Flicker8k_Dataset/", ""])
@pytest.mark.parametrize("file", [
    {"Flickr8k.token.txt": TOKENS}, {"Flickr8k_text/Flickr8k.token.txt": TOKENS.replace("\n", "\r\n")},
    {"captions.txt": TABLE}, {"captions.txt": TABLE.replace("\n", "\r\n")},
])
def test_both_caption_files_of_flickr8k_give_the_same_clips(tmp_path: Path, file: dict[str, str], place: str) -> None:
    make(tmp_path, dict(file), videos=tuple(f"{place}{name}.jpg" for name in FLICKR8K))
    split = load_split(tmp_path, dataset="flickr8k", split="train")
    assert captions(split) == FLICKR8K
    odd = "2258277193_586949ec62.jpg.1"
    assert split.missing == (Missing(odd, f"no picture named {odd}"),)


def test_flickr8k_is_split_by_its_lists_and_unlisted_pictures_are_in_no_split(tmp_path: Path) -> None:
    names = list(FLICKR8K)
    lists = {"trainImages": names[0], "devImages": names[1], "testImages": names[2]}
    make(tmp_path, {f"Flickr_8k.{part}.txt": f"{name}.jpg\n" for part, name in lists.items()})
    make(tmp_path, {"Flickr8k.token.txt": TOKENS}, videos=tuple(f"Images/{name}.png" for name in names))
    for part, name in zip(("train", "val", "test"), names, strict=False):
        assert captions(load_split(tmp_path, dataset="flickr8k", split=part)) == {name: FLICKR8K[name]}
    assert captions(load_split(tmp_path, dataset="flickr8k", split="all")) == FLICKR8K


def test_without_a_train_list_the_unlisted_pictures_of_flickr8k_are_the_train_split(tmp_path: Path) -> None:
    names = list(FLICKR8K)
    make(tmp_path, {"Flickr_8k.testImages.txt": f"{names[0]}.jpg\n", "Flickr8k.token.txt": TOKENS})
    make(tmp_path, {}, videos=tuple(f"{name}.jpg" for name in names))
    assert list(captions(load_split(tmp_path, dataset="flickr8k", split="train"))) == names[1:]
    assert list(captions(load_split(tmp_path, dataset="flickr8k", split="test"))) == names[:1]
    said = complaint(tmp_path, "flickr8k", "val")
    assert said == f"{tmp_path}: there is no Flickr_8k.devImages.txt for the val split of flickr8k"


@pytest.mark.parametrize(("name", "content", "said"), [
    ("Flickr8k.token.txt", "a.jpg#0\tfine\n\na.jpg not\n", "token.txt:3: not NAME.jpg#NUMBER, a tab and the caption"),
    ("Flickr8k.token.txt", "a.jpg\tno number\n", "token.txt:1: not NAME.jpg#NUMBER, a tab and the caption"),
    ("captions.txt", "image|caption\na.jpg|x\n", "txt:1: the columns are not image,caption (columns: image|caption)"),
    ("captions.txt", "image,caption\na.jpg,x\nnothing\n", "captions.txt:3: not NAME.jpg, a comma and the caption"),
])
def test_a_malformed_line_of_flickr8k_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    make(tmp_path, {name: content}, videos=("a.jpg",))
    assert said in complaint(tmp_path, "flickr8k")


@needs_pictures
def test_real_captions_and_pictures_laid_out_officially_are_read_back(tmp_path: Path) -> None:
    texts: dict[str, list[str]] = json.loads(gzip.decompress((PRETRAIN / "flickr8k/captions.json.gz").read_bytes()))
    tokens = "".join(f"{name}.jpg#{n}\t{text}\n" for name in texts for n, text in enumerate(texts[name]))
    make(tmp_path, {"Flickr8k.token.txt": tokens})
    (tmp_path / "Images").symlink_to(PRETRAIN / "flickr8k/images")
    split = load_split(tmp_path, dataset="flickr8k", split="train")
    assert (len(split.clips), split.missing) == (8091, ())
    assert captions(split) == {name: tuple(text.strip() for text in texts[name]) for name in texts}

    packed = (PRETRAIN / "coco/captions_subset.json.gz").read_bytes()
    make(tmp_path, {"annotations/captions_train2017.json.gz": packed}, videos=("train2017/000000000009.jpg",))
    split = load_split(tmp_path, dataset="coco", split="train")
    assert (len(split.clips), len(split.missing)) == (1, 75_425)
    assert all(clip.reason.startswith(f"no picture named {clip.name} or ") for clip in split.missing)


# --- Your own folder ---

OWN = {"-cat": ("a cat sits", "the cat, sitting"), "ein Hündchen": ("un petit chien",)}
OWN_PAIRS = [(clip, text) for clip, texts in OWN.items() for text in texts]
OWN_FORMS = {
    "captions.json": json.dumps({clip: list(texts) for clip, texts in OWN.items()}),
    "captions/captions.json": json.dumps([{"clip": f"{clip}.mp4", "caption": text} for clip, text in OWN_PAIRS]),
    "captions.jsonl": "".join(json.dumps({"clip": clip, "caption": text}) + "\n\n" for clip, text in OWN_PAIRS),
    "captions/captions.csv": "clip,caption\n" + "".join(f'{clip},"{text}"\n' for clip, text in OWN_PAIRS),
}


@pytest.mark.parametrize("file", OWN_FORMS)
@pytest.mark.parametrize("crlf", [False, True])
def test_every_caption_format_of_an_own_folder_gives_the_same_clips(tmp_path: Path, file: str, crlf: bool) -> None:
    text = "\ufeff" + OWN_FORMS[file].replace("\n", "\r\n") if crlf else OWN_FORMS[file]
    # The file system's name is in decomposed form, as some write it.
    make(tmp_path, {file: text}, videos=("videos/-cat.mov", "videos/ein Hu\u0308ndchen.MP4", "videos/notes.txt"))
    split = load_split(tmp_path, dataset="folder", split="all")
    assert captions(split) == OWN
    assert split.missing == ()


@pytest.mark.parametrize("inside", ["\x00", "\x1b", "\u202e", "\ud800"])
def test_characters_that_no_word_can_have_are_spaces_in_captions(tmp_path: Path, inside: str) -> None:
    texts = [f"a {inside}dog{inside}runs", inside]
    make(tmp_path, {"captions.json": json.dumps({"a": texts})}, videos=("a.mp4",))
    (clip,) = load_split(tmp_path, dataset="folder", split="all").clips
    assert clip.captions == ("a  dog runs",)
    words = Vocabulary.from_captions([tokenise(text) for text in clip.captions], min_count=1)
    words.save(tmp_path / "words.txt")
    assert Vocabulary.load(tmp_path / "words.txt").words[4:] == ("a", "dog", "runs")


def test_the_captions_may_name_their_split(tmp_path: Path) -> None:
    csv = "split,clip,caption\ntrain,a,one\nvalidation,b,two\n test ,c,three\ntrain,a,four\n"
    make(tmp_path, {"captions.csv": csv}, videos=("a.mp4", "b.mp4", "c.mp4"))
    assert captions(load_split(tmp_path, dataset="folder", split="train")) == {"a": ("one", "four")}
    assert captions(load_split(tmp_path, dataset="folder", split="val")) == {"b": ("two",)}
    assert captions(load_split(tmp_path, dataset="folder", split="test")) == {"c": ("three",)}


def test_captions_without_a_split_are_split_by_a_hash_of_the_name(tmp_path: Path) -> None:
    names = [f"clip{n}" for n in range(500)]
    make(tmp_path, {"captions.json": json.dumps({name: ["x"] for name in names})})
    make(tmp_path, {}, videos=tuple(f"{name}.mp4" for name in names))
    train, val = (captions(load_split(tmp_path, dataset="folder", split=part)) for part in ("train", "val"))
    assert sorted([*train, *val]) == sorted(names)
    assert 30 <= len(val) <= 70  # 50 ± 3 standard deviations of the binomial with p = 0.1
    # Fewer clips: each stays in its split.
    few = names[:100]
    make(tmp_path, {"captions.json": json.dumps({name: ["x"] for name in few})})
    assert set(captions(load_split(tmp_path, dataset="folder", split="val"))) == {name for name in few if name in val}


def test_two_clips_are_enough_for_train_and_val(tmp_path: Path) -> None:
    make(tmp_path, {"captions.json": '{"a": "one", "b": "two"}'}, videos=("a.mp4", "b.mp4"))
    train, val = (captions(load_split(tmp_path, dataset="folder", split=part)) for part in ("train", "val"))
    assert len(train) == len(val) == 1
    said = complaint(tmp_path, "folder", "test")
    assert said == f"{tmp_path}/captions.json: no clip of the test split (there are: train, val, all)"


def test_two_files_of_one_stem_are_chosen_by_name_then_by_order(tmp_path: Path) -> None:
    make(tmp_path, {"captions.json": '{"cat": "x"}'}, videos=("cat.webm", "cat.avi", "cat.mp4"))
    assert load_split(tmp_path, dataset="folder", split="all").clips[0].path.name == "cat.avi"
    make(tmp_path, {"captions.json": '{"cat.mp4": "x"}'})
    assert load_split(tmp_path, dataset="folder", split="all").clips[0].path.name == "cat.mp4"
    make(tmp_path, {"captions.json": '{"cat.mp4": "x", "cat.webm": "y"}'})
    said = complaint(tmp_path, "folder", "all")
    assert "caption 2: cat.mp4 and cat.webm differ only in their suffix; rename one" in said


SPLIT_CSV = "clip,caption,split\na,x,train\n"


@pytest.mark.parametrize(("name", "content", "said"), [
    ("captions.json", '{"a": ["x",\nx]}', "captions.json:2: not JSON (Expecting value, column 1)"),
    ("captions.json", '{"a": [3]}', "captions.json: caption 1: clip and caption"),
    ("captions.json", '{"a": ["x"], "b": [], "a": ["y"]}', "captions.json: one object has 'a' twice; possible: once"),
    ("captions.jsonl", '{"clip": "a", "caption": "x", "caption": "y"}', ": one object has 'caption' twice; possible"),
    ("captions.json", '["a"]', "captions.json: caption 1: not an object with clip and caption"),
    ("captions.json", '"a"', 'captions.json: neither {"clip": ["caption", …]} nor a list'),
    ("captions.jsonl", '{"clip": "a", "caption": "x"}\n\n{"clip": "a" "x"}', "captions.jsonl:3: not JSON"),
    ("captions.jsonl", '{"clip": "a", "text": "x"}', "captions.jsonl:1: clip and caption"),
    ("captions.csv", "clip;caption\na;x\n", "captions.csv:1: no column clip, caption (columns: clip;caption)"),
    ("captions.csv", "", "captions.csv:1: no column clip, caption (columns: none)"),
    ("captions.csv", "clip,caption\na,x\na,x,y\n", "captions.csv:3: not as many columns as in the first line"),
    ("captions.csv", "clip,caption\na,x\na\n", "captions.csv:3: not as many columns as in the first line"),
    ("captions.csv", 'clip,caption\na,x\na,"x\n', "captions.csv:3: not CSV (unexpected end of data)"),
    ("captions.csv", SPLIT_CSV + "b,x,trian\n", ":3: unknown split 'trian' (known: train, val, test)"),
    ("captions.csv", SPLIT_CSV + "a,y,val\n", "captions.csv:3: clip 'a' is in two splits, train and val"),
    ("captions.csv", "clip,caption\nb,x\n", "split of folder can be used (1 listed; b: no video named b)"),
    ("captions.json", '{"a": []}', "(1 listed; a: no caption)"),
    ("captions.json", '{"a": ["?!", " ... "]}', "(1 listed; a: no caption with a word)"),
    ("captions.csv", "clip,caption\na,\n", "(1 listed; a: no caption)"),
])
def test_a_malformed_caption_file_is_named_with_its_line(tmp_path: Path, name: str, content: str, said: str) -> None:
    make(tmp_path, {name: content}, videos=("videos/a.mp4",))
    assert said in complaint(tmp_path, "folder", "all")


def test_a_trailing_comma_is_reported_at_the_comma_or_right_after_it(tmp_path: Path) -> None:
    # Python 3.13 names the comma's place, older versions the bracket's.
    make(tmp_path, {"captions.json": '{"a": ["x",\n]}'}, videos=("videos/a.mp4",))
    assert complaint(tmp_path, "folder", "all").removeprefix(f"{tmp_path}/") in (
        "captions.json:1: not JSON (Illegal trailing comma before end of array, column 11)",
        "captions.json:2: not JSON (Expecting value, column 1)",
    )


# --- Every data set ---


def test_a_caption_file_that_is_not_utf8_is_named_with_line_and_byte(tmp_path: Path) -> None:
    make(tmp_path, {"captions.csv": "clip,caption\na,fine\na,un café\n".encode("latin-1")}, videos=("a.mp4",))
    # "clip,caption\n" has 13 bytes, "a,fine\n" 7, "a,un caf" 8.
    assert complaint(tmp_path, "folder") == (
        f"{tmp_path}/captions.csv:3: byte 28 (0xe9) is not UTF-8; save the file as UTF-8"
    )


def test_errors_about_unknown_or_absent_data_list_what_is_possible(tmp_path: Path) -> None:
    known = "known: msvd, msrvtt, coco, flickr8k, folder"
    assert complaint(tmp_path, "mscoco") == f"unknown data set 'mscoco' ({known})"
    assert complaint(tmp_path, "msvd", "dev") == "unknown split 'dev' (known: train, val, test, all)"
    assert complaint(tmp_path / "nowhere", "msvd") == f"{tmp_path}/nowhere: no such folder"
    for dataset, sought in {
        "msvd": "sents_train_lc_nopunc.txt, AllVideoDescriptions.txt, video_corpus.csv",
        "msrvtt": "train_val_videodatainfo.json, test_videodatainfo.json (or the same with .gz or .zip)",
        "coco": "captions_train2017.json, captions_val2017.json, captions_train2014.json, captions_val2014.json "
        "(or the same with .gz or .zip)",
        "flickr8k": "Flickr8k.token.txt, captions.txt",
        "folder": "captions.json, captions.jsonl, captions.csv",
    }.items():
        places = "captions/, annotations/, Flickr8k_text/ or the folder itself"
        assert complaint(tmp_path, dataset) == f"{tmp_path}: no caption file found in {places}; looked for {sought}"


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", {}, videos=("a.mp4",))
    make(tmp_path / "data", {"captions.json": '{"a": "one"}'})
    (tmp_path / "data/videos").mkdir()
    (tmp_path / "data/videos/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "data/videos")
    (tmp_path / "elsewhere/b.mp4").symlink_to(tmp_path / "gone.mp4")
    split = load_split(tmp_path / "data", dataset="folder", split="all")
    assert [clip.path for clip in split.clips] == [tmp_path / "data/videos/more/a.mp4"]


# --- Several data folders ---


def test_data_folders_are_of_the_data_set_named_before_them_or_of_the_default(tmp_path: Path) -> None:
    coco_folder, own, odd = (tmp_path / name for name in ("coco", "own", "x=y"))
    for folder in (coco_folder, own, odd):
        folder.mkdir()
    assert data_folders([str(own)], "msvd") == (DataFolder("msvd", own),)
    found = data_folders([f"coco={coco_folder}", f"folder={own}", str(odd), f"msrvtt={odd}"], "msvd")
    assert found == (
        DataFolder("coco", coco_folder), DataFolder("folder", own), DataFolder("msvd", odd), DataFolder("msrvtt", odd)
    )
    assert data_folders([f"coco={coco_folder}"], None) == (DataFolder("coco", coco_folder),)


def test_a_wrong_data_folder_argument_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for texts, said in {
        ("cocoa=data",): "cocoa=data: unknown data set 'cocoa' (known: msvd, msrvtt, coco, flickr8k, folder)",
        ("=data",): "=data: unknown data set '' (known: msvd, msrvtt, coco, flickr8k, folder)",
        ("coco=nowhere",): "nowhere: no such folder",
        ("nowhere",): "nowhere: no such folder",
        ("./a=b",): "./a=b: no such folder",
        ("coco=",): "coco=: no such folder",
        ("coco=data", "data", "coco=./data"): "coco=./data: named twice",
    }.items():
        with pytest.raises(BadData) as error:
            data_folders(texts, "msvd")
        assert str(error.value) == said
    with pytest.raises(BadData, match=r"data: which data set\? Name it, as in msvd=DIR"):
        data_folders(["data"], None)


def test_two_caption_files_in_an_own_folder_are_an_error(tmp_path: Path) -> None:
    make(tmp_path, {"captions.json": "{}", "captions/captions.csv": ""})
    assert "captions.json and captions.csv both exist; keep one" in complaint(tmp_path, "folder")


# --- Restricting a split ---


def test_a_list_of_clips_restricts_a_split_and_names_what_it_does_not_know(tmp_path: Path) -> None:
    clips = tuple(Clip(f"vid{n}", Path(f"{n}.mp4"), ("a cat",)) for n in range(4))
    split = Split("msvd", "val", clips, (Missing("vid7", "no video named vid7"), Missing("vid8", "no caption")))
    some = tmp_path / "some.txt"
    for mark in ("", "\ufeff"):
        some.write_text(f"{mark}vid3\n\n vid1 \nvid7\n", encoding="utf-8")
        chosen = only(split, some)
        assert [clip.name for clip in chosen.clips] == ["vid1", "vid3"]
        assert [clip.name for clip in chosen.missing] == ["vid7"]
    for text, said in (
        ("vid1\nvid9\n", ":2: 'vid9' is not a clip of the val split of msvd"),
        ("vid7\n", ": names no clip that can be used; expected one clip name per line"),
        ("", ": names no clip that can be used; expected one clip name per line"),
    ):
        some.write_text(text)
        with pytest.raises(BadData) as error:
            only(split, some)
        assert str(error.value) == f"{some}{said}"
    with pytest.raises(BadData, match=r"none.txt: cannot be read \(No such file or directory\)$"):
        only(split, tmp_path / "none.txt")


def test_a_run_folder_names_the_clips_it_was_validated_on(tmp_path: Path) -> None:
    split = Split("folder", "train", tuple(Clip(name, tmp_path / f"{name}.mp4", ("a cat",)) for name in "abc"), ())
    (tmp_path / "clips.json").write_text('{"train": {"used": ["a"]}, "val": {"used": ["b", "c"]}}')
    assert [clip.name for clip in only(split, tmp_path).clips] == ["b", "c"]
    (tmp_path / "clips.json").write_text("{}")
    with pytest.raises(BadData, match=r"its clips\.json does not name the clips it was validated on$"):
        only(split, tmp_path)


# --- Files without an end ---


def test_captions_without_an_end_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picknet.data.reading.MAX_BYTES", 1000)
    text = '{"videos": [], "sentences": []}'.ljust(1001)
    said = "is too large or has no end; possible: at most 1,000 bytes of text"
    name = "train_val_videodatainfo.json"
    with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    assert complaint(tmp_path, "msrvtt") == f"{tmp_path}/{name}.zip: {said}"
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    assert complaint(tmp_path, "msrvtt") == f"{tmp_path}/{name}.gz: {said}"
    (tmp_path / name).write_text(text)
    assert complaint(tmp_path, "msrvtt") == f"{tmp_path}/{name}: {said}"
    (tmp_path / name).write_text(text[:1000])
    assert "none is listed" in complaint(tmp_path, "msrvtt")
    with pytest.raises(BadData, match=rf"^/dev/zero: {said}$"):
        only(Split("msrvtt", "train", (), ()), "/dev/zero")


def test_a_device_in_the_place_of_captions_is_no_caption_file(tmp_path: Path) -> None:
    (tmp_path / "captions.json").symlink_to("/dev/zero")
    assert complaint(tmp_path, "folder").startswith(f"{tmp_path}: no caption file found in captions/, ")


@pytest.mark.parametrize(
    ("content", "said"), [("1" * 5000, r"Exceeds the limit \(4300"), ('{"a":' * 100_000, "nested too deeply")]
)
def test_json_that_python_cannot_hold_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    make(tmp_path, {"captions.json": content})
    with pytest.raises(BadData, match=rf"^{tmp_path}/captions.json:1: not a caption file \({said}[^\n]*$"):
        load_split(tmp_path, dataset="folder", split="train")


def test_clips_to_validate_on_of_deep_nesting_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "clips.json").write_text("[" * 100_000)
    with pytest.raises(BadData, match=rf"^{tmp_path}: its clips.json does not name the clips it was validated on$"):
        only(Split("msrvtt", "train", (), ()), tmp_path)

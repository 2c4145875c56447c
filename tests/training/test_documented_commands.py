"""The training commands of the documents run, one after the other, on tiny data with a tiny network."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from clips import picture, write_clip
from PIL import Image

from picknet.cli import main
from picknet.config import STAGES, Config, load_config

ROOT = Path(__file__).resolve().parents[2]
CAPTIONS = ("a box blinks", "the box is wide", "a wide thing")


def training_commands(document: str) -> list[list[str]]:
    """The arguments of every `picknet train` and `picknet export` in a document, in order."""
    text = (ROOT / document).read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```(?:console|bash|sh)\n(.*?)^```$", text, re.M | re.S)).replace("\\\n", "")
    lines = [shlex.split(line, comments=True) for line in re.findall(r"^\$ (.*)$", code, re.M)]
    return [words[1:] for words in lines if words[:2] in (["picknet", "train"], ["picknet", "export"])]


def tiny(config: Config) -> Config:
    """The same stages, parts and options of a config, as small as possible."""
    model, supervision = config.model, config.supervision
    stages = {name: replace(getattr(config, name), epochs=min(1, getattr(config, name).epochs)) for name in STAGES}
    stages["supervision"] = replace(
        stages["supervision"],
        max_frames=min(supervision.max_frames, 4),
        frames_per_batch=min(supervision.frames_per_batch, 8),
    )
    films = min(config.reinforcement.films, 2)
    stages["reinforcement"] = replace(stages["reinforcement"], films=films, film_frames=16)
    return replace(
        config,
        video=replace(config.video, num_frames=4),
        text=replace(config.text, min_count=1, max_words=4),
        model=replace(
            model,
            cnn="efficientnet_lite0",
            image_size=68,  # crops of 64 give a feature map of 2 × 2
            grid=min(model.grid, 2),
            embedding_size=8,
            state_size=8,
            picker_hidden=8,
            attention_heads=min(model.attention_heads, 2),
            attention_hidden=8,
        ),
        reward=replace(config.reward, min_picks=1),
        **stages,
    )


def make_data(folder: Path) -> None:
    """A tiny data folder in each of the formats that the documents use."""
    for path in ("MSVD/videos", "MSRVTT/videos", "COCO/annotations", "COCO/train2017", "FLICKR8K", "MYCLIPS"):
        (folder / path).mkdir(parents=True)
    clip = write_clip(folder / "clip.mp4", num_frames=4)
    for split, numbers in {"train": (1, 2, 3, 4), "val": (1201,), "test": (1301,)}.items():
        lines = [f"vid{number}\t{caption}" for number in numbers for caption in CAPTIONS]
        (folder / "MSVD" / f"sents_{split}_lc_nopunc.txt").write_text("\n".join(lines) + "\n")
        for number in numbers:
            shutil.copy(clip, folder / "MSVD" / "videos" / f"vid{number}.mp4")
    (folder / "DATA").symlink_to("MSVD")
    videos = [{"video_id": f"video{i}", "split": "train" if i else "validate", "category": 3} for i in range(3)]
    sentences = [{"video_id": f"video{i}", "caption": caption} for i in range(3) for caption in CAPTIONS]
    content = json.dumps({"videos": videos, "sentences": sentences})
    (folder / "MSRVTT" / "train_val_videodatainfo.json").write_text(content)
    for i in range(3):
        shutil.copy(clip, folder / "MSRVTT" / "videos" / f"video{i}.mp4")
    images = [{"id": i, "file_name": f"{i:012}.png"} for i in (1, 2)]
    annotations = [{"image_id": i, "caption": caption} for i in (1, 2) for caption in CAPTIONS]
    content = json.dumps({"images": images, "annotations": annotations})
    (folder / "COCO" / "annotations" / "captions_train2017.json").write_text(content)
    for i in (1, 2):
        Image.fromarray(picture(i)).save(folder / "COCO" / "train2017" / f"{i:012}.png")
        Image.fromarray(picture(i)).save(folder / "FLICKR8K" / f"{i}.png")
    (folder / "FLICKR8K" / "captions.txt").write_text("image,caption\n1.png,a still box\n2.png,a box stands\n")
    splits = ("train", "train", "val")
    rows = [{"clip": f"clip{i}", "caption": "a crimson box", "split": split} for i, split in enumerate(splits)]
    (folder / "MYCLIPS" / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for i in range(3):
        shutil.copy(clip, folder / "MYCLIPS" / f"clip{i}.mp4")
    (folder / "facts.json").write_text('{"licence": "Apache-2.0"}')


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit:
        main(list(arguments))
    return int(exit.value.code or 0)


@pytest.mark.parametrize("document", ["README.md", "docs/training.md"])
def test_the_training_commands_of_a_document_run_in_order(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_data(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("picknet.training.plan.load_config", lambda path, settings: tiny(load_config(path, settings)))
    monkeypatch.setattr("picknet.training.export._export_graphs", lambda *_: None)
    # A tiny model takes the place of the one in the package.
    code = run("train", "configs/msvd.toml", "--data", "MYCLIPS", "--dataset", "folder", "--out", "runs/shipped")
    assert code == 0, capsys.readouterr().err
    shutil.copytree("runs/shipped/model", "shipped/msvd")
    monkeypatch.setattr("picknet.model.folder.SHIPPED", tmp_path / "shipped")

    commands = training_commands(document)
    assert len(commands) >= 2
    for command in commands:
        code = run(*command)
        assert code == 0, f"{shlex.join(command)}: {capsys.readouterr().err}"


def test_the_guide_for_research_shows_only_trainings_that_are_run_here() -> None:
    run_here = [*training_commands("README.md"), *training_commands("docs/training.md")]
    shown = training_commands("docs/research.md")
    assert shown
    assert all(command in run_here for command in shown)

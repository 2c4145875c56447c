"""Writes docs/performance.md, and its pictures, from what the other benchmarks kept in benchmarks/results/.

    python benchmarks/performance.py
"""

import json
from typing import Any

from timing import RESULTS, ROOT

from picknet.charts import COLOURS, GREEN, Line, Panel, line_chart
from picknet.evaluation import markdown_table
from picknet.files import write_text, written_whole

DOCS = ROOT / "docs"
INTRODUCTION = """# What it costs

Written by `python benchmarks/performance.py` from the JSON files in `benchmarks/results/`; `make bench` measures anew
and writes it again. Things that are compared were run in turn; a ratio is the median over the rounds, with its
quartiles in brackets. CPU time is that of all threads.

Decoding is the measure: whatever is done with a video, it has to be decoded. A caption decodes only what its 30 samples
depend on, as `docs/architecture.md` tells, so it can cost less than decoding alone. What it adds does not depend on the
size of the picture: a pass of the CNN for each pick, the policy for each sample, and some ten steps of the decoder for
a beam. The smaller the picture, the more these weigh against decoding.
"""
Facts = dict[str, Any]


def read(name: str) -> Facts | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def told(facts: Facts) -> str:
    """Where the numbers are from."""
    machine = facts["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "av", "openvino", "torch") if name in machine)
    load = f", load {machine['load']:.1f} at the end" if machine["load"] is not None else ""
    where = f"{machine['processor']}, {machine['cores']} cores{load}; {versions}"
    busy = machine["load"] is not None and machine["load"] > machine["cores"] + 1
    warning = " **The machine was busy with other work: the clock says little, CPU time more.**" if busy else ""
    return f"`{facts['command']}` at {facts['commit']}, on {where}.{warning}"


def spread(found: Facts, form: str = ".2f", unit: str = "") -> str:
    return f"{found['median']:{form}}{unit} ({found['low']:{form}} to {found['high']:{form}})"


def goals(captioning: Facts | None, starting: Facts | None, growing: Facts | None) -> str:
    cells = [["What", "At most", "Wall", "CPU"]]

    def add(name: str, bound: str, found: Facts | None) -> None:
        columns = (spread(found[kind], unit="×") if found and kind in found else "–" for kind in ("wall", "cpu"))
        cells.append([name, bound, *columns])

    for clip in captioning["clips"] if captioning else ():
        against, size = clip["caption against"], clip["size"]
        add(f"caption against decoding alone, {size}", "1.25×", against["decode alone"])
        add(f"against all 30 frames, {size}", "0.45×", against["all 30 frames"])
        add(f"against OpenCV + PyTorch on 30, {size}", "0.15×", against.get("OpenCV loop + PyTorch CNN on 30"))
    if growing:
        hour = growing["lengths"][-1]
        add("one-hour file against decoding it all", "0.03×", hour["caption against decoding it all"])
        if "files" in growing:
            files = growing["files"]
            name = f"{files['files']} clips, two processes against half of one"
            add(name, "1.1×", {"wall": files["two processes against half of one"]})
    for name, bound in (("4K clip", 500), ("one-hour file", 300)) if starting else ():
        found = spread(starting["memory_mb"][name], ".0f", " MB")
        cells.append([f"peak memory above import, {name}", f"{bound} MB", found, "–"])
    for name, bound in (("picknet --help", 300), ("import picknet", 100), ("first caption", 1500)) if starting else ():
        columns = (spread(starting["times"][name][kind], ".0f", " ms") for kind in ("wall_ms", "cpu_ms"))
        cells.append([name, f"{bound} ms", *columns])
    return markdown_table(cells)


def table(found: Facts) -> str:
    """Milliseconds of several things."""
    cells = [["What", "Wall, ms", "CPU, ms"]]
    for name, measured in found.items():
        columns = (spread(measured[kind], ".1f") if kind in measured else "–" for kind in ("wall_ms", "cpu_ms"))
        cells.append([name, *columns])
    return markdown_table(cells)


def agreed(agreement: Facts) -> str:
    """The fast way against the plain one, which decodes everything and computes in 32 bits."""
    num_clips, others = agreement["clips"], agreement["other words"]
    cells = [["Clip", "As it is", "Everything decoded, CNN in 32 bits"]]
    cells += [[each["clip"], each["fast"], each["plain"]] for each in others]
    head = (
        f"Against decoding every frame and computing everything in 32 bits, over {num_clips} clips: "
        f"{agreement['other picks']} have other picks, {len(others)} other words."
    )
    return f"{head}\n\n{markdown_table(cells)}"


def draw(name: str, panel: Panel) -> str:
    chart = line_chart([panel])
    write_text(DOCS / f"{name}.svg", chart.svg())
    with written_whole(DOCS / f"{name}.png") as temporary:
        chart.image().save(temporary)
    return f"![{panel.title}]({name}.svg)"


def growth(growing: Facts) -> list[str]:
    lengths = [
        (each["seconds"] / 60, each["caption against decoding it all"]["cpu"]["median"]) for each in growing["lengths"]
    ]
    sizes = {
        key: [(int(each["size"].split("x")[1]), each["times"][key]["cpu_ms"]["median"]) for each in growing["sizes"]]
        for key in ("caption", "decode")
    }
    picks = [(float(k), measured["cpu_ms"]["median"]) for k, measured in growing["picks"].items()]
    long = Panel(
        "A long file costs a small part of decoding it",
        "CPU time of a caption, over that of decoding all of the file, 720p",
        "minutes",
        [Line("caption", [lengths], GREEN)],
        levels=[("decoding it all", 1.0)],
    )
    large = Panel(
        "The larger the picture, the more decoding is all that counts",
        "CPU milliseconds, ten seconds of video",
        "lines of a picture",
        [Line("caption", [sizes["caption"]], GREEN), Line("decoding it all", [sizes["decode"]], COLOURS[0])],
    )
    many = Panel(
        "Every pick is one pass of the CNN",
        "CPU milliseconds of a caption, ten seconds of 640×360",
        "picks",
        [Line("caption", [picks], GREEN)],
    )
    panels = {"performance-lengths": long, "performance-sizes": large, "performance-picks": many}
    return [draw(name, panel) for name, panel in panels.items()]


def main() -> None:
    captioning, starting, growing = read("captioning"), read("starting"), read("growing")
    parts = [INTRODUCTION, "## Goals\n", goals(captioning, starting, growing), ""]
    if captioning:
        parts += ["## A caption, warm\n", told(captioning), ""]
        for clip in captioning["clips"]:
            picks = clip["picks"]
            parts += [f"### Ten seconds of {clip['size']}, {picks} picks\n", table(clip["times"]), ""]
            parts += ["Stage by stage, each by itself:\n", table(clip["stages"]), ""]
    if starting:
        parts += ["## Starting\n", told(starting), "", table(starting["times"]), ""]
    if growing:
        parts += ["## How it grows\n", told(growing), "", *growth(growing), ""]
    if agreement := read("agreement"):
        parts += ["## Does speed change what is said?\n", told(agreement), "", agreed(agreement), ""]
    write_text(DOCS / "performance.md", "\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()

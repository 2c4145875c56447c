"""Writes docs/performance.md, and its pictures, from what the other benchmarks kept in benchmarks/results/.

    python benchmarks/performance.py
"""

import json
from typing import Any

from timing import RESULTS, ROOT

from picknet.files import write_text
from picknet.study.charts import GREEN, INK, Line, Panel, line_chart, save
from picknet.study.evaluation import markdown_table

DOCS = ROOT / "docs"
INTRODUCTION = """# What it costs

Written by `python benchmarks/performance.py` from the JSON files in `benchmarks/results/`; `make bench` measures anew
and writes it again. Things that are compared were run in turn; a ratio is the median over the rounds, with its
quartiles in brackets. CPU time is that of all threads.

Decoding is the measure: whatever is done with a video, it has to be decoded. A caption decodes only what its picks
depend on where the picker need not look, and what its 30 samples depend on where it does, as `docs/architecture.md`
tells; so it can cost less than decoding alone. What it adds does not depend on the size of the picture: a pass of the
CNN for each pick, the encoder, and some ten steps of the decoder for a beam. The smaller the picture, the more these
weigh against decoding. Glances and the policy cost what the table says only where every sample is asked about; the
shipped policy goes by its clock, and is asked about none. One that has learned to look costs 0.9 ms a glance.
"""
OUT_OF_REACH = """
If every core were busy all the time with nothing but these stages, a caption would take this long. What it takes beyond
that is the time when a core waits: for the first pick at the beginning, for the last one at the end.

The goal of 1.25 times decoding alone is met where decoding is worth more than the CNN; at 320x240 the passes of the CNN
alone, on all cores, are most of it. The table of precisions below tells what fewer bits would do.
"""
COST_COLUMN = """
Time as a multiple of PickNet's, decoding included, for ten seconds of video. The paper counts passes of the CNN, six of
them for PickNet; its k-means leaves out that the features of all frames have to be known before they can be clustered.
"""
AGREEMENT = """
Against the plain way, which decodes every frame in its order, glances at every sample, computes everything in 32 bits
and ends a search only when nothing can win any more:
"""
PRECISIONS = """
Features of the CNN and log-probabilities of the decoder's words, against those in 32 bits. The CNN's 8 bits are NNCF's,
quantised after training and calibrated on frames of the sample: on ARM they are slower than 32 bits, so they are no
option here. The decoder's 8 bits are those of its weights. A step of a beam reads all of them, so it is as fast as they
are small; but what 16 or 8 bits change is more than good sentences differ by.
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


def looked(stages: Facts, alone: Facts, kind: str) -> Facts:
    """What it costs to glance at all samples and to ask the policy about each, as a part of decoding alone."""
    spent = {key: stages["glance"][kind][key] + stages["policy"][kind][key] for key in ("median", "low", "high")}
    return {key: value / alone[kind]["median"] for key, value in spent.items()}


def goals(captioning: Facts | None, starting: Facts | None, growing: Facts | None, many: Facts | None) -> str:
    cells = [["What", "At most", "Wall", "CPU"]]

    def add(name: str, bound: str, found: Facts | None) -> None:
        columns = (spread(found[kind], unit="×") if found and kind in found else "–" for kind in ("wall", "cpu"))
        cells.append([name, bound, *columns])

    for clip in captioning["clips"] if captioning else ():
        against, size = clip["caption against"], clip["size"]
        add(f"caption against decoding alone, {size}", "1.25×", against["decode alone"])
        add(f"against all 30 frames, {size}", "0.45×", against["all 30 frames"])
        add(f"against OpenCV + PyTorch on 30, {size}", "0.15×", against.get("OpenCV loop + PyTorch CNN on 30"))
        alone = clip["times"]["decode alone"]
        looking = {kind: looked(clip["stages"], alone, f"{kind}_ms") for kind in ("wall", "cpu")}
        add(f"glance and policy for all 30, {size}", "0.05×", looking)
    if growing:
        hour = growing["lengths"][-1]
        add("one-hour file against decoding it all", "0.03×", hour["caption against decoding it all"])
    if many:
        most = many["rows"][-1]
        name = f"{most['files']} clips, two processes against half of one"
        add(name, "1.1×", {"wall": most["two processes against half of one"]})
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


PAPER_TIMES = {"all 30 frames": "5x", "random half": "2.5x", "k-means": "1x"}
PARTS = ("open and decode what the picks need", "colour conversion", "CNN", "encoder", "decoder (beam)")
"""What a caption is made of, where the picker need not look."""


def cost_column(clips: list[Facts]) -> str:
    """The paper's column of times, estimated there, measured here."""
    sizes = [clip["size"] for clip in clips]
    cells = [["Model", "The paper's estimate", *sizes]]
    for name, estimate in PAPER_TIMES.items():
        # The number of means is that of the picks.
        found = [next(of for key, of in clip["caption against"].items() if key.startswith(name)) for clip in clips]
        cells.append([name, estimate, *(f"{1 / of['wall']['median']:.1f}x" for of in found)])
    return markdown_table([*cells, ["PickNet", "1x", *("1.0x" for _ in clips)]])


def limit(clip: Facts, cores: int) -> str:
    """Why a caption cannot cost less than it does."""
    alone = clip["times"]["decode alone"]["wall_ms"]["median"]
    spent = {part: clip["stages"][part]["cpu_ms"]["median"] for part in PARTS}
    whole = sum(spent.values())
    cells = [["Stage", "CPU, ms", "Share", f"On {cores} cores, against decoding alone"]]
    for part, milliseconds in [*spent.items(), ("all of them", whole)]:
        least = milliseconds / cores / alone
        cells.append([part, f"{milliseconds:.0f}", f"{milliseconds / whole:.0%}", f"{least:.2f}×"])
    return markdown_table(cells)


def seconds(found: Facts) -> str:
    """How long epochs take."""
    cells = [["Epoch", "Seconds", "of which steps", "of which CIDEr", "Against its steps"]]
    for stage, measured in found.items():
        parts = (("epoch", 2), ("steps", 2), ("reward", 3))
        columns = [f"{measured[part]['median']:.{digits}f}" for part, digits in parts]
        cells.append([stage, *columns, spread(measured["against its steps"], unit="×")])
    return markdown_table(cells)


def bits(graphs: list[Facts]) -> str:
    """What each graph costs in other precisions."""
    cells = [["Graph", "Bits", "Wall, ms", "Against 32 bits", "Off by"]]
    for graph in graphs:
        columns = [spread(graph["wall_ms"], ".1f"), f"{graph['ratio']['wall']['median']:.2f}×", graph["off by"]]
        cells.append([graph["graph"], graph["bits"], *columns])
    return markdown_table(cells)


def files(rows: list[Facts]) -> str:
    """How long many files take."""
    cells = [["Files", "One process, s", "Two, s", "One, ms a file", "Two, ms a file", "Two against half of one"]]
    for row in rows:
        totals = [f"{row[key]['median']:.1f}" for key in ("one process on one core, s", "two processes, s")]
        keys = ("one process on one core, ms a file", "two processes, ms a file")
        each = [f"{row[key]['median']:.0f}" if key in row else "–" for key in keys]
        key = "two processes against half of one"
        cells.append([str(row["files"]), *totals, *each, f"{row[key]['median']:.2f}×" if key in row else "–"])
    return markdown_table(cells)


def agreed(agreement: Facts) -> str:
    """The fast way against the plain one, which decodes everything and computes in 32 bits."""
    cells = [["Clips", "Number", "Looked at twice", "Other picks", "Other words"]]
    others = []
    for found in agreement["splits"]:
        counts = (found[key] for key in ("clips", "close calls", "other picks"))
        cells.append([found["split"], *map(str, counts), str(len(found["other words"]))])
        others += [f"- {each['clip']}: “{each['fast']}”, and “{each['plain']}”" for each in found["other words"]]
    explained = ["", "The sentences that differ, as they are and by the plain way:\n", *others] if others else []
    return "\n".join([markdown_table(cells), *explained])


def draw(name: str, panel: Panel) -> str:
    chart = line_chart([panel])
    save(chart, DOCS / f"{name}.svg")
    save(chart, DOCS / f"{name}.png")
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
        [Line("caption", [lengths], GREEN, 2.6)],
        levels=[("decoding it all", 1.0)],
        from_zero=True,
    )
    large = Panel(
        "The larger the picture, the less a caption costs beside decoding it",
        "CPU milliseconds, ten seconds of video",
        "lines of a picture",
        [Line("caption", [sizes["caption"]], GREEN, 2.6), Line("decoding it all", [sizes["decode"]], INK)],
        from_zero=True,
    )
    many = Panel(
        "Every pick is one pass of the CNN",
        "CPU milliseconds of a caption, ten seconds of 640×360",
        "picks",
        [Line("caption", [picks], GREEN, 2.6)],
        from_zero=True,
    )
    panels = {"performance-lengths": long, "performance-sizes": large, "performance-picks": many}
    return [draw(name, panel) for name, panel in panels.items()]


def main() -> None:
    captioning, starting, growing = read("captioning"), read("starting"), read("growing")
    learning, cider, precisions = read("learning"), read("cider"), read("precisions")
    many = read("many-1000") or read("many")
    parts = [INTRODUCTION, "## Goals\n", goals(captioning, starting, growing, many), ""]
    if captioning:
        parts += ["## A caption, warm\n", told(captioning), ""]
        for clip in captioning["clips"]:
            picks = clip["picks"]
            parts += [f"### Ten seconds of {clip['size']}, {picks} picks\n", table(clip["times"]), ""]
            parts += ["Stage by stage, each by itself:\n", table(clip["stages"]), ""]
        parts += ["## The paper's cost column", COST_COLUMN, cost_column(captioning["clips"]), ""]
        cores = captioning["machine"]["cores"]
        parts += ["## Why not less", OUT_OF_REACH]
        for clip in captioning["clips"]:
            parts += [f"Ten seconds of {clip['size']}:\n", limit(clip, cores), ""]
    if precisions:
        parts += ["## Fewer bits\n", told(precisions), PRECISIONS, bits(precisions["graphs"]), ""]
    if starting:
        parts += ["## Starting\n", told(starting), "", table(starting["times"]), ""]
    if growing:
        parts += ["## How it grows\n", told(growing), "", *growth(growing), ""]
    for found in (read("many"), read("many-1000")):
        if found:
            parts += [told(found), "", files(found["rows"]), ""]
    if learning:
        evaluation = learning["evaluation"]
        parts += ["## Evaluating and learning\n", told(learning), ""]
        parts += [table(evaluation["times"]), ""]
        whole, clips = spread(evaluation["ratio"]["wall"], unit="×"), evaluation["clips"]
        parts += [f"To evaluate {clips} clips, METEOR aside, takes {whole} what captioning them takes.", ""]
        parts += [f"An epoch of each stage, from the features of {learning['clips']} clips:\n"]
        parts += [seconds(learning["epochs"]), ""]
    if cider:
        faster = spread(cider["times as fast"], ".0f")
        parts += [told(cider), ""]
        parts += [f"The CIDEr of a batch of 128 captions is {faster} times as fast as the COCO code's.", ""]
    if agreement := read("agreement"):
        parts += ["## Does speed change what is said?\n", told(agreement), AGREEMENT, agreed(agreement), ""]
    write_text(DOCS / "performance.md", "\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()

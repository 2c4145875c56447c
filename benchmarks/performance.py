"""Write docs/performance.md and its charts from benchmarks/results/*.json.

    python benchmarks/performance.py
"""

import json
from typing import Any

from timing import RESULTS, ROOT

from picknet.files import write_text
from picknet.study.charts import GREEN, INK, Line, Panel, line_chart, save
from picknet.study.evaluation import markdown_table

DOCS = ROOT / "docs"
INTRODUCTION = """# Performance

Time and memory of every part, against decoding the video and doing nothing else with it. {summary}

Written by `python benchmarks/performance.py` from the JSON files in `benchmarks/results/`; `make bench` measures
again. Things that are compared were run alternately; a ratio is the median over the rounds. Brackets hold the
quartiles. CPU time is that of all threads.
"""
CAPTION = """
A caption decodes what all 30 samples depend on, since the shipped picker looks at them; with a picker that does not
look (`--picker every`, `uniform`, `random`), only what its picks depend on
([architecture.md](architecture.md#the-walk)). So it can cost less than decoding everything. Its other costs do not
depend on the size of the picture: a CNN pass for each pick, the encoder, and about ten decoder steps of a beam.
"""
CAPTION_STAGES = """
The parts of that caption, each measured alone, glances and the policy for all 30 samples.
"""
LIMIT = """
If all cores were always busy with these stages alone, a caption would take this long, as a multiple of decoding
alone. What it takes beyond that is time when a core waits for the first or the last pick. The goal of 1.25 is missed
at 320x240 because the CNN passes alone cost almost as much as decoding.
"""
COST_COLUMN = """
Time as a multiple of PickNet's, decoding included, for ten seconds of video. The paper counts CNN passes, and does
not count those that k-means needs for the features of all frames.
"""
AGREEMENT = """
Words and picks, against plain inference that decodes every frame in order, glances at every sample, computes
everything in 32 bits and stops a search only when no open sentence can win. Of two sentences that score nearly the
same, rounding may choose the other; CIDEr says that it is as good (± is one standard error, paired). The captioner is
that of the commit above; it was not trained on these MSR-VTT videos.
"""
PRECISIONS = """
Errors are those of CNN features and of the decoder's log-probabilities, against 32 bits. The CNN in 8 bits (NNCF,
quantised after training, calibrated on frames of the sample) is slower than 32 bits on ARM. The decoder in 8 bits has
8-bit weights; it runs in 16 bits, which costs no CIDEr (below).
"""
ORIGINALS = """
Files as people have them, of which the repository holds none, against decoding them alone: the median over the files
in each run, and in brackets the lowest and the highest of all. Where others use the machine, all of it takes up to a
tenth longer, and a first caption up to 1.7 s.
"""
HOUR = """
An hour of 640×360 with a keyframe every ten seconds, against decoding all of it:
"""
SERVING = """
`picknet serve` with its defaults, against the command line and against itself. The soak sends captions, slow uploads,
uploads that are broken off, hostile files, bodies of 2 GB and without an end, wrong tokens, and streams, jobs and
events that are left alone; *growth* is from its second quarter to its last.
"""
Facts = dict[str, Any]
STAGES = ("supervision", "reinforcement", "adaptation")
SERVING_PARTS = ("throughput", "overhead", "half-load", "soak")


def read(name: str) -> Facts | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def source(facts: Facts) -> str:
    """The command, commit, machine and versions of a measurement."""
    machine = facts["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "av", "openvino", "torch") if name in machine)
    load = f", load {machine['load']:.1f}" if machine["load"] is not None else ""
    where = f"{machine['processor']}, {machine['cores']} cores{load}; {versions}"
    busy = machine["load"] is not None and machine["load"] > machine["cores"] + 1
    warning = " **The machine was busy with other work: trust CPU time more than wall time.**" if busy else ""
    return f"`{facts['command']}`, commit {facts['commit']}, on {where}.{warning}"


def spread(found: Facts, form: str | None = None, unit: str = "") -> str:
    """The median and the quartiles."""
    form = form or (".2f" if found["median"] >= 0.01 else ".4f")
    return f"{found['median']:{form}}{unit} ({found['low']:{form}}–{found['high']:{form}})"


def looking_cost(stages: Facts, alone: Facts, kind: str) -> Facts:
    """Glance and policy for all samples, as a fraction of decoding alone."""
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
        looking = {kind: looking_cost(clip["stages"], alone, f"{kind}_ms") for kind in ("wall", "cpu")}
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
        columns = (spread(measured[kind], ".0f") if kind in measured else "–" for kind in ("wall_ms", "cpu_ms"))
        cells.append([name, *columns])
    return markdown_table(cells)


def by_size(clips: list[Facts], group: str, kind: str, digits: int = 0) -> str:
    """Milliseconds of several things, a column for each size of video."""
    cells = [["What", *(clip["size"] for clip in clips)]]
    for name in clips[0][group]:
        cells.append([name, *(spread(clip[group][name][kind], f".{digits}f") for clip in clips)])
    return markdown_table(cells)


def summary(captioning: Facts | None, growing: Facts | None, starting: Facts | None) -> str:
    """The main result, as a list."""
    lines = []
    if captioning:
        ratios = {
            clip["size"]: clip["caption against"]["decode alone"]["wall"]["median"] for clip in captioning["clips"]
        }
        listed = ", ".join(f"{ratio:.1f}× at {size}" for size, ratio in ratios.items())
        cores, processor = captioning["machine"]["cores"], captioning["machine"]["processor"]
        machine = f"{processor}, {cores} cores"
        lines.append(f"A caption of ten seconds takes, as a multiple of decoding it, {listed} ({machine}).")
        times = [clip["caption against"]["all 30 frames"]["wall"]["median"] for clip in captioning["clips"]]
        lines.append(f"That is {min(times):.2f} to {max(times):.2f} of the time that all 30 frames take.")
    if growing:
        hour = growing["lengths"][-1]["caption against decoding it all"]["wall"]["median"]
        lines.append(f"A caption of an hour takes {hour:.4f} of the time of decoding it.")
    if starting:
        first = starting["times"]["first caption"]["wall_ms"]["median"] / 1000
        memory = starting["memory_mb"]["one-hour file"]["median"]
        lines.append(f"The first caption of a process takes {first:.1f} s; an hour needs {memory:.0f} MB above import.")
    return "In short:\n\n" + "\n".join(f"- {line}" for line in lines) if lines else ""


PAPER_TIMES = {"all 30 frames": "5x", "random half": "2.5x", "k-means": "1x"}
PARTS = (
    "open and decode what all samples need",
    "glance",
    "policy",
    "colour conversion",
    "CNN",
    "encoder",
    "decoder (beam)",
)
"""The stages of a caption."""


def cost_column(clips: list[Facts]) -> str:
    """The paper's column of estimated times, measured."""
    sizes = [clip["size"] for clip in clips]
    cells = [["Model", "The paper's estimate", *sizes]]
    for name, estimate in PAPER_TIMES.items():
        # k of k-means is the number of picks.
        found = [next(of for key, of in clip["caption against"].items() if key.startswith(name)) for clip in clips]
        cells.append([name, estimate, *(f"{1 / of['wall']['median']:.1f}x" for of in found)])
    return markdown_table([*cells, ["PickNet", "1x", *("1.0x" for _ in clips)]])


def limit(clips: list[Facts], cores: int) -> str:
    """The least time of each stage on all cores, as a multiple of decoding alone."""
    cells = [["Stage", *(clip["size"] for clip in clips)]]
    alone = [clip["times"]["decode alone"]["wall_ms"]["median"] for clip in clips]
    spent = [[clip["stages"][part]["cpu_ms"]["median"] for part in PARTS] for clip in clips]
    rows = [*zip(PARTS, zip(*spent, strict=True), strict=True), ("all of them", tuple(map(sum, spent)))]
    for part, each in rows:
        cells.append([part, *(f"{ms / cores / least:.2f}×" for ms, least in zip(each, alone, strict=True))])
    return markdown_table(cells)


def seconds(found: Facts) -> str:
    """Seconds of an epoch of each stage."""
    cells = [["Stage", "Epoch, s", "of which steps", "of which CIDEr", "Epoch against steps"]]
    for stage in STAGES:
        measured = found[stage]
        parts = (("epoch", 2), ("steps", 2), ("reward", 3))
        columns = [f"{measured[part]['median']:.{digits}f}" for part, digits in parts]
        cells.append([stage, *columns, spread(measured["against its steps"], unit="×")])
    return markdown_table(cells)


def bits(graphs: list[Facts]) -> str:
    """Each graph in several precisions."""
    cells = [["Graph", "Bits", "Wall, ms", "Against 32 bits", "Error"]]
    for graph in graphs:
        columns = [spread(graph["wall_ms"], ".1f"), f"{graph['ratio']['wall']['median']:.2f}×", graph["off by"]]
        cells.append([graph["graph"], graph["bits"], *columns])
    return markdown_table(cells)


def files(rows: list[Facts]) -> str:
    """Time of many files."""
    cells = [["Files", "One process, s", "Two, s", "One, ms a file", "Two, ms a file", "Two against half of one"]]
    for row in rows:
        totals = [f"{row[key]['median']:.1f}" for key in ("one process on one core, s", "two processes, s")]
        keys = ("one process on one core, ms a file", "two processes, ms a file")
        each = [f"{row[key]['median']:.0f}" if key in row else "–" for key in keys]
        key = "two processes against half of one"
        cells.append([str(row["files"]), *totals, *each, f"{row[key]['median']:.2f}×" if key in row else "–"])
    return markdown_table(cells)


def originals(found: Facts) -> list[str]:
    """Files as people have them, a made hour, and first captions."""
    runs: list[Facts] = found["runs"]

    def row(name: list[str], of_runs: list[Facts], form: str, unit: str) -> list[str]:
        return [*name, *(every_run([of_run[clock] for of_run in of_runs], form, unit) for clock in ("wall", "cpu"))]

    cells = [["Files", "What", "Wall", "CPU"]]
    for kind, measured in runs[0]["kinds"].items():
        for name in measured["ratios"]:
            against = [run["kinds"][kind]["ratios"][name] for run in runs]
            cells.append(row([f"{kind} ({len(measured['files'])})", name], against, ".2f", "×"))
    hour, first = [["What", "Wall", "CPU"]], [["What", "Wall, ms", "CPU, ms"]]
    for name in runs[0]["hour"]["against decoding it all"]:
        hour.append(row([name], [run["hour"]["against decoding it all"][name] for run in runs], ".4f", "×"))
    for name in runs[0]["first caption"]:
        times = [{clock: run["first caption"][name][f"{clock}_ms"] for clock in ("wall", "cpu")} for run in runs]
        first.append(row([name], times, ".0f", ""))
    parts = [markdown_table(cells)] if runs[0]["kinds"] else []
    return [*parts, HOUR, markdown_table(hour), "", "The first caption of a process:\n", markdown_table(first), ""]


def every_run(found: list[Facts], form: str, unit: str) -> str:
    """The median of each run, and the range of all."""
    medians = ", ".join(f"{each['median']:{form}}" for each in found)
    low, high = min(each["low"] for each in found), max(each["high"] for each in found)
    return f"{medians}{unit} ({low:{form}}–{high:{form}})"


def agreed(agreement: Facts) -> str:
    """Fast inference against plain inference."""
    cells = [["Split", "Clips", "Other picks", "Other words", "CIDEr, plain", "fast − plain"]]
    others = []
    for found in agreement["splits"]:
        counts = (found["clips"], found["other picks"], len(found["other words"]))
        gained = f"{found['CIDEr difference']:+.1f} ± {found['standard error']:.1f}"
        cells.append([found["split"], *map(str, counts), f"{found['plain CIDEr']:.1f}", gained])
        others += [f"- {each['clip']}: “{each['fast']}”, and “{each['plain']}”" for each in found["other words"]]
    explained = ["", "Captions that differ, fast and plain:\n", *others] if others else []
    return "\n".join([markdown_table(cells), *explained])


def serving(parts: dict[str, Facts]) -> str:
    """The service under load."""
    cells = [["What", "Bar", "Found"]]
    if found := parts.get("throughput"):
        against = found["throughput against caption --jobs"]
        for kind, clock in (("", "wall"), (", CPU", "cpu")):
            name = f"throughput at {found['clients']} clients against `caption --jobs`{kind}"
            cells.append([name, "at least 0.9×", spread(against[clock], unit="×")])
    if found := parts.get("overhead"):
        row = ["a request with a tiny clip, above `captioner.caption`", "at most 10 ms"]
        cells.append([*row, spread(found["overhead, ms"], ".1f", " ms")])
    if found := parts.get("half-load"):
        median, high = found["median, ms"], found["95th percentile, ms"]
        shown = f"{found['95th percentile against median']:.2f}× ({median:.0f} ms, {high:.0f} ms)"
        cells.append(["95th percentile at half load, against the median", "at most 2×", shown])
    if found := parts.get("soak"):
        name = f"{found['clients']} clients, {found['seconds']:g} s:"
        growth, before = found["growth from the second quarter to the last"], found["mean of the second quarter"]
        cells.append([f"{name} wrong captions, of {found['captions']}", "none", str(found["wrong captions"])])
        strange = sum(found["answers that are not documented"].values())
        cells.append([f"{name} answers that are not documented", "none", str(strange)])
        for key in ("memory, MB", "open files", "processes"):
            shown = f"{growth[key]:+.0f} of {before[key]:.0f}"
            cells.append([f"{name} growth of {key}", "none", shown])
        cells.append([f"{name} uploads that are left", "none", f"{found['after']['uploads']:.0f}"])
    return markdown_table(cells)


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
        "CPU time of a caption as a fraction of decoding the whole file, 720p",
        "minutes",
        [Line("caption", [lengths], GREEN, 2.6)],
        levels=[("decoding it all", 1.0)],
        from_zero=True,
    )
    large = Panel(
        "The larger the picture, the less a caption costs against decoding it",
        "CPU milliseconds, ten seconds of video",
        "height, pixels",
        [Line("caption", [sizes["caption"]], GREEN, 2.6), Line("decoding it all", [sizes["decode"]], INK)],
        from_zero=True,
    )
    many = Panel(
        "Each pick is one pass of the CNN",
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
    parts = [INTRODUCTION.format(summary=summary(captioning, growing, starting))]
    parts += ["## Goals\n", goals(captioning, starting, growing, many), ""]
    if captioning:
        clips = captioning["clips"]
        parts += ["## A caption of ten seconds, model loaded\n", source(captioning), CAPTION]
        picks = ", ".join(str(clip["picks"]) for clip in clips)
        parts += [f"Wall time in ms, with {picks} picks, as many by k-means:\n", by_size(clips, "times", "wall_ms"), ""]
        parts += ["CPU time in ms:\n", by_size(clips, "times", "cpu_ms"), ""]
        parts += ["## Stage by stage", CAPTION_STAGES, "CPU time in ms:\n", by_size(clips, "stages", "cpu_ms", 1), ""]
        parts += ["## The limit", LIMIT, limit(clips, captioning["machine"]["cores"]), ""]
        parts += ["## The paper's cost column", COST_COLUMN, cost_column(clips), ""]
    if real := [read(path.stem) for path in sorted(RESULTS.glob("originals-*.json"), reverse=True)]:
        parts += ["## Real files", ORIGINALS]
        for found in real:
            parts += [source(found), "", *originals(found)]
    if precisions:
        parts += ["## Precision\n", source(precisions), PRECISIONS, bits(precisions["graphs"]), ""]
    if starting:
        parts += ["## Start-up\n", source(starting), "", table(starting["times"]), ""]
    if growing:
        parts += ["## Scaling\n", source(growing), "", *growth(growing), ""]
    for found in (read("many"), read("many-1000")):
        if found:
            parts += [source(found), "", files(found["rows"]), ""]
    served = {part: found for part in SERVING_PARTS if (found := read(f"serving-{part}"))}
    if served:
        sources = [line for found in served.values() for line in (source(found), "")]
        parts += ["## The service under load\n", *sources[:-1], SERVING, serving(served), ""]
    if learning:
        evaluation = learning["evaluation"]
        parts += ["## Evaluating and training\n", source(learning), ""]
        whole, count = spread(evaluation["ratio"]["wall"], unit="×"), evaluation["clips"]
        parts += [f"Evaluating {count} clips without METEOR takes {whole} of captioning them.", ""]
        parts += [f"An epoch of each stage, on cached features of {learning['clips']} clips:\n"]
        parts += [seconds(learning["epochs"]), ""]
    if cider:
        faster = spread(cider["times as fast"], ".0f")
        parts += [source(cider), ""]
        parts += [f"CIDEr of a batch of 128 captions is {faster} times as fast as the COCO code's.", ""]
    if agreement := read("agreement"):
        parts += ["## Does speed change the captions?\n", source(agreement), AGREEMENT, agreed(agreement), ""]
    write_text(DOCS / "performance.md", "\n".join(parts).rstrip() + "\n")


if __name__ == "__main__":
    main()

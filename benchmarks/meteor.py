"""METEOR against the Java program: equal scores, and the time of both from start to end.

    python benchmarks/meteor.py [--captions sents_val_lc_nopunc.txt] [--every]

The first caption of each video, or with --every each of them, is scored against the others of its video. Each program
starts anew; ours once without its cache of paraphrases and once with it. Needs Java and the `meteor` extra; captions
are lines of `video<TAB>caption`, by default those of MSVD's validation split in ../shared.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from timing import cpu_seconds, save

from picknet.meteor.corpus import evaluate
from picknet.meteor.lexicon import installed_files, load_lexicon
from picknet.text import tokenise

MSVD = Path(__file__).resolve().parents[2] / "shared" / "msvd" / "captions" / "sents_val_lc_nopunc.txt"

Lines = list[list[str]]
"""For each candidate, its references and then itself."""


def read_lines(path: Path, *, every: bool) -> Lines:
    captions: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        video, _, caption = line.partition("\t")
        captions.setdefault(video, []).append(" ".join(tokenise(caption)))
    return [
        [*several[:index], *several[index + 1 :], several[index]]
        for several in captions.values()
        for index in range(len(several) if every else 1)
        if len(several) > 1
    ]


def java(lines: Lines) -> np.ndarray:
    """The score of each line, then that of all."""
    command = ["java", "-Xmx1G", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-jar"]
    command += [str(installed_files() / "meteor-1.5.jar"), "-", "-", "-stdio", "-l", "en", "-norm"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:

        def ask(fields: list[str], *, answers: int = 1) -> list[str]:
            process.stdin.write(" ||| ".join(fields) + "\n")
            process.stdin.flush()
            return [process.stdout.readline().strip() for _ in range(answers)]

        statistics = [ask(["SCORE", *line])[0] for line in lines]
        return np.array(ask(["EVAL", *statistics], answers=len(lines) + 1), dtype=float)


def ours(lines: Lines) -> np.ndarray:
    load_lexicon.cache_clear()
    result = evaluate([(line[-1], line[:-1]) for line in lines], load_lexicon(installed_files()), seconds=3600)
    return np.append(result.by_video, result.corpus)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=Path, default=MSVD, help="lines of `video<TAB>caption`")
    parser.add_argument("--every", action="store_true", help="score every caption, not only the first of a video")
    arguments = parser.parse_args()
    lines = read_lines(arguments.captions, every=arguments.every)
    num_references = sum(len(line) - 1 for line in lines)
    print(f"captions          {arguments.captions.name}: {len(lines)}, with {num_references} references")

    scores, spent = {}, {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PICKNET_CACHE"] = cache
        for name, program in (("Java", java), ("picknet, no cache", ours), ("picknet", ours)):
            start, cpu_start = os.times().elapsed, cpu_seconds()
            scores[name] = program(lines)
            spent[name] = {"s": os.times().elapsed - start, "CPU s": cpu_seconds() - cpu_start}
            print(f"{name:17} {spent[name]['s']:6.1f} s, {spent[name]['CPU s']:6.1f} s of CPU time")
    difference = float(np.abs(scores["picknet"] - scores["Java"]).max())
    print(f"scores            differ by {difference:.1e} at most; METEOR {100 * scores['picknet'][-1]:.2f}")
    found = {"captions": len(lines), "references": num_references, "spent": spent, "greatest difference": difference}
    save("meteor", found, f"python {shlex.join(sys.argv)}")
    return 0 if difference < 1e-6 else 1


if __name__ == "__main__":
    raise SystemExit(main())

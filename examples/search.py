"""Search videos by their captions: one caption for each scene, in a SQLite full-text index.

    python examples/search.py index films.db holiday.mp4 clips/*.mp4
    python examples/search.py find films.db dogs running

Words are stemmed (dogs matches dog), and the best matches come first.
"""

import argparse
import contextlib
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence

import picknet

SCENES = """
CREATE VIRTUAL TABLE IF NOT EXISTS scenes
USING fts5(sentence, video UNINDEXED, start UNINDEXED, tokenize = 'porter unicode61')
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    indexing = commands.add_parser("index", help="describe videos; known ones are described again")
    indexing.add_argument("database")
    indexing.add_argument("videos", nargs="+", metavar="VIDEO")
    indexing.add_argument(
        "--min-confidence", type=float, default=0.3, metavar="C", help="leave out scenes of which it is less sure (0.3)"
    )
    finding = commands.add_parser("find", help="print the scenes that match all words")
    finding.add_argument("database")
    finding.add_argument("words", nargs="+", metavar="WORD")
    finding.add_argument("--limit", type=int, default=10, help="maximum number of results (10)")
    options = parser.parse_args(arguments)
    if options.command == "find" and not os.path.exists(options.database):
        parser.error(f"{options.database}: no such database; create it with: search.py index")
    try:
        # `closing` closes the database; as a context manager it only commits or rolls back.
        with contextlib.closing(sqlite3.connect(options.database)) as database, database:
            database.execute(SCENES)
            if options.command == "index":
                index(database, options.videos, min_confidence=options.min_confidence)
            else:
                for video, start, sentence in find(database, options.words, limit=options.limit):
                    print(f"{video}  {int(start) // 60}:{int(start) % 60:02d}  {sentence}")
    except sqlite3.Error as error:
        sys.exit(f"search.py: {options.database}: {error}")
    except picknet.PicknetError as error:
        sys.exit(f"search.py: {error}")


def index(database: sqlite3.Connection, videos: Sequence[str], *, min_confidence: float) -> None:
    captioner = picknet.load()
    for video in videos:
        path = os.path.abspath(video)
        segments = [one for one in captioner.timeline(video, min_confidence=min_confidence) if one.text]
        database.execute("DELETE FROM scenes WHERE video = ?", [path])
        rows = [(segment.text, path, segment.start) for segment in segments]
        database.executemany("INSERT INTO scenes VALUES (?, ?, ?)", rows)
        database.commit()  # a bad video must not undo the ones before it
        print(f"{video}: {len(rows)} scene{'s' * (len(rows) != 1)}")


def find(database: sqlite3.Connection, words: Sequence[str], *, limit: int) -> Iterator[tuple[str, float, str]]:
    # Quoted, a word is never taken for query syntax.
    query = " ".join('"' + word.replace('"', '""') + '"' for word in words)
    yield from database.execute(
        "SELECT video, start, sentence FROM scenes WHERE scenes MATCH ? ORDER BY rank LIMIT ?", [query, limit]
    )


if __name__ == "__main__":
    main()

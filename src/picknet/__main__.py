"""`picknet` and `python -m picknet`. It imports next to nothing, so that Ctrl-C finds it ready at once."""

import sys


def main() -> None:
    try:
        from picknet.cli import main as run

        run()
    except KeyboardInterrupt:
        print("picknet: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

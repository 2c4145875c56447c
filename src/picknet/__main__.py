"""`picknet` and `python -m picknet`. It imports next to nothing, so that Ctrl-C finds it ready at once."""

import os
import sys


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, as in `picknet info >&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
    try:
        from picknet.cli import main as run

        run()
    except KeyboardInterrupt:
        print("picknet: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

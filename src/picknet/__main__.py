"""`picknet` and `python -m picknet`. It imports next to nothing, so that Ctrl-C finds it ready at once."""

import os
import sys


def main() -> None:
    # In this order, a file opened here gets the number of the closed one, and no other file does.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, as in `picknet info >&-`
            # Results that nobody can read are a failure: standard output becomes a file that cannot be written to.
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            file = os.open(os.devnull, flags)
            setattr(sys, name, open(file, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
    try:
        from picknet.cli import main as run

        run()
    except KeyboardInterrupt:
        print("picknet: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

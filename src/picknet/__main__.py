"""`python -m picknet` is `picknet`."""

from picknet.cli import main

if __name__ == "__main__":
    main()

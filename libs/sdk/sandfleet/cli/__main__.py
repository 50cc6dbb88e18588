"""`python -m sandfleet.cli` is `sandfleet`."""

from . import main

if __name__ == "__main__":
    main()

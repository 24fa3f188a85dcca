"""``python -m guanaco``, for where the command is not on the path."""

from __future__ import annotations

import sys

from guanaco.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m towpath_host``: one child of a Towpath server."""

from __future__ import annotations

import sys

EXIT_LOAD = 3

if __name__ == "__main__":
    try:
        from .process import main
    except ImportError as error:
        # Without langgraph there is nothing to pack a frame with either: this is told on standard error only.
        print(
            f"{sys.executable} has no {error.name or 'langgraph'!r}: install langgraph and what the project depends on "
            f"into this environment, as with `{sys.executable} -m pip install langgraph` ({error})",
            file=sys.stderr,
        )
        sys.exit(EXIT_LOAD)
    sys.exit(main(sys.argv[1:]))

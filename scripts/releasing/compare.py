"""Two folders of packages, byte by byte."""

import pathlib

CHUNK = 1 << 20


def first_difference(one: pathlib.Path, other: pathlib.Path) -> int | None:
    """The place of the first byte that differs; None where there is none."""
    at = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            ours, theirs = left.read(CHUNK), right.read(CHUNK)
            if ours != theirs:
                return at + next((n for n, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
            if not ours:
                return None
            at += len(ours)


def folders(one: pathlib.Path, other: pathlib.Path) -> tuple[list[str], bool]:
    """A line for each file, and whether all are the same."""
    lines, is_same = [], True
    for name in sorted({path.name for folder in (one, other) for path in folder.iterdir()}):
        paths = (one / name, other / name)
        missing = [path for path in paths if not path.exists()]
        if missing:
            said = f"is missing in the {'first' if missing[0] == paths[0] else 'second'} build"
        else:
            at = first_difference(*paths)
            said = "same" if at is None else f"differs from byte {at} on"
        lines.append(f"{name}: {said}")
        is_same = is_same and said == "same"
    return lines, is_same

"""One text with the licences of everything in the binary."""

import pathlib
import re
import subprocess

from releasing.dependencies import Crate
from releasing.errors import ReleaseError
from releasing.project import TOP

NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)([-_.].*)?", re.IGNORECASE)
# Not texts of licences.
OTHER = {".rs", ".toml", ".html", ".py", ".js", ".sh", ".c", ".h"}
LINE = "=" * 100
# Where a crate says MIT and carries no text.
MIT = """\
Copyright (c) {holders}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files
(the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify,
merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF
MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def files(crate: Crate) -> list[pathlib.Path]:
    """The licence files of a crate; of one with a C library, in every folder."""
    found = crate.folder.rglob("*") if crate.is_native else crate.folder.glob("*")
    return sorted(path for path in found if NAMES.fullmatch(path.name) and path.suffix.lower() not in OTHER and path.is_file())


def tidy(text: str) -> str:
    """Without differences of line ends and of blanks at ends of lines, so that a text stands once."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def texts(crate: Crate, apache: str) -> list[str]:
    found = [tidy(path.read_text(errors="replace")) for path in files(crate)]
    if found:
        return found
    if "Apache-2.0" in crate.licence:
        return [tidy(apache)]
    if "MIT" in crate.licence:
        return [tidy(MIT.format(holders=", ".join(crate.authors) or f"the authors of {crate.name}"))]
    raise ReleaseError(f"{crate.key} ({crate.licence or 'no licence'}) has no licence file: {crate.folder}")


def toolchain() -> list[tuple[str, str]]:
    """The standard library's, from the toolchain; none where it is installed without its documentation."""
    done = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True)
    folder = pathlib.Path(done.stdout.strip()) / "share" / "doc" / "rust"
    found = [folder / name for name in ("COPYRIGHT", "LICENSE-MIT")]
    return [("the Rust standard library", tidy(path.read_text(errors="replace"))) for path in found if path.is_file()]


def report(crates: list[Crate], more: list[tuple[str, str]] = (), apache: str | None = None) -> str:
    """The table of crates, then each text once with the crates it is for. `more` are other parts: name and text."""
    apache = (TOP / "LICENSE").read_text() if apache is None else apache
    others = [crate for crate in crates if not crate.is_ours]
    width = max((len(crate.key) for crate in others), default=0)
    lines = [
        "Licences of what is in the program `towpath`, which is itself under the Apache License 2.0 (file LICENSE).",
        "",
        *(f"{crate.key:<{width}}  {crate.licence}  {crate.repository}".rstrip() for crate in others),
    ]
    users: dict[str, list[str]] = {}
    for crate in others:
        for text in texts(crate, apache):
            users.setdefault(text, []).append(crate.key)
    for name, text in more:
        users.setdefault(text, []).append(name)
    for text, names in users.items():
        lines += ["", LINE, f"For: {', '.join(dict.fromkeys(names))}", LINE, "", text]
    return "\n".join(lines) + "\n"

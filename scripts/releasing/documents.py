"""Shell completions and manual pages, which the binary writes itself."""

import pathlib
import subprocess
import tempfile

from releasing.archive import File, compress
from releasing.errors import ReleaseError

COMPLETIONS = {
    "bash": "share/bash-completion/completions/towpath",
    "zsh": "share/zsh/site-functions/_towpath",
    "fish": "share/fish/vendor_completions.d/towpath.fish",
}


def run(binary: pathlib.Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run([binary, *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    except OSError as error:
        raise ReleaseError(
            f"{binary} does not run on this machine ({error}): name one that does with --documents-from"
        ) from error
    if done.returncode != 0:
        raise ReleaseError(f"{binary.name} {' '.join(arguments)} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def made_by(binary: pathlib.Path) -> list[File]:
    """Paths are below a prefix such as /usr."""
    found = [File(path, run(binary, "completions", shell)) for shell, path in COMPLETIONS.items()]
    with tempfile.TemporaryDirectory() as folder:
        run(binary, "man", "--to", folder)
        pages = sorted(pathlib.Path(folder).glob("*.1"))
        if not pages:
            raise ReleaseError(f"{binary.name} man --to wrote no pages")
        found += [File(f"share/man/man1/{page.name}", page.read_bytes()) for page in pages]
    return found


def packed(files: list[File]) -> list[File]:
    """The same with manual pages compressed, as distributions have them."""
    found = []
    for file in files:
        if file.path.startswith("share/man/"):
            found.append(File(f"{file.path}.gz", compress(file.read(), "gz")))
        else:
            found.append(file)
    return found


def version(binary: pathlib.Path) -> str:
    return run(binary, "--version").decode().split()[-1]

"""What git knows of the clone."""

import subprocess

from testing.machine import TOP


class GitError(Exception):
    """git could not answer."""


def git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=TOP, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise GitError(f"git did not start: {error}") from error
    if done.returncode != 0:
        raise GitError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def head() -> str | None:
    """The commit that is checked out; None in a tree without git."""
    try:
        return git("rev-parse", "HEAD").strip()
    except GitError:
        return None


def is_dirty() -> bool:
    """Whether anything is not committed, files that git does not know included."""
    try:
        return bool(git("status", "--porcelain").strip())
    except GitError:
        return True


def default_base() -> tuple[str, str]:
    """The commit that changes are counted from, and why that one."""
    commit = git("rev-parse", "HEAD").strip()
    for branch in ("origin/main", "main"):
        try:
            base = git("merge-base", "HEAD", branch).strip()
        except GitError:
            continue
        if base != commit:
            return base, f"the merge base with {branch}"
    if is_dirty():
        return commit, "HEAD, because something is not committed"
    return git("rev-parse", "HEAD~1").strip(), "the commit before HEAD"


def changed_files(base: str) -> list[str]:
    """Files that differ from `base`, whether committed or not. A renamed file is there under both names."""
    differing = git("diff", "--name-only", "--no-renames", "-z", base, "--")
    unknown = git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({name for name in (differing + unknown).split("\0") if name})

"""Installs each package where nothing else is, and runs the program out of it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable

from releasing import boot, roots, walk
from releasing.arguments import Options
from releasing.errors import ReleaseError, Unavailable
from releasing.project import Project
from releasing.targets import Target
from releasing.walk import ENVIRONMENT, Start

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the unit of systemd sets.
UNIT = {"PATH": PATH, "TOWPATH_CONFIG": "/etc/towpath/towpath.toml"}
HEADERS = ("package", "installed in", "MB", "install s", "first answer s", "trace to export s", "stop s")


@dataclasses.dataclass
class Place:
    """What a check has: a folder of its own, the packages, a port."""

    release: Project
    target: Target
    packages: pathlib.Path
    folder: pathlib.Path
    shared: pathlib.Path
    port: int = dataclasses.field(default_factory=walk.free_port)

    def package(self, pattern: str) -> pathlib.Path:
        found = sorted(self.packages.glob(pattern))
        if not found:
            raise Unavailable(f"{self.packages} has no {pattern}: scripts/release makes it")
        return found[0]

    def debian(self) -> pathlib.Path:
        return roots.unpack([roots.bare(self.shared)], self.folder / "root")

    @property
    def listen(self) -> str:
        return f"127.0.0.1:{self.port}"

    def dev(self, data: str) -> list[str]:
        agent = f"127.0.0.1:{walk.free_port()}"
        return ["dev", "--data-dir", data, "--listen", self.listen, "--agent-listen", agent]


@dataclasses.dataclass(frozen=True)
class Installed:
    package: pathlib.Path
    where: str
    start: Start


def tarball(place: Place) -> Installed:
    package = place.package(f"towpath-{place.release.version}-{place.target.label}.tar.gz")
    root = place.debian()
    roots.run(["tar", "-C", root / "usr/local", "--strip-components=1", "-xzf", package], "tar")
    for path in ("share/man/man1/towpath.1", "share/doc/towpath/THIRD-PARTY-LICENSES.txt", "share/doc/towpath/towpath.cdx.json"):
        if not (root / "usr/local" / path).is_file():
            raise ReleaseError(f"the tarball has no {path}")
    command = roots.entered(root, "towpath", *place.dev("/data"))
    return Installed(package, f"Debian {roots.SUITE}", Start(command, {"PATH": PATH, **ENVIRONMENT}, root / "data/exports"))


def wheel(place: Place) -> Installed:
    package = place.package(f"towpath-{place.release.version}-*{place.target.machine}.whl")
    venv = place.folder / "venv"
    roots.run([sys.executable, "-m", "venv", venv], "python -m venv")
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", package]
    roots.run(pip, "pip install")
    data = place.folder / "data"
    command = [str(venv / "bin/towpath"), *place.dev(str(data))]
    return Installed(package, "a new environment", Start(command, clean(), data / "exports", place.folder))


def deb(place: Place) -> Installed:
    package = place.package(f"towpath_{place.release.version}-*_{place.target.deb}.deb")
    root = place.debian()
    shutil.copy(package, root / "towpath.deb")
    environment = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    roots.run(roots.entered(root, "dpkg", "--install", "/towpath.deb"), "dpkg --install", environment)
    roots.run(roots.entered(root, "dpkg", "--verify", "towpath"), "dpkg --verify", environment)
    return Installed(package, f"Debian {roots.SUITE}", service(place, root, root))


def rpm(place: Place) -> Installed:
    package = place.package(f"towpath-{place.release.version}-*.{place.target.rpm}.rpm")
    if not shutil.which("rpm"):
        raise Unavailable("rpm is not installed (Debian: apt-get install rpm)")
    root = place.debian()
    # The base has no database of rpm, so dependencies are not looked up; the scripts of the package run in the root.
    roots.run(["rpm", "--root", root, "--initdb"], "rpm --initdb")
    roots.run(["rpm", "--root", root, "--install", "--nodeps", "--nosignature", package], "rpm --install")
    return Installed(package, f"Debian {roots.SUITE}, by rpm", service(place, root, root))


def service(place: Place, root: pathlib.Path, base: pathlib.Path) -> Start:
    """As the unit starts it."""
    unit = (root / "usr/lib/systemd/system/towpath.service").read_text()
    (line,) = (line for line in unit.splitlines() if line.startswith("ExecStart="))
    command = [*line.removeprefix("ExecStart=").split(), "--listen", place.listen]
    modes = {path: oct((root / "etc/towpath" / path).stat().st_mode & 0o777) for path in ("towpath.toml", "towpath.env")}
    if modes != {"towpath.toml": "0o640", "towpath.env": "0o600"}:
        raise ReleaseError(f"files of /etc/towpath can be read by others: {modes}")
    entered = roots.entered(root, *command, user="towpath:towpath", unprivileged=True)
    # Deployments are as the settings of the package say.
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "TOWPATH_DEPLOYMENTS_BACKEND"}
    return Start(entered, UNIT | environment, base / "var/lib/towpath/exports")


def image(place: Place) -> Installed:
    package = place.package(f"towpath-{place.release.version}-{place.target.label}.oci.tar")
    layout = place.folder / "layout"
    with tarfile.open(package) as file:
        file.extractall(layout, filter="data")

    def blob(described) -> pathlib.Path:
        return layout / "blobs" / described["digest"].replace(":", "/")

    (entry,) = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    config = json.loads(blob(manifest["config"]).read_text())["config"]
    root = roots.unpack([blob(layer) for layer in manifest["layers"]], place.folder / "root")
    shutil.rmtree(layout)
    environment = dict(value.split("=", 1) for value in config["Env"]) | ENVIRONMENT
    user = f"{config['User']}:{config['User']}"
    for program in ("git", "uv", "python3"):
        roots.run(roots.entered(root, program, "--version", user=user), f"{program} --version", environment)
    command = [*config["Entrypoint"], *config["Cmd"][:-1], place.listen]

    def health(port: int):
        test = [word.replace("/8400;", f"/{port};") for word in config["Healthcheck"]["Test"][1:]]
        roots.run(roots.entered(root, *test, user=user), "the health check", environment)

    start = Start(roots.entered(root, *command, user=user), environment, root / "data/exports", also=health)
    return Installed(package, "its own layers", start)


def npm(place: Place) -> Installed:
    package = place.package(f"towpath-cli-linux-{place.target.npm}*-{place.release.version}.tgz")
    main = place.package(f"towpath-{place.release.version}.tgz")
    if not shutil.which("npm"):
        raise Unavailable("npm is not installed (Debian: apt-get install npm)")
    prefix = place.folder / "npm"
    prefix.mkdir()
    options = ["--prefix", prefix, "--offline", "--no-audit", "--no-fund", "--cache", place.folder / "cache"]
    roots.run(["npm", "install", *options, package, main], "npm install")
    data = place.folder / "data"
    command = [str(prefix / "node_modules/.bin/towpath"), *place.dev(str(data))]
    return Installed(package, "a new folder", Start(command, clean(), data / "exports", place.folder))


def install_script(place: Place) -> Installed:
    script = place.package("install.sh")
    home = place.folder / "home"
    home.mkdir()
    libc = {"TOWPATH_LIBC": place.target.libc}
    environment = clean() | {"HOME": str(home), "TOWPATH_BASE_URL": place.packages.as_uri(), **libc}
    # A package that was changed on its way is refused.
    refuses_others(place, script, environment)
    roots.run(["sh", script], "install.sh", environment)
    data = place.folder / "data"
    command = [str(home / ".local/bin/towpath"), *place.dev(str(data))]
    return Installed(script, "a new home folder", Start(command, clean(), data / "exports", place.folder))


def refuses_others(place: Place, script: pathlib.Path, environment: dict[str, str]):
    wrong = place.folder / "wrong"
    wrong.mkdir()
    name = f"towpath-{place.release.version}-{place.target.label}.tar.gz"
    (wrong / name).write_bytes(b"another file")
    done = subprocess.run(["sh", script], env=environment | {"TOWPATH_BASE_URL": wrong.as_uri()}, capture_output=True, text=True)
    if done.returncode == 0 or "nothing was installed" not in done.stderr:
        raise ReleaseError(f"install.sh took a package with another SHA-256: {done.stdout}{done.stderr}")


def clean() -> dict[str, str]:
    """Nothing of the caller's but where programs are."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **ENVIRONMENT}


CHECKS: dict[str, Callable[[Place], Installed]] = {
    "tarball": tarball,
    "wheel": wheel,
    "deb": deb,
    "rpm": rpm,
    "image": image,
    "npm": npm,
    "install.sh": install_script,
}
NEED_ROOT = ("tarball", "deb", "rpm", "image")


def run(options: Options, release: Project, out: pathlib.Path, say) -> int:
    rows, failures, passed = [], [], 0
    with tempfile.TemporaryDirectory(prefix="towpath-check-") as folder:
        for target in options.targets:
            for kind in options.only:
                if target.is_static and kind in ("deb", "rpm", "service"):
                    continue
                name = f"{kind}, {target.label}"
                place = Place(release, target, out, pathlib.Path(folder) / name.replace(", ", "-"), pathlib.Path(folder))
                place.folder.mkdir()
                try:
                    if kind == "service":
                        steps = boot.run(place.package(f"towpath_*_{target.deb}.deb"), place.folder)
                        say("service: " + ", ".join(f"{step} {seconds:.2f} s" for step, seconds in steps))
                        passed += 1
                        continue
                    rows.append(one(kind, place))
                    passed += 1
                except Unavailable as missing:
                    say(f"skipped {name}: {missing}")
                    failures += [name] if options.strict else []
                except ReleaseError as error:
                    say(f"failed {name}: {error}")
                    failures.append(name)
                finally:
                    with contextlib.suppress(OSError):
                        shutil.rmtree(place.folder)
    if rows:
        say(*table(rows))
    say(f"{passed} passed, {len(failures)} failed")
    return 1 if failures or not passed else 0


def one(kind: str, place: Place) -> tuple[str, ...]:
    if kind in NEED_ROOT and os.geteuid() != 0:
        raise Unavailable("chroot needs root")
    if kind in NEED_ROOT and kind != "image":
        # The base is not part of what an installation takes.
        roots.bare(place.shared)
    began = time.monotonic()
    installed = CHECKS[kind](place)
    took = time.monotonic() - began
    times = walk.run(installed.start, place.port)
    seconds = (f"{value:.2f}" for value in (took, times.answer, times.export, times.stop))
    return (installed.package.name, installed.where, f"{installed.package.stat().st_size / 1e6:.1f}", *seconds)


def table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(HEADERS, *rows)]
    lines = [HEADERS, tuple("-" * width for width in widths), *rows]
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]

"""What `Dockerfile` says about the image, so that it is written once."""

import dataclasses
import json
import re
import shlex

from releasing.errors import ReleaseError


@dataclasses.dataclass(frozen=True)
class Image:
    suite: str
    packages: tuple[str, ...]
    uv: str
    # The line that makes the account.
    useradd: str
    # The line that closes programs to readers.
    chmod: str
    # As Docker keeps it.
    config: dict


def seconds(text: str) -> int:
    """In nanoseconds."""
    return int(text.removesuffix("s")) * 1_000_000_000


def parse(text: str) -> Image:
    """Reads the first stage: it is what runs."""
    joined = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    stage = re.split(r"^(?=FROM )", joined, flags=re.MULTILINE)[1]
    lines = [line.split(None, 1) for line in stage.splitlines() if line.strip()]
    of = {}
    for word, rest in lines:
        of.setdefault(word, []).append(rest.strip())

    def found(pattern: str, where: str) -> str:
        match = re.search(pattern, where)
        if not match:
            raise ReleaseError(f"Dockerfile: nothing in it looks like `{pattern}`")
        return match[1].strip()

    run = " ".join(of["RUN"])
    packages = found(r"--no-install-recommends\s+(.*?)\s+&&", run).split()
    useradd = found(r"&& (useradd [^&]*)", run)
    config = {
        # By number: orchestrators that forbid root cannot look up names.
        "User": found(r"--uid (\d+)", useradd),
        "WorkingDir": of["WORKDIR"][0],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", *of["ENV"]],
        "Volumes": {path: {} for path in of["VOLUME"]},
        "ExposedPorts": {f"{port}/tcp": {} for port in of["EXPOSE"][0].split()},
        "StopSignal": of["STOPSIGNAL"][0],
        "Entrypoint": json.loads(of["ENTRYPOINT"][0]),
        "Cmd": json.loads(of["CMD"][0]),
        "Healthcheck": health_check(of["HEALTHCHECK"][0]),
    }
    return Image(
        suite=found(r"^debian:(\w+)-slim", of["FROM"][0]),
        packages=tuple(sorted(package for package in packages if not package.startswith("$"))),
        uv=found(r"uv==(\S+)", run),
        useradd=useradd,
        chmod=found(r"&& (chmod [^&]*)", run),
        config=config,
    )


def health_check(text: str) -> dict:
    options, command = text.split("CMD", 1)
    given = dict(option.removeprefix("--").split("=", 1) for option in shlex.split(options))
    return {
        "Test": ["CMD", *json.loads(command)],
        "Interval": seconds(given["interval"]),
        "Timeout": seconds(given["timeout"]),
        "StartPeriod": seconds(given["start-period"]),
        "Retries": int(given["retries"]),
    }

"""What a binary can be built for, and what each kind of package calls it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Target:
    triple: str
    # In file names: `towpath-0.1.0-x86_64-linux.tar.gz`.
    label: str
    machine: str
    libc: str
    deb: str
    rpm: str
    npm: str
    oci: str

    @property
    def is_static(self) -> bool:
        return self.libc == "musl"

    def wheel_tag(self, glibc: tuple[int, int]) -> str:
        """`glibc` is the oldest that the binary runs on."""
        if self.is_static:
            # It asks nothing of the system, so glibc systems may have it, too.
            return f"py3-none-manylinux_2_17_{self.machine}.musllinux_1_1_{self.machine}"
        return f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{self.machine}"


TARGETS = (
    Target("x86_64-unknown-linux-gnu", "x86_64-linux", "x86_64", "gnu", "amd64", "x86_64", "x64", "amd64"),
    Target("x86_64-unknown-linux-musl", "x86_64-linux-musl", "x86_64", "musl", "amd64", "x86_64", "x64", "amd64"),
    Target("aarch64-unknown-linux-gnu", "aarch64-linux", "aarch64", "gnu", "arm64", "aarch64", "arm64", "arm64"),
    Target("aarch64-unknown-linux-musl", "aarch64-linux-musl", "aarch64", "musl", "arm64", "aarch64", "arm64", "arm64"),
)
BY_LABEL = {target.label: target for target in TARGETS}
DEFAULT = TARGETS[0]

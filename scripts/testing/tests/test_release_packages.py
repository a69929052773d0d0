import email
import hashlib
import io
import json
import lzma
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import zipfile

from releasing import boot, deb, dockerfile, elf, image, installers, npm, payload, project, rpm, system, tarball, wheel
from releasing.archive import File
from releasing.errors import ReleaseError
from releasing.payload import Payload
from releasing.project import TOP, Project
from releasing.targets import BY_LABEL, TARGETS

RELEASE = Project("1.2.3", 1_700_000_000, "An open platform", "https://example.com/towpath")
GNU, MUSL = BY_LABEL["x86_64-linux"], BY_LABEL["x86_64-linux-musl"]
DYNAMIC = elf.Program("x86_64", "/lib64/ld-linux-x86-64.so.2", ("libc.so.6", "libgcc_s.so.1"), ("GLIBC_2.28", "GLIBC_2.9"))
STATIC = elf.Program("x86_64", None, (), ())


class Packages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.binary = self.folder / "towpath"
        self.binary.write_bytes(b"\x7fELF program")

    def payload(self, target=GNU, program=DYNAMIC) -> Payload:
        documents = (
            File("share/man/man1/towpath.1", b".TH towpath"),
            File("share/bash-completion/completions/towpath", b"complete"),
        )
        return Payload(RELEASE, target, self.binary, program, documents, b"licences", b"{}")


class Admission(unittest.TestCase):
    def test_a_newer_glibc_is_refused(self):
        with self.assertRaisesRegex(ReleaseError, r"needs glibc 2\.28; packages are for 2\.17"):
            payload.admit(DYNAMIC, GNU, (2, 17))
        payload.admit(DYNAMIC, GNU, (2, 28))

    def test_a_program_of_another_machine_is_refused(self):
        with self.assertRaisesRegex(ReleaseError, "is for x86_64, the package for aarch64"):
            payload.admit(DYNAMIC, BY_LABEL["aarch64-linux"], (2, 28))

    def test_a_musl_program_is_static(self):
        payload.admit(STATIC, MUSL, (2, 28))
        with self.assertRaisesRegex(ReleaseError, "is not static"):
            payload.admit(DYNAMIC, MUSL, (2, 28))
        with self.assertRaisesRegex(ReleaseError, "package it for a musl target"):
            payload.admit(STATIC, GNU, (2, 28))

    def test_a_library_that_systems_may_lack_is_refused(self):
        program = elf.Program("x86_64", "/lib64/ld", ("libc.so.6", "libssl.so.3"), ("GLIBC_2.9",))
        with self.assertRaisesRegex(ReleaseError, r"libssl\.so\.3"):
            payload.admit(program, GNU, (2, 28))


class Tarball(Packages):
    def test_it_fits_over_a_prefix(self):
        found = self.payload()
        with tarfile.open(fileobj=io.BytesIO(tarball.make(found))) as opened:
            names = opened.getnames()
            self.assertEqual(oct(opened.getmember("towpath-1.2.3-x86_64-linux/bin/towpath").mode), "0o755")
        self.assertEqual(tarball.name(found), installers.tarball_of(RELEASE, GNU))
        self.assertIn("towpath-1.2.3-x86_64-linux/share/man/man1/towpath.1", names)
        self.assertIn("towpath-1.2.3-x86_64-linux/share/doc/towpath/THIRD-PARTY-LICENSES.txt", names)

    def test_the_same_twice(self):
        for maker in (tarball, wheel, deb, npm):
            self.assertEqual(maker.make(self.payload()), maker.make(self.payload()), maker.__name__)


class Wheel(Packages):
    def test_its_record_is_that_of_its_files(self):
        found = self.payload()
        with zipfile.ZipFile(io.BytesIO(wheel.make(found))) as opened:
            rows = [row.split(",") for row in opened.read("towpath-1.2.3.dist-info/RECORD").decode().splitlines()]
            self.assertEqual({row[0] for row in rows}, set(opened.namelist()))
            for path, _, size in rows[:-1]:
                self.assertEqual(len(opened.read(path)), int(size))
            head = email.message_from_bytes(opened.read("towpath-1.2.3.dist-info/METADATA"))
            for path in head.get_all("License-File"):
                self.assertIn(f"towpath-1.2.3.dist-info/licenses/{path}", opened.namelist())
        self.assertEqual((head["Name"], head["Version"]), ("towpath", "1.2.3"))

    def test_its_tag_says_which_systems_it_is_for(self):
        self.assertEqual(wheel.name(self.payload()), "towpath-1.2.3-py3-none-manylinux_2_28_x86_64.whl")
        name = wheel.name(self.payload(MUSL, STATIC))
        self.assertEqual(name, "towpath-1.2.3-py3-none-manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl")
        self.assertEqual(wheel.expanded("py3-none-a.b"), ["py3-none-a", "py3-none-b"])


class Deb(Packages):
    def parts(self, found: Payload) -> dict[str, bytes]:
        data = deb.make(found)
        self.assertEqual(data[:8], b"!<arch>\n")
        at, parts = 8, {}
        while at < len(data):
            size = int(data[at + 48 : at + 58])
            parts[data[at : at + 16].decode().strip()] = data[at + 60 : at + 60 + size]
            at += 60 + size + size % 2
        return parts

    def test_its_control_file_follows_the_program(self):
        parts = self.parts(self.payload())
        self.assertEqual(list(parts), ["debian-binary", "control.tar.xz", "data.tar.xz"])
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(parts["control.tar.xz"]))) as opened:
            control = opened.extractfile("./control").read().decode()
            self.assertEqual(oct(opened.getmember("./postinst").mode), "0o755")
        self.assertIn("Depends: ca-certificates, libc6 (>= 2.28), libgcc-s1 | libgcc1, passwd\n", control)
        self.assertNotIn("libc6", deb.depends(self.payload(MUSL, STATIC)))
        self.assertTrue(all(line.startswith((" ", "Package:", "Version:")) or ":" in line for line in control.splitlines()))

    def test_secrets_are_for_root(self):
        parts = self.parts(self.payload())
        with tarfile.open(fileobj=io.BytesIO(lzma.decompress(parts["data.tar.xz"]))) as opened:
            self.assertEqual(oct(opened.getmember("./etc/towpath/towpath.env").mode), "0o600")

    def test_dpkg_reads_it(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb")
        path = self.folder / "towpath.deb"
        path.write_bytes(deb.make(self.payload()))
        said = subprocess.run(["dpkg-deb", "--field", path, "Version"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(said, "1.2.3-1\n")


class System(Packages):
    def test_the_scripts_are_those_of_a_shell(self):
        for name in ("preinst", "postinst", "prerm", "postrm", "boot.sh"):
            done = subprocess.run(["sh", "-n", project.TEMPLATES / name], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)

    def test_what_scripts_name_is_installed(self):
        paths = {f"/{file.path}" for file in system.files(self.payload())}
        named = set(re.findall(r"/usr/share/towpath/[\w.-]+", "".join(system.script(name) for name in ("postinst",))))
        named |= set(re.findall(r"/usr/share/towpath/[\w-]+\.conf", project.template("towpath.toml")))
        self.assertTrue(named)
        self.assertLessEqual(named, paths)

    def test_the_unit_drains_and_leaves_sandboxes_what_they_need(self):
        unit = project.template("towpath.service")
        settings = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
        self.assertEqual(settings["KillMode"], "mixed")
        # More than engine.drain_grace_seconds and deployments.drain_grace_seconds, as they are without settings.
        self.assertGreater(int(settings["TimeoutStopSec"]), 13)
        self.assertEqual(settings["Delegate"], "cpu memory pids")
        broken = {"RestrictNamespaces", "SystemCallFilter", "ProtectHostname", "ProtectProc", "ProtectKernelTunables"}
        broken |= {"ProtectKernelLogs", "ProtectKernelModules", "ProtectControlGroups", "MemoryDenyWriteExecute"}
        self.assertFalse(broken & settings.keys())

    def test_the_group_of_the_drop_in_is_that_of_the_platform(self):
        """Started elsewhere, the platform would move, and systemd could not start it again beside running sandboxes."""
        for source in ("crates/sandbox/src/namespace/cgroups.rs", "crates/compute/src/limits.rs"):
            (leaf,) = re.findall(r'const (?:LEAF|PLATFORM_GROUP): &str = "([^"]+)"', (TOP / source).read_text())
            self.assertIn(f"DelegateSubgroup={leaf}\n", project.template("keep-sandboxes.conf"))

    def test_the_platform_as_root_has_the_rights_of_root(self):
        lines = project.template("isolate-deployments.conf").splitlines()
        self.assertLessEqual({"User=root", "CapabilityBoundingSet=~", "NoNewPrivileges=no"}, set(lines))

    def test_the_rpm_lists_every_file(self):
        spec = rpm.spec_file(self.payload(), self.folder)
        for file in system.files(self.payload()):
            self.assertRegex(spec, rf"(?m)^%.* /{re.escape(file.path)}$")
        self.assertIn("Requires: libc.so.6(GLIBC_2.28)(64bit)", spec)
        self.assertNotIn("libc.so.6", rpm.requires(self.payload(MUSL, STATIC)))


class Boot(unittest.TestCase):
    def test_a_step_lasts_until_the_next(self):
        said = "step: install (10.500000000)\nSetting up\nstep: start (12.000000000)\nstep: end (12.250000000)\npassed\n"
        self.assertEqual(boot.steps(said), [("install", 1.5), ("start", 0.25)])


class Image(Packages):
    def test_the_dockerfile_is_read(self):
        found = dockerfile.parse((TOP / "Dockerfile").read_text())
        self.assertLessEqual({"git", "python3", "python3-venv", "tini"}, set(found.packages))
        self.assertFalse([package for package in found.packages if not re.fullmatch(r"[a-z0-9.+-]+", package)])
        self.assertIn(f"--uid {found.config['User']} ", found.useradd)
        self.assertNotEqual(found.config["User"], "0")
        self.assertEqual(found.config["Healthcheck"]["Test"][:2], ["CMD", "bash"])
        # The check asks where the command listens.
        port = found.config["Cmd"][-1].rsplit(":", 1)[1]
        self.assertIn(f"/{port};", found.config["Healthcheck"]["Test"][3])
        self.assertEqual(found.config["Entrypoint"][-1], "towpath")

    def test_digests_are_those_of_the_blobs(self):
        layers = [b"base", b"programs"]
        data = image.layout(self.payload(), {"User": "10001"}, layers)
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            files = {entry.name: opened.extractfile(entry).read() for entry in opened.getmembers() if entry.isfile()}
        blobs = {name.removeprefix("blobs/sha256/"): content for name, content in files.items() if name.startswith("blobs/")}
        for name, content in blobs.items():
            self.assertEqual(hashlib.sha256(content).hexdigest(), name)
        (entry,) = json.loads(files["index.json"])["manifests"]
        manifest = json.loads(blobs[entry["digest"].removeprefix("sha256:")])
        config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
        self.assertEqual(config["rootfs"]["diff_ids"], [image.digest(layer) for layer in layers])
        self.assertEqual(config["config"]["User"], "10001")
        (old,) = json.loads(files["manifest.json"])
        self.assertLessEqual({old["Config"], *old["Layers"]}, files.keys())


class Npm(Packages):
    def test_the_main_package_names_those_of_machines(self):
        data = npm.make_main(RELEASE, list(TARGETS[:2]))
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            described = json.load(opened.extractfile("package/package.json"))
        self.assertEqual(
            described["optionalDependencies"],
            {"@towpath/cli-linux-x64": "1.2.3", "@towpath/cli-linux-x64-musl": "1.2.3"},
        )
        with tarfile.open(fileobj=io.BytesIO(npm.make(self.payload()))) as opened:
            self.assertEqual(oct(opened.getmember("package/bin/towpath").mode), "0o755")
            self.assertEqual(json.load(opened.extractfile("package/package.json"))["name"], "@towpath/cli-linux-x64")
        self.assertEqual(npm.name(self.payload()), "towpath-cli-linux-x64-1.2.3.tgz")


class Installers(Packages):
    def test_install_sh_refuses_another_file_and_installs_its_own(self):
        self.binary.write_text("#!/bin/sh\necho towpath 1.2.3\n")
        package = tarball.make(self.payload())
        name = installers.tarball_of(RELEASE, GNU)
        script = self.folder / "install.sh"
        script.write_text(installers.install_script(RELEASE, {GNU: hashlib.sha256(package).hexdigest()}, (2, 28)))
        machine = subprocess.run(["uname", "-m"], capture_output=True, text=True).stdout.strip()
        if machine != "x86_64" or not (shutil.which("curl") or shutil.which("wget")):
            self.skipTest("no curl, or another machine")
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder / "home"), "TOWPATH_LIBC": "gnu"}

        def run(content: bytes):
            (self.folder / name).write_bytes(content)
            given = environment | {"TOWPATH_BASE_URL": self.folder.as_uri()}
            return subprocess.run(["sh", script], env=given, capture_output=True, text=True)

        refused = run(package + b"\0")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("nothing was installed", refused.stderr)
        self.assertFalse((self.folder / "home").exists())
        done = run(package)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue((self.folder / "home/.local/bin/towpath").exists())
        self.assertTrue((self.folder / "home/.local/share/man/man1/towpath.1").exists())

    def test_the_formula_has_the_sum_of_its_tarball(self):
        found = installers.formula(RELEASE, {GNU: "ab12", MUSL: "cd34", BY_LABEL["aarch64-linux-musl"]: "ef56"})
        self.assertIn('sha256 "ab12"', found)
        self.assertNotIn("cd34", found)
        self.assertIn('towpath-1.2.3-aarch64-linux-musl.tar.gz"\n    sha256 "ef56"', found)
        self.assertNotIn("@", found)

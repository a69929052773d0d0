"""docker-compose.yml names commands and variables that work: they are started here as they stand there, with nothing
but the addresses replaced. Objects and one export go to an S3 stand-in, since Garage cannot be had everywhere."""

import os
import re
import subprocess
import sys
import uuid

import boto3
import pytest
import yaml

import expected
import harness
import parquet
from recorder import Recorder
from test_traces_export import PAST, in_the_past, send

ROLES = ("api", "worker", "scheduler")
GIVEN = {"TOWPATH_API_KEY": harness.KEY, "TOWPATH_ENCRYPTION_KEY": "5a" * 32}


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load((harness.ROOT / "docker-compose.yml").read_text())


def substituted(text, given):
    """`${NAME}`, `${NAME:-default}` and `${NAME:?message}`, as compose reads them."""

    def value(match):
        name, operator, rest = match.group(1), match.group(2), match.group(3)
        if given.get(name):
            return given[name]
        assert operator != ":?", f"{name} is asked for and not given: {rest}"
        return rest or ""

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, str(text))


def test_every_service_is_there(compose):
    services = compose["services"]
    assert {"postgres", "redis", "s3", "migrate", *ROLES} <= services.keys()
    for name in ("migrate", *ROLES):
        assert services[name]["image"] == "towpath", name
        for needed in services[name]["depends_on"]:
            assert needed in services, (name, needed)
    # Nothing is offered to the network of the machine.
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
    built = (harness.ROOT / "Dockerfile").read_text()
    assert "chmod 0711 /usr/bin/tini /bin/bash" in built
    assert 'ENTRYPOINT ["tini", "-s", "--", "towpath"]' in built
    for program in ("tini", "git", "openssh-client", "python3-venv", "uv"):
        assert re.search(rf"\b{program}\b", built), program
    assert services["migrate"]["build"]["args"] == {"EXTRA_PACKAGES": "nodejs npm"}
    # pg_dump refuses a server newer than itself.
    client = int(re.search(r"postgresql-client-(\d+)", built).group(1))
    assert client >= int(re.search(r"postgres:(\d+)", services["postgres"]["image"]).group(1))
    for name in ("migrate", *ROLES):
        # The image reaps orphans itself; an init of the engine shows its environment to code of deployments.
        assert "init" not in services[name], name
    # One container runs deployments, and has the gateway that reaches them.
    keeps = [name for name in ROLES if services[name]["environment"].get("TOWPATH_DEPLOYMENTS_BACKEND") == "process"]
    assert keeps == ["api"] and "api,worker" in services["api"]["command"]
    # The store keeps what it has over a restart, its bucket too.
    assert "s3:/var/lib/garage" in services["s3"]["volumes"] and "--default-bucket" in services["s3"]["command"]


def test_keys_have_to_be_given(compose):
    environment = compose["services"]["api"]["environment"]
    for name in GIVEN:
        with pytest.raises(AssertionError, match=name):
            substituted(environment[name], {})


@pytest.fixture
def stand_in(tmp_path):
    """The S3 stand-in on a port of its own, with the bucket."""
    address = harness.free_address()
    host, port = address.split(":")
    with (tmp_path / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    client = boto3.client(
        "s3", endpoint_url=f"http://{address}", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )

    def ask():
        assert child.poll() is None, (tmp_path / "moto.log").read_text()
        try:
            return client.create_bucket(Bucket="towpath")
        except Exception:
            return None

    try:
        harness.until("the stand-in to answer", ask, 30)
        yield address, client
    finally:
        child.kill()
        child.wait()


class ComposeWorld(harness.World):
    """The services of the file as processes."""

    def __init__(self, compose, s3):
        self.compose, self.s3 = compose, s3
        super().__init__("compose")

    def start_embedded(self):
        raise NotImplementedError

    def start_cluster(self, workers):
        self.database = harness.create_database()
        self.redis, redis = harness.start_redis(self.folder)
        self.tenant = "00000000-0000-4000-8000-000000000001"
        services = self.compose["services"]
        places = {"redis:6379": redis, "s3:3900": self.s3, "/data": str(self.data)}

        def environment(service):
            found = {}
            for name, value in service["environment"].items():
                value = substituted(value, GIVEN)
                if name == "DATABASE_URI":
                    value = self.database
                for theirs, ours in places.items():
                    value = value.replace(theirs, ours)
                found[name] = value
            return found

        migrate = services["migrate"]
        harness.Process("migrate", [harness.binary(), *migrate["command"]], environment(migrate), self.folder).succeed()
        for role in ROLES:
            service, address = services[role], harness.free_address()
            command = list(service["command"])
            at = command.index("--listen") + 1
            assert command[at].startswith("0.0.0.0:")
            command[at] = address
            process = harness.Process(role, [harness.binary(), *command], environment(service), self.folder, address)
            self.processes.append(process.ready())
            if role == "api":
                self.api = address


@pytest.mark.skipif("TOWPATH_TEST_POSTGRES" not in os.environ, reason="TOWPATH_TEST_POSTGRES is not set")
def test_the_commands_run_and_export_to_s3(compose, stand_in, tmp_path):
    s3, client = stand_in
    world = ComposeWorld(compose, s3)
    try:
        recorder = Recorder(world.api)
        send(recorder.url, world.tenant, "compose", "zstd", traces=2)
        recorder.close()
        session = world.project("compose")
        kept = client.list_objects_v2(Bucket="towpath", Prefix="objects/")
        assert kept["KeyCount"] > 0, "TOWPATH_OBJECTS names the bucket"

        exports = "/api/v1/bulk-exports"
        place = {
            "destination_type": "s3",
            "display_name": "stand-in",
            "config": {"bucket_name": "towpath", "prefix": "out", "region": "us-east-1", "endpoint_url": f"http://{s3}"},
            "credentials": {"access_key_id": "canary-id", "secret_access_key": "canary-secret-0123456789"},
        }
        made = world.call("POST", f"{exports}/destinations", place)
        assert "canary" not in str(made)
        missing = place | {"config": place["config"] | {"bucket_name": "no-such-bucket"}}
        status, answer = world.request("POST", f"{exports}/destinations", missing)
        assert status == 400 and answer["detail"].startswith("Bucket is not valid"), answer

        export = world.export(made["id"], session, *PAST)
        world.completed(export)
        for found in client.list_objects_v2(Bucket="towpath", Prefix="out/export_id=")["Contents"]:
            local = tmp_path / found["Key"]
            local.parent.mkdir(parents=True, exist_ok=True)
            client.download_file("towpath", found["Key"], str(local))
        files = parquet.files(tmp_path / "out", export, world.tenant, session)
        wanted = expected.rows(recorder.ingested(), world.tenant, session)
        parquet.assert_same(parquet.by_pyarrow(files), in_the_past(wanted))
        assert parquet.manifest(tmp_path / "out", export) is not None
        logs = "".join(process.log.read_text(errors="replace") for process in world.processes)
        assert "canary-secret" not in logs, "a log carries a secret"
        world.stop()
    except BaseException:
        print(world.logs())
        world.drop()
        raise


def test_a_foreign_name_is_never_taken(compose):
    """Every variable of the file is one that the binary knows: it warns about others."""
    environment = {name: substituted(value, GIVEN) for name, value in compose["services"]["api"]["environment"].items()}
    command = [harness.binary(), "config", "--for", "api", "check"]
    done = subprocess.run(
        command, env={"PATH": os.environ["PATH"]} | environment, capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not a setting" not in done.stdout + done.stderr, done.stdout + done.stderr

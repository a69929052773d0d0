"""Exports to a bucket: a real S3 speaker checks keys and signatures, and a proxy harms the line to it."""

import base64
import json
import os
import random
import subprocess
import time
import uuid

import botocore.exceptions
import pytest

import expected
import harness
import parquet
import s3
from recorder import Recorder
from test_traces_export import PAST, in_the_past, send

DESTINATIONS = "/api/v1/bulk-exports/destinations"
CANARY = "canary-secret-0123456789"


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    running = s3.Stand(tmp_path_factory.mktemp("s3"))
    yield running
    running.stop()


@pytest.fixture
def proxy(stand):
    running = harness.FaultProxy(stand.address)
    yield running
    running.stop()


@pytest.fixture
def prefix():
    return f"p/{uuid.uuid4().hex}"


def request_for(stand, prefix, keys, **config):
    place = {"bucket_name": s3.BUCKET, "prefix": prefix, "region": "us-east-1", "endpoint_url": stand.url} | config
    body = {"destination_type": "s3", "display_name": "bucket", "config": place, "credentials": keys}
    return {name: value for name, value in body.items() if value is not None}


def destination(world, stand, prefix, keys, **config) -> str:
    return world.call("POST", DESTINATIONS, request_for(stand, prefix, keys, **config))["id"]


def refused(world, body) -> str:
    """The text of a refusal; nothing may be stored by it and no secret may be in it."""
    before = world.call("GET", DESTINATIONS)
    began = time.monotonic()
    status, answer = world.request("POST", DESTINATIONS, body)
    assert time.monotonic() - began < 40, "nobody waits that long for a refusal"
    assert status == 400, answer
    assert world.call("GET", DESTINATIONS) == before
    for secret in (body.get("credentials") or {}).values():
        assert secret not in json.dumps(answer) or secret == body["credentials"]["access_key_id"]
    return answer["detail"]


@pytest.fixture(scope="module")
def traced(world):
    """A project with trees of runs: its id and the rows that have to come back."""
    recorder = Recorder(world.api)
    name = f"s3-{world.layout}"
    send(recorder.url, world.tenant, name, "zstd", traces=3)
    recorder.close()
    session = world.project(name)
    return session, in_the_past(expected.rows(recorder.ingested(), world.tenant, session))


@pytest.fixture(scope="module")
def bulky(world):
    """A project of `bulk` that tests share."""
    return bulk(world)


def bulk(world):
    """A project whose export is larger than one part of an upload, since its texts do not compress: id and ids."""
    dice, ids, name = random.Random(7), [], f"bulky-{world.layout}"
    for _ in range(16):
        run = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        text = base64.b64encode(dice.randbytes(1_200_000)).decode()
        body = {"id": run, "trace_id": run, "dotted_order": f"20240301T000000000000Z{run}", "name": "big"}
        body |= {"run_type": "llm", "start_time": "2024-03-01T00:00:00Z", "session_name": name, "inputs": {"text": text}}
        world.call("POST", "/runs/batch", {"post": [body], "patch": []}, 202)
        ids.append(run)
    return world.project(name), ids


def comes_back(world, stand, tmp_path, prefix, export, session, wanted):
    folder = stand.download(prefix, tmp_path)
    files = parquet.files(folder, export, world.tenant, session)
    rows = parquet.by_pyarrow(files)
    parquet.assert_same(rows, wanted)
    told = parquet.manifest(folder, export)
    listed = sorted(file["path"] for partition in told["partitions"] for file in partition["files"])
    assert [str(file).endswith(path) for file, path in zip(files, listed, strict=True)] == [True] * len(files)
    assert told["rows"] == len(rows)
    assert stand.open_uploads(prefix) == []


def test_the_stand_in_checks_keys(stand):
    """Or nothing that is tested here would mean anything."""
    wrong = stand.keys["owner"] | {"secret_access_key": "wrong"}
    for keys, code in [
        (wrong, "SignatureDoesNotMatch"),
        ({"access_key_id": "AKIANOBODY", "secret_access_key": "x"}, "InvalidAccessKeyId"),
        (stand.keys["reader"], "AccessDenied"),
        (stand.temporary_keys() | {"session_token": "another"}, "InvalidToken"),
    ]:
        with pytest.raises(botocore.exceptions.ClientError) as told:
            stand.client("s3", keys).put_object(Bucket=s3.BUCKET, Key="x", Body=b"x")
        assert told.value.response["Error"]["Code"] == code


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("id", "Key ID you provided does not exist: InvalidAccessKeyId (403) for key {prefix}/tmp/"),
        ("secret", "Access denied: SignatureDoesNotMatch (403) for key {prefix}/tmp/"),
        ("rights", "Access denied: AccessDenied (403) for key {prefix}/tmp/"),
        ("token", "Access denied: InvalidToken (400) for key {prefix}/tmp/"),
        ("no token", "Key ID you provided does not exist: InvalidAccessKeyId (403) for key {prefix}/tmp/"),
        ("bucket", "Bucket is not valid: NoSuchBucket (404) for key {prefix}/tmp/"),
        ("closed", "Invalid endpoint: the connection was refused for key {prefix}/tmp/"),
        ("foreign", "Invalid endpoint: status "),
        ("unnamed", "Invalid endpoint: no-such-name.invalid cannot be resolved"),
    ],
)
def test_refusals_begin_with_the_words_of_the_api(world, stand, prefix, what, text):
    keys, config = stand.keys["owner"], {}
    if what == "id":
        keys = {"access_key_id": "AKIANOBODY", "secret_access_key": CANARY}
    elif what == "secret":
        keys = keys | {"secret_access_key": CANARY}
    elif what == "rights":
        keys = stand.keys["reader"]
    elif what == "token":
        keys = stand.temporary_keys() | {"session_token": CANARY}
    elif what == "no token":
        keys = {name: value for name, value in stand.temporary_keys().items() if name != "session_token"}
    elif what == "bucket":
        config["bucket_name"] = "nowhere"
    elif what == "closed":
        config["endpoint_url"] = f"http://{harness.free_address()}"
    elif what == "foreign":
        config["endpoint_url"] = f"http://{world.api}"
    elif what == "unnamed":
        config["endpoint_url"] = "https://no-such-name.invalid"
    told = refused(world, request_for(stand, prefix, keys, **config))
    assert told.startswith(text.format(prefix=prefix)), told
    assert CANARY not in told + world.logs()


@pytest.mark.parametrize("mode", ["half-open both", "reset", "drop"])
def test_an_endpoint_that_does_not_answer_is_none(world, proxy, prefix, mode, stand):
    proxy.set(mode)
    told = refused(world, request_for(stand, prefix, stand.keys["owner"], endpoint_url=proxy.url))
    assert told.startswith("Invalid endpoint: "), told
    assert proxy.harmed() > 0


def test_a_short_illness_of_the_line_is_no_refusal(world, stand, proxy, prefix):
    for mode in ("slice 7", "delay 300", "throttle 3000"):
        proxy.set(mode)
        before = proxy.harmed()
        destination(world, stand, prefix, stand.keys["owner"], endpoint_url=proxy.url)
        assert proxy.harmed() > before, mode


def test_the_test_file(world, stand, prefix):
    """It is deleted where that is allowed; without the right it stays below `tmp`, and that is no refusal."""
    destination(world, stand, prefix, stand.keys["owner"])
    assert stand.names(prefix) == []
    destination(world, stand, prefix, stand.keys["writer"])
    (left,) = stand.names(prefix)
    assert left.startswith(f"{prefix}/tmp/") and left.endswith(".txt")


def test_the_bucket_in_the_prefix(world, stand, prefix):
    destination(world, stand, prefix, stand.keys["writer"], include_bucket_in_prefix=True)
    (left,) = stand.names(f"{s3.BUCKET}/{prefix}")
    assert left.startswith(f"{s3.BUCKET}/{prefix}/tmp/")
    destination(world, stand, f"{s3.BUCKET}/x{prefix}", stand.keys["writer"], include_bucket_in_prefix=True)
    assert len(stand.names(f"{s3.BUCKET}/x{prefix}/tmp/")) == 1, "it is not put there twice"


@pytest.mark.parametrize("kind", ["long-lived", "temporary", "least rights", "unsigned body"])
def test_every_value_comes_back_from_the_bucket(world, stand, traced, prefix, tmp_path, kind):
    session, wanted = traced
    keys = {"temporary": stand.temporary_keys, "least rights": lambda: stand.keys["writer"]}
    keys = keys.get(kind, lambda: stand.keys["owner"])()
    config = {"config_kwargs_s3": {"addressing_style": "path", "payload_signing_enabled": kind != "unsigned body"}}
    place = destination(world, stand, prefix, keys, **config)
    shown = world.call("GET", f"{DESTINATIONS}/{place}")
    assert shown["credentials_keys"] == list(keys)
    assert not any(secret in json.dumps(shown) for secret in keys.values())
    export = world.export(place, session, *PAST)
    world.completed(export)
    comes_back(world, stand, tmp_path, prefix, export, session, wanted)
    assert not any(keys[name] in world.logs() for name in keys if name != "access_key_id")


@pytest.mark.parametrize("mode", ["slice 1000", "delay 100", "throttle 200000"])
def test_every_value_comes_back_over_a_bad_line(world, stand, proxy, traced, prefix, tmp_path, mode):
    session, wanted = traced
    place = destination(world, stand, prefix, stand.keys["owner"], endpoint_url=proxy.url)
    proxy.set(mode)
    before = proxy.harmed()
    export = world.export(place, session, *PAST)
    world.completed(export)
    assert proxy.harmed() > before
    runs = world.call("GET", f"/api/v1/bulk-exports/{export}/runs")
    assert [run["errors"] for run in runs] == [{}] * len(runs), "a slow line is no failure"
    comes_back(world, stand, tmp_path, prefix, export, session, wanted)


def uploading(stand, prefix):
    return harness.until("an upload in parts", lambda: stand.open_uploads(prefix) or None, 60)


def bulky_export(world, place, session):
    return world.export(place, session, "2024-03-01T00:00:00Z", "2024-03-02T00:00:00Z")


@pytest.fixture(params=["embedded", "cluster"])
def hasty(request):
    """A world that soon retries what failed."""
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    running = harness.World(request.param, {"TOWPATH_EXPORTS_RETRY_SECONDS": "1"})
    yield running
    running.stop()


def test_connections_reset_in_the_middle_of_a_part(hasty, stand, proxy, prefix, tmp_path):
    world = hasty
    session, ids = bulk(world)
    place = destination(world, stand, prefix, stand.keys["owner"], endpoint_url=proxy.url)
    proxy.set("throttle 6000000")
    export = bulky_export(world, place, session)
    uploading(stand, prefix)
    before = proxy.harmed()
    proxy.set("reset")
    harness.until("a connection to be reset", lambda: proxy.harmed() > before or None)
    proxy.set("pass")
    world.completed(export)
    folder = stand.download(prefix, tmp_path)
    rows = parquet.by_pyarrow(parquet.files(folder, export, world.tenant, session))
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert stand.open_uploads(prefix) == [], "an upload in parts was left behind"


def test_a_cancelled_export_leaves_no_upload(world, stand, proxy, bulky, prefix):
    session, _ = bulky
    place = destination(world, stand, prefix, stand.keys["owner"], endpoint_url=proxy.url)
    proxy.set("throttle 1000000")
    export = bulky_export(world, place, session)
    uploading(stand, prefix)
    world.call("PATCH", f"/api/v1/bulk-exports/{export}", {"status": "Cancelled"})
    assert world.ended(export)["status"] == "CANCELLED"
    proxy.set("pass")
    harness.until("the upload to be given up", lambda: True if not stand.open_uploads(prefix) else None)
    assert stand.names(prefix) == [], "nothing is visible, and there is no manifest"


def test_what_lasts_fails_the_export_at_once(world, stand, bulky, traced, prefix):
    """Keys taken away, rights taken away, the bucket deleted: each after the destination was made."""
    session, _ = traced
    began = time.monotonic()
    keys = stand.new_keys()
    place = destination(world, stand, prefix, keys)
    stand.take_away(keys)
    bucket = f"b-{uuid.uuid4().hex}"
    stand.s3.create_bucket(Bucket=bucket)
    gone = destination(world, stand, prefix, stand.keys["owner"], bucket_name=bucket)
    stand.s3.delete_bucket(Bucket=bucket)
    expired = stand.temporary_keys()
    for place, text in [
        (place, "Key ID you provided does not exist: InvalidAccessKeyId (403) for key "),
        (gone, "Bucket is not valid: NoSuchBucket (404) for key "),
    ]:
        export = world.export(place, session, *PAST)
        record = world.ended(export)
        assert record["status"] == "FAILED", record
        assert text in record["error"], record
        runs = world.call("GET", f"/api/v1/bulk-exports/{export}/runs")
        failed = [run for run in runs if run["status"] == "FAILED"]
        assert failed and {run["status"] for run in runs} <= {"FAILED", "CANCELLED", "COMPLETED"}, runs
        for run in failed:
            assert list(run["errors"]) == ["retry_0"] and run["errors"]["retry_0"].startswith(text), run
    assert expired and time.monotonic() - began < 30, "nothing was tried again"
    assert stand.names(f"{prefix}/export_id=") == []


def test_credentials_are_rotated_by_patch(world, stand, traced, prefix, tmp_path):
    session, wanted = traced
    old, new = stand.new_keys(), None
    place = destination(world, stand, prefix, old)
    stand.take_away(old)
    assert world.ended(world.export(place, session, *PAST))["status"] == "FAILED"
    before = world.call("GET", f"{DESTINATIONS}/{place}")
    status, answer = world.request("PATCH", f"{DESTINATIONS}/{place}", {"credentials": old | {"access_key_id": "AKIANOBODY"}})
    assert status == 400 and answer["detail"].startswith("Key ID you provided does not exist: "), answer
    assert world.call("GET", f"{DESTINATIONS}/{place}") == before, "a refused change changes nothing"
    new = stand.temporary_keys()
    changed = world.call("PATCH", f"{DESTINATIONS}/{place}", {"credentials": new})
    assert changed["credentials_keys"] == ["access_key_id", "secret_access_key", "session_token"]
    export = world.export(place, session, *PAST)
    world.completed(export)
    comes_back(world, stand, tmp_path, prefix, export, session, wanted)
    renamed = world.call("PATCH", f"{DESTINATIONS}/{place}", {"display_name": "renamed"})
    assert renamed["display_name"] == "renamed" and renamed["credentials_keys"] == changed["credentials_keys"]


def test_credentials_of_the_environment_stand_under_their_switch(world, stand, prefix):
    told = refused(world, request_for(stand, prefix, None))
    if world.layout == "embedded":
        # dev lends its own; these are not known to this bucket.
        assert told.startswith("Key ID you provided does not exist: "), told
    else:
        assert told.startswith("Access denied: credentials are required"), told


class Lending(harness.World):
    """A world with other variables, and with `names`, one in which those names lead to this machine."""

    def __init__(self, layout, extra, names=()):
        self.extra, self.names = extra, names
        super().__init__(layout)

    def start_embedded(self):
        self.env |= self.extra
        super().start_embedded()

    def start_cluster(self, workers):
        self.env |= self.extra
        super().start_cluster(workers=1)

    def serve(self, name, args, address, env=None):
        super().serve(name, args, address, env)
        if self.names:
            process = self.processes[-1]
            process.kill()
            hosts = self.folder / "hosts"
            hosts.write_text("127.0.0.1 localhost " + " ".join(self.names) + "\n")
            process.command = [*alone(), "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh", *process.command]
            process.start()


def alone():
    """A command that gives its program mounts of its own."""
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


@pytest.mark.parametrize("layout", ["embedded", "cluster"])
def test_a_lent_key_writes(stand, prefix, layout, tmp_path):
    if layout == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    keys = stand.temporary_keys()
    lent = {"AWS_ACCESS_KEY_ID": keys["access_key_id"], "AWS_SECRET_ACCESS_KEY": keys["secret_access_key"]}
    lent |= {"AWS_SESSION_TOKEN": keys["session_token"], "TOWPATH_EXPORTS_ENVIRONMENT_CREDENTIALS": "true"}
    world = Lending(layout, lent)
    try:
        made = world.call("POST", DESTINATIONS, request_for(stand, prefix, None))
        assert made["credentials_keys"] == []
        recorder = Recorder(world.api)
        send(recorder.url, world.tenant, "lent", "zstd", traces=1)
        recorder.close()
        session = world.project("lent")
        export = world.export(made["id"], session, *PAST)
        world.completed(export)
        wanted = in_the_past(expected.rows(recorder.ingested(), world.tenant, session))
        comes_back(world, stand, tmp_path, prefix, export, session, wanted)
        assert keys["secret_access_key"] not in world.logs()
        world.stop()
    except BaseException:
        print(world.logs())
        world.drop()
        raise


def test_the_bucket_in_the_host_name(stand, prefix, tmp_path):
    """Virtual-hosted addressing needs names that lead here, so the process gets an /etc/hosts of its own."""
    if subprocess.run([*alone(), "mount", "--bind", "/etc/hosts", "/etc/hosts"], capture_output=True, check=False).returncode:
        pytest.skip("mounts of one's own are not allowed here")
    host = "s3.us-east-1.amazonaws.com"
    world = Lending("embedded", {}, [f"{s3.BUCKET}.{host}", host])
    try:
        endpoint = f"http://{host}:{stand.address.split(':')[1]}"
        style = {"addressing_style": "virtual"}
        place = destination(world, stand, prefix, stand.keys["owner"], endpoint_url=endpoint, config_kwargs_s3=style)
        recorder = Recorder(world.api)
        send(recorder.url, world.tenant, "hosted", "zstd", traces=1)
        recorder.close()
        session = world.project("hosted")
        export = world.export(place, session, *PAST)
        world.completed(export)
        wanted = in_the_past(expected.rows(recorder.ingested(), world.tenant, session))
        comes_back(world, stand, tmp_path, prefix, export, session, wanted)
        # The stand-in's own log has the paths it was asked for: the bucket is in none of them.
        asked = [line for line in stand.log.read_text().splitlines() if f'"PUT /' in line and prefix in line]
        assert len(asked) >= 5 and not any(f'"PUT /{s3.BUCKET}/' in line for line in asked), asked
        world.stop()
    except BaseException:
        print(world.logs())
        world.drop()
        raise

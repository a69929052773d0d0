"""What is wrong is refused with the contract's status and shape, and nothing is stored."""

import uuid

import pytest

import harness

EXPORTS = "/api/v1/bulk-exports"
# Part of the names of tests, which must be the same in every process of the suite.
MISSING = "5b1c0d6e-7f43-4c1a-9a55-2f8e0b6d9c37"
RANGE = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-02T00:00:00Z"}


@pytest.fixture(scope="module")
def place(world):
    """An existing project and destination."""
    name = f"refusals-{world.layout}"
    run = str(uuid.uuid4())
    world.call("POST", "/runs", {"id": run, "name": "n", "run_type": "chain", "start_time": RANGE["start_time"], "session_name": name}, 202)
    return {"session_id": world.project(name), "bulk_export_destination_id": world.file_destination("refusals")}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"start_time": None}, 422),
        ({"start_time": "yesterday"}, 422),
        ({"end_time": None}, (400, 422)),
        ({"end_time": "2025-01-01T00:00:00Z"}, (400, 422)),
        ({"session_id": "not-a-uuid"}, 422),
        ({"session_id": MISSING}, 404),
        ({"bulk_export_destination_id": MISSING}, 404),
        ({"export_fields": []}, 422),
        ({"export_fields": ["id", "password"]}, 422),
        ({"interval_hours": 0, "end_time": None}, (400, 422)),
        ({"interval_hours": 169, "end_time": None}, (400, 422)),
        ({"format_version": "v3"}, 422),
        ({"filter": "eq(name, \"x\""}, 400),
        ({"surprise": True}, 422),
    ],
    ids=lambda value: str(value)[:40],
)
def test_export_requests(world, place, change, status):
    body = {name: value for name, value in (place | RANGE | change).items() if value is not None}
    before = len(world.call("GET", EXPORTS))
    got, answer = world.request("POST", EXPORTS, body)
    allowed = status if isinstance(status, tuple) else (status,)
    assert got in allowed, answer
    if got == 422:
        assert {"loc", "msg", "type"} <= answer["detail"][0].keys(), answer
    else:
        assert isinstance(answer["detail"], str), answer
    assert len(world.call("GET", EXPORTS)) == before


@pytest.mark.parametrize("prefix", ["../out", "/absolute", "a/../../b", "nul\x00"], ids=repr)
def test_destinations_stay_below_their_folder(world, prefix):
    body = {"destination_type": "file", "display_name": "x", "config": {"prefix": prefix}}
    got, answer = world.request("POST", f"{EXPORTS}/destinations", body)
    assert got == 422, answer


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe"], ids=repr)
def test_bodies_that_are_no_request(world, body):
    got, answer = world.request("POST", EXPORTS, body, {"Content-Type": "application/json"})
    assert 400 <= got < 500, answer


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/runs/batch", "application/json", b"{"),
        ("/runs/batch", "application/json", b'{"post":[{"id":"x"}]}'),
        ("/runs", "application/json", b'{"name":"no id"}'),
        ("/runs/multipart", "multipart/form-data; boundary=x", b"--x\r\nnonsense"),
        ("/runs/multipart", "multipart/form-data", b""),
        ("/runs/multipart", "multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="post.zzz"\r\n\r\n{}\r\n--x--\r\n'),
    ],
)
def test_ingest_bodies(world, path, content_type, body):
    got, answer = world.request("POST", path, body, {"Content-Type": content_type})
    assert 400 <= got < 500, (got, answer)
    assert "error" in answer, "ingest routes answer {error, details}"


def multipart_head(name, kind=b"image/png", more=b""):
    return b'Content-Disposition: form-data; name="' + name + b'"\r\nContent-Type: ' + kind + more


@pytest.mark.parametrize("odd", [b"\x00", b"\x01", b"\x7f", "é".encode(), b"\xff"], ids=repr)
def test_odd_characters_are_refused_or_folded(world, odd):
    """Wherever they stand in a body: what was answered with 202 must not stop the flush of what comes after it."""
    run, project = str(uuid.uuid4()), f"odd-{odd.hex()}-{world.layout}"
    file, odd = f"attachment.{run}.boat".encode(), odd + b"x"
    heads = [
        multipart_head(file, b"image/png" + odd),
        multipart_head(file + odd),
        multipart_head(b"attachment" + odd),
        multipart_head(file, more=b"; charset=" + odd),
        multipart_head(file, more=b'; filename="' + odd + b'"'),
        multipart_head(file, more=b"\r\nContent-Length: 1" + odd),
        multipart_head(file, more=b"\r\nX-Other: " + odd),
        multipart_head(file, more=b"\r\nX-Other" + odd + b": y"),
    ]
    statuses = set()
    for head in heads:
        body = b"--b\r\n" + head + b"\r\n\r\ny\r\n--b--\r\n"
        got, answer = world.request("POST", "/runs/multipart", body, {"Content-Type": "multipart/form-data; boundary=b"})
        assert got == 202 or 400 <= got < 500, (head, got, answer)
        statuses.add(got)
    assert 422 in statuses, statuses
    text = odd.decode("latin-1")
    for headers in ({"X-Other": text}, {"Content-Type": f"multipart/form-data; boundary={text}"}):
        headers = {"Content-Type": "multipart/form-data; boundary=b"} | headers
        got, answer = world.request("POST", "/runs/multipart", b"--b--\r\n", headers)
        assert got == 202 or 400 <= got < 500, (headers, got, answer)
    # Escaped in JSON they are text like any other.
    body = {"id": run, "name": text, "run_type": text, "tags": [text], "extra": {text: text}, "error": text, "inputs": {text: text}}
    world.call("POST", "/runs", body | {"start_time": RANGE["start_time"], "session_name": project}, 202)
    judged = {"id": str(uuid.uuid4()), "run_id": run, "key": text, "comment": text, "feedback_source": {"type": text}}
    world.call("POST", "/feedback", judged, 202)
    # An export waits for the flush of everything before it.
    export = world.export(world.file_destination(f"odd-{uuid.uuid4().hex}"), world.project(project), RANGE["start_time"], RANGE["end_time"])
    world.completed(export)
    runs = world.call("GET", f"{EXPORTS}/{export}/runs")
    assert sum(part["metadata"]["result"]["rows_written"] for part in runs) == 1


def test_ingest_that_is_not_what_it_says(world):
    for encoding in ("zstd", "gzip"):
        headers = {"Content-Type": "multipart/form-data; boundary=x", "Content-Encoding": encoding}
        got, answer = world.request("POST", "/runs/multipart", b"this is not compressed", headers)
        assert 400 <= got < 500, (encoding, got, answer)


def test_keys(world):
    for headers, status in [
        ({"X-API-Key": None}, 401),
        ({"X-API-Key": "x" * 40}, 401),
        ({"X-Tenant-Id": str(uuid.uuid4())}, 403),
        ({"X-Tenant-Id": None}, 200),  # the key has one workspace
    ]:
        got, answer = world.request("GET", EXPORTS, headers=headers)
        assert got == status, (headers, got, answer)
    got, _ = world.request("POST", "/runs/batch", {"post": []}, {"X-API-Key": None})
    assert got == 401


def test_objects_of_nobody_are_not_found(world):
    for method, path, body in [
        ("GET", f"{EXPORTS}/{uuid.uuid4()}", None),
        ("GET", f"{EXPORTS}/{uuid.uuid4()}/runs", None),
        ("PATCH", f"{EXPORTS}/{uuid.uuid4()}", {"status": "Cancelled"}),
    ]:
        got, answer = world.request(method, path, body)
        assert got == 404, (method, path, answer)
    got, answer = world.request("GET", f"{EXPORTS}/not-a-uuid")
    assert got == 422, answer
    assert harness.KEY not in str(answer)

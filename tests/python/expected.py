"""What an export has to hold, worked out from the bytes on the wire: a second, independent reading of the contract.

Nothing here is shared with the product. Operations are decoded from the recorded bodies, merged by the published
rule, and turned into the 29 columns.
"""

import datetime
import decimal
import gzip
import json
import uuid

import zstandard

COLUMNS = (
    "id tenant_id session_id trace_id parent_run_id parent_run_ids reference_example_id name run_type start_time "
    "end_time status is_root dotted_order trace_tier inputs outputs error extra events tags feedback_stats "
    "total_tokens prompt_tokens completion_tokens total_cost prompt_cost completion_cost first_token_time"
).split()
JSON_COLUMNS = ("inputs", "outputs", "extra", "events", "feedback_stats")
TEXTS = ("inputs", "outputs", "events", "extra", "error", "serialized")


def exact(text):
    """Parses JSON so that 1 and 1.0, and all digits of a number, stay apart."""
    return json.loads(text, parse_float=lambda digits: ("float", plain_exponent(digits)), parse_int=lambda digits: ("int", digits))


def plain_exponent(digits):
    """Python writes 5.96e-06 and 1e+16 where the SDK's encoder writes 5.96e-6 and 1e16. Digits before the exponent stay as they are."""
    mantissa, e, exponent = digits.lower().partition("e")
    return f"{mantissa}e{int(exponent)}" if e else digits


def operations(exchanges):
    """(verb, id, fields) in the order of acceptance. Texts of JSON are parsed by `exact`."""
    for exchange in exchanges:
        body = exchange.body
        if exchange.headers.get("content-encoding") == "zstd":
            body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
        if exchange.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        path = exchange.path.removeprefix("/api/v1")
        if path == "/runs/multipart":
            yield from from_multipart(exchange.headers["content-type"], body)
        elif path == "/runs/batch":
            parsed = exact(body)
            for verb in ("post", "patch"):
                for run in parsed.get(verb) or []:
                    yield verb, run["id"], run
        elif path == "/runs":
            run = exact(body)
            yield "post", run["id"], run
        else:
            yield "patch", path.rsplit("/", 1)[1], exact(body)


def from_multipart(content_type, body):
    boundary = content_type.split("boundary=")[1].strip('"').encode()
    runs = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, data = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        data = data.removesuffix(b"\r\n")
        name = head.decode().split('name="')[1].split('"')[0]
        verb, run, *field = name.split(".", 2)
        if verb not in ("post", "patch"):
            continue
        fields = runs.setdefault((verb, run), {})
        if field:
            assert field[0] in TEXTS, name
            fields[field[0]] = exact(data)
        else:
            fields.update(exact(data))
    for (verb, run), fields in runs.items():
        yield verb, run, fields


def merge(found):
    """id → merged fields: the first post counts, a patch beats it field by field, `extra` goes key by key, and so do
    `metadata` and `runtime` in it."""
    posts, patches = {}, {}
    for verb, run, fields in found:
        sent = {name: value for name, value in fields.items() if value is not None}
        if verb == "post":
            posts.setdefault(run, sent)
        else:
            patches.setdefault(run, []).append(sent)
    merged = {}
    for run in posts.keys() | patches.keys():
        fields = dict(posts.get(run, {}))
        for patch in patches.get(run, []):
            extra = merge_extra(fields.get("extra", {}), patch.get("extra", {}))
            fields.update(patch)
            if extra:
                fields["extra"] = extra
        merged[run] = fields
    return merged


def merge_extra(known, more):
    merged = {**known, **more}
    for name in ("metadata", "runtime"):
        both = [said[name] for said in (known, more) if said.get(name) is not None]
        if len(both) == 2 and all(isinstance(value, dict) for value in both):
            merged[name] = both[0] | both[1]
        elif both:
            merged[name] = both[-1]
        else:
            merged.pop(name, None)
    return merged


def time(text):
    """ISO text, or milliseconds since the epoch; without a zone it is UTC. Parquet gives it back without one."""
    if isinstance(text, tuple):
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=float(text[1]))
        return moment
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is not None:
        moment = moment.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return moment


def usage(fields):
    outputs, extra = fields.get("outputs"), fields.get("extra", {})
    outputs = outputs if isinstance(outputs, dict) else {}
    found = outputs.get("usage_metadata") or (extra.get("metadata") or {}).get("usage_metadata") or {}

    def whole(name):
        return int(found[name][1]) if name in found else None

    def cost(name):
        if name not in found:
            return None
        return decimal.Decimal(found[name][1]).quantize(decimal.Decimal("1e-10"), decimal.ROUND_HALF_UP)

    return {
        "total_tokens": whole("total_tokens"),
        "prompt_tokens": whole("input_tokens"),
        "completion_tokens": whole("output_tokens"),
        "total_cost": cost("total_cost"),
        "prompt_cost": cost("input_cost"),
        "completion_cost": cost("output_cost"),
    }


def row(run, fields, tenant, project):
    """The 29 columns of one merged run."""
    order = fields.get("dotted_order")
    if order:
        ids = [link[-36:] for link in order.split(".")]
        assert ids[-1] == run, "the SDK's dotted_order ends with the run's own id"
    else:
        ids = ([fields["parent_run_id"]] if fields.get("parent_run_id") else []) + [run]
    ancestors = ids[:-1]
    events = fields.get("events")
    first_token = next((e["time"] for e in events or [] if e.get("name") == "new_token"), None)
    status = "error" if fields.get("error") else "success" if fields.get("end_time") else "pending"
    trace = ids[0] if order or not ancestors else fields.get("trace_id")
    return {
        "id": str(uuid.UUID(run)),
        "tenant_id": tenant,
        "session_id": project,
        "trace_id": trace,
        "parent_run_id": ancestors[-1] if ancestors else None,
        "parent_run_ids": ancestors,
        "reference_example_id": fields.get("reference_example_id"),
        "name": fields.get("name"),
        "run_type": fields.get("run_type"),
        "start_time": time(fields["start_time"]),
        "end_time": time(fields["end_time"]) if fields.get("end_time") else None,
        "status": status,
        "is_root": not ancestors,
        "dotted_order": order,
        "trace_tier": "longlived",
        "inputs": fields.get("inputs"),
        "outputs": fields.get("outputs"),
        "error": fields.get("error"),
        "extra": fields.get("extra"),
        "events": events,
        "tags": fields.get("tags"),
        "feedback_stats": None,
        "first_token_time": time(first_token) if first_token else None,
    } | usage(fields)


def rows(exchanges, tenant, project):
    """id → columns of everything in the recorded exchanges."""
    return {run: row(run, fields, tenant, project) for run, fields in merge(operations(exchanges)).items()}

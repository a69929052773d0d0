"""Costs of model calls, as the official client reads them, equal a table made by hand to the last digit.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import datetime
import decimal
import uuid

import pytest
from langsmith import Client

import harness
import parquet

D = decimal.Decimal
T0 = datetime.datetime(2026, 2, 3, 12, tzinfo=datetime.timezone.utc)
PLACE = D("1e-10")

# What one token costs, in dollars: of the prompt and of the completion, and by kind of token.
BUNDLED = {
    ("openai", "gpt-4o-2024-08-06"): (D("0.0000025"), D("0.00001"), {"cache_read": D("0.00000125")}, {}),
    ("openai", "gpt-4.1-nano"): (D("0.0000001"), D("0.0000004"), {"cache_read": D("0.000000025")}, {}),
    ("anthropic", "claude-sonnet-4-20250514"): (
        D("0.000003"), D("0.000015"), {"cache_creation": D("0.00000375"), "cache_read": D("0.0000003")}, {},
    ),
    ("google_genai", "gemini-2.5-flash"): (
        D("0.0000003"), D("0.0000025"), {"audio": D("0.000001"), "cache_read": D("0.00000003")}, {},
    ),
    ("amazon_bedrock", "amazon.nova-micro-v1:0"): (
        D("0.000000035"), D("0.00000014"), {"cache_read": D("0.00000000875")}, {},
    ),
    # A profile of a region costs more than the model.
    ("amazon_bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"): (
        D("0.0000033"), D("0.0000165"), {"cache_creation": D("0.000004125"), "cache_read": D("0.00000033")}, {},
    ),
    # The price of the model that this name has meant since December 2025.
    ("mistral", "mistral-large-latest"): (D("0.0000005"), D("0.0000015"), {"cache_read": D("0.00000005")}, {}),
}
# The workspace's own: more digits than a cost has.
OWN = {
    ("canal", "barge-1"): (
        D("0.00000001875"), D("0.000000000123456789"), {"cache_read": D("0.000000000000000001")},
        {"reasoning": D("0.0000123456789")},
    ),
    ("canal", "no-price-at-all"): None,
}
PRICES = BUNDLED | OWN


@pytest.fixture
def client(world):
    speaking = Client(
        api_url=f"http://{world.api}", api_key=harness.KEY, workspace_id=world.tenant, auto_batch_tracing=False,
    )
    yield speaking
    speaking.cleanup() if hasattr(speaking, "cleanup") else None


def exact(tokens, details, base, by_kind):
    """The cost of tokens, rounded once."""
    rest, sum_ = tokens, D(0)
    for kind, price in sorted(by_kind.items()):
        if kind in details:
            sum_ += details[kind] * price
            rest -= details[kind]
    return (sum_ + rest * base).quantize(PLACE, decimal.ROUND_HALF_UP)


def expected(call, prices=PRICES):
    if call["sent"] is not None:
        return (None, None, call["sent"])
    price = prices[call["model"]]
    if price is None:
        return (None, None, None)
    prompt = exact(call["in"], call["in_details"], price[0], price[2])
    completion = exact(call["out"], call["out_details"], price[1], price[3])
    return (prompt, completion, prompt + completion)


def calls(count):
    """Calls of several providers, each another number of tokens."""
    models = list(PRICES)
    for number in range(count):
        went_in, came_out = 1 + number * 7919 % 104_729, number * 104_729 % 7919
        yield {
            "id": uuid.uuid4(),
            "number": number,
            "model": models[number % len(models)],
            "in": went_in,
            "out": came_out,
            "in_details": [{}, {"cache_read": went_in // 3}, {"cache_read": went_in // 2, "cache_creation": went_in // 5},
                           {"audio": went_in // 7}][number % 4],
            "out_details": [{}, {"reasoning": came_out // 2}][number % 2],
            "sent": D(number) / D(1024) if number % 37 == 0 else None,
        }


def send(client, project, call):
    usage = {
        "input_tokens": call["in"], "output_tokens": call["out"], "total_tokens": call["in"] + call["out"],
        "input_token_details": call["in_details"], "output_token_details": call["out_details"],
    }
    if call["sent"] is not None:
        usage["total_cost"] = float(call["sent"])
    provider, model = call["model"]
    metadata = {"ls_provider": provider, "ls_model_name": model, "ls_model_type": "chat"}
    # Each place in which clients report usage.
    place = call["number"] % 3
    if place == 0:
        outputs = {"usage_metadata": usage}
    elif place == 1:
        outputs = {"generations": [[{"text": "", "message": {"lc": 1, "kwargs": {"usage_metadata": usage}}}]]}
    else:
        outputs, metadata = {"text": "x"}, metadata | {"usage_metadata": usage}
    start = T0 + datetime.timedelta(seconds=call["number"])
    client.create_run(
        id=call["id"], trace_id=call["id"], dotted_order=f"{start:%Y%m%dT%H%M%S%f}Z{call['id']}", project_name=project,
        name="call", run_type="llm", inputs={"n": call["number"]}, outputs=outputs, start_time=start,
        end_time=start + datetime.timedelta(milliseconds=500), extra={"metadata": metadata},
    )


def price_body(model, price):
    return {
        "name": model[1], "provider": model[0], "match_pattern": f"^{model[1]}$",
        "prompt_cost": f"{price[0]:f}", "completion_cost": f"{price[1]:f}",
        "prompt_cost_details": {kind: f"{cost:f}" for kind, cost in price[2].items()},
        "completion_cost_details": {kind: f"{cost:f}" for kind, cost in price[3].items()},
    }


def read_all(client, project):
    return {run.id: (run.prompt_cost, run.completion_cost, run.total_cost) for run in client.list_runs(project_name=project)}


def exported(world, project, folder):
    """The costs in the columns of an export."""
    session = world.project(project)
    export = world.export(world.file_destination(folder), session, "2026-02-03T00:00:00Z", "2026-02-04T00:00:00Z")
    world.completed(export)
    found = parquet.by_pyarrow(parquet.files(world.exports / folder, export, world.tenant, session))
    return {uuid.UUID(row["id"]): (row["prompt_cost"], row["completion_cost"], row["total_cost"]) for row in found}


def sums(costs):
    columns = list(zip(*costs))
    return [sum((cost for cost in column if cost is not None), D(0)) for column in columns]


def test_a_thousand_calls_cost_what_the_table_says(world, client):
    model = ("canal", "barge-1")
    made = world.call("POST", "/api/v1/model-price-map", price_body(model, OWN[model]))
    try:
        project = f"costs-{uuid.uuid4().hex}"
        sent = list(calls(1000))
        for call in sent:
            send(client, project, call)
        table = {call["id"]: expected(call) for call in sent}
        assert read_all(client, project) == table

        # A session's sums are those of its runs, once they are in segments.
        def agreed():
            session = client.read_project(project_name=project, include_stats=True)
            found = [session.prompt_cost, session.completion_cost, session.total_cost]
            return True if found == sums(table.values()) else None

        harness.until("the sums of the project", agreed)

        # Another price, and the costs of all days follow.
        dearer = (OWN[model][0] * 3, OWN[model][1], OWN[model][2], {})
        world.call("PUT", f"/api/v1/model-price-map/{made['id']}", price_body(model, dearer))
        table = {call["id"]: expected(call, PRICES | {model: dearer}) for call in sent}
        assert read_all(client, project) == table
        harness.until("the sums after a change of prices", agreed)
        assert exported(world, project, project) == table
        one = client.read_run(next(call["id"] for call in sent if call["model"][0] == "anthropic" and call["number"] % 4 == 2))
        assert set(one.prompt_cost_details) == {"cache_read", "cache_creation"}
    finally:
        world.call("DELETE", f"/api/v1/model-price-map/{made['id']}", status=204)


def test_prices_of_the_server_are_listed(world):
    listed = world.call("GET", "/api/v1/model-price-map")
    by_name = {price["name"]: price for price in listed if price["tenant_id"] is None}
    assert by_name["gpt-4o"]["prompt_cost"] == "0.0000025"
    assert by_name["claude-sonnet-4"]["prompt_cost_details"]["cache_read"] == "0.0000003"

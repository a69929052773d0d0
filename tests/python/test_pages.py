"""The dashboard in a real browser: what operators see and press, on a desk and on a phone, by day and by night.

With `TOWPATH_UPDATE_IMAGES=1` the screenshots under docs/images are made again.
"""

import contextlib
import datetime as dt
import os
import re
import shutil
import sqlite3
import subprocess
import uuid

import pytest

import harness

playwright = pytest.importorskip("playwright.sync_api", reason="skipped: playwright is not installed")
expect = playwright.expect

IMAGES = harness.ROOT / "docs" / "images"
BROWSER = next(filter(None, (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = ["traces", "queues", "jobs", "workers", "deployments", "sandboxes", "exports", "schedules", "limits", "dead"]
# Pictures that the documents keep.
PICTURED = {
    (name, "light") for name in [*(page for page in PAGES if page not in ("limits", "sandboxes")), "project", "trace", "job", "export", "deployment", "revision", "sign-in"]
} | {(name, look) for name in ("trace", "queues", "job") for look in ("dark", "phone")}
DAY = dt.datetime(2026, 3, 1, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("skipped: no chromium is installed")
    with playwright.sync_playwright() as driver:
        # Root may not use the browser's own sandbox; the pages are ours.
        running = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module", params=["embedded", "cluster"])
def place(request):
    """A server with a past: a finished export, a failed one with its dead letters, and one that waits for a pool."""
    if request.param == "cluster" and "TOWPATH_TEST_POSTGRES" not in os.environ:
        pytest.skip("TOWPATH_TEST_POSTGRES is not set")
    # In a cluster one worker runs deployments.
    keeper = {"TOWPATH_DEPLOYMENTS_BACKEND": "process"}
    running = harness.World(request.param, {"TOWPATH_DEPLOYMENTS_GIT_TRANSPORTS": "file"}, first_worker=keeper)
    try:
        fill(running)
        served = deploy(running, "pictured", repository(running.folder / "pictured"))
        assert revision_over(running, served)["status"] == "DEPLOYED"
        yield running
    finally:
        running.stop()


@contextlib.contextmanager
def reader(browser, place, *, signed_in=True, width=1280, height=800, scheme="light", script=True, quiet=True):
    """A page of a new browser, which must load nothing from elsewhere and find no fault with ours."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=script
    )
    page = context.new_page()
    complaints, foreign = [], []
    page.on("console", lambda told: complaints.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if place.api in asked.url else foreign.append(asked.url))
    page.goto(f"http://{place.api}/ui/sign-in")
    if signed_in:
        sign_in(page)
    yield page
    # Status codes that a test provokes are in the console, too.
    complaints = [text for text in complaints if "the server responded with a status of" not in text]
    assert not (quiet and complaints), complaints
    assert not foreign, foreign
    context.close()


def sign_in(page, key=harness.KEY):
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def fill(place):
    """Trace runs of some days in two projects, and three exports of them."""
    for project, days in (("support-agent", 14), ("nightly-eval", 5)):
        runs = [run(project, day, n) for day in range(days) for n in range(20 + day * 37 % 50)]
        for at in range(0, len(runs), 200):
            place.call("POST", "/runs/batch", {"post": runs[at : at + 200]}, 202)
    place.call("POST", "/runs/batch", {"post": conversation()}, 202)
    evaluate(place)
    place.completed(export(place, destination(place, "warehouse"), "support-agent", 14))
    archive = destination(place, "archive")
    # What was a folder is a file: nothing can be written there, and retrying would not help.
    shutil.rmtree(place.exports / "archive", ignore_errors=True)
    (place.exports / "archive").write_bytes(b"in the way")
    assert place.ended(export(place, archive, "nightly-eval", 5))["status"] == "FAILED"
    place.call("POST", "/internal/queues/export_parts/pause")
    waiting = export(place, destination(place, "reports"), "nightly-eval", 5)
    harness.until(
        "the days of the last export to be planned",
        lambda: place.call("GET", f"/api/v1/bulk-exports/{waiting}/runs") or None,
    )


def destination(place, name):
    body = {"destination_type": "file", "display_name": name, "config": {"prefix": name}}
    return place.call("POST", "/api/v1/bulk-exports/destinations", body)["id"]


def run(project, day, n):
    start = DAY + dt.timedelta(days=day, hours=9, seconds=61 * n)
    run_id = str(uuid.uuid4())
    return {
        "id": run_id,
        "trace_id": run_id,
        "name": "answer",
        "run_type": "chain",
        "session_name": project,
        "inputs": {"question": "how does a lock work?"},
        "outputs": {"answer": "with water"},
        "start_time": start.isoformat(),
        "end_time": (start + dt.timedelta(seconds=3)).isoformat(),
        "dotted_order": start.strftime("%Y%m%dT%H%M%S%fZ") + run_id,
    }


def evaluate(place):
    """Two experiments on two examples: the second one answers better, more slowly and for more money."""
    dataset = place.call("POST", "/datasets", {"name": "canal-questions"})["id"]
    questions = ["How long does a boat take through the staircase of locks?", "Who opens the gates?"]
    examples = [
        {"id": str(uuid.uuid4()), "dataset_id": dataset, "inputs": {"question": text}, "outputs": {"answer": "see the log"}}
        for text in questions
    ]
    place.call("POST", "/examples/bulk", examples)
    for n, (name, score, seconds, cost) in enumerate([("hasty-1a2b3c4d", 0.25, 1, 0.002), ("careful-5e6f7a8b", 0.75, 3, 0.0125)]):
        project = place.call("POST", "/sessions", {"name": name, "reference_dataset_id": dataset})["id"]
        runs = [run(name, n, at) for at in range(len(examples))]
        for one, example in zip(runs, examples):
            start = dt.datetime.fromisoformat(one["start_time"])
            one |= {
                "run_type": "llm",
                "reference_example_id": example["id"],
                "end_time": (start + dt.timedelta(seconds=seconds)).isoformat(),
                "outputs": {"answer": "with water", "usage_metadata": {"input_tokens": 400, "output_tokens": 30, "total_cost": cost}},
            }
        place.call("POST", "/runs/batch", {"post": runs}, 202)
        for one in runs:
            body = {"id": str(uuid.uuid4()), "run_id": one["id"], "session_id": project, "key": "correct", "score": score}
            place.call("POST", "/feedback", body, 202)


def conversation():
    """A trace of an agent that looks something up, fails at it once, and answers: the newest of its project."""
    start = DAY + dt.timedelta(days=13, hours=20)
    asked = [
        {"role": "system", "content": "You answer questions about the canal. Be brief."},
        {"role": "user", "content": "How long does a boat take through the staircase of locks?"},
    ]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "lock_times", "arguments": '{"locks": 5}'}}]}
    answer = {"role": "assistant", "content": "About 40 minutes for all five, if nobody waits ahead of you."}
    usage = {"input_tokens": 412, "output_tokens": 37, "total_tokens": 449}
    shape = [
        ("lock-keeper", "chain", None, 0, 4200, {"messages": asked}, {"messages": [*asked, answer]}, None),
        ("plan", "llm", 0, 60, 900, {"messages": asked}, {"choices": [{"message": call}], "usage_metadata": usage}, None),
        ("find_documents", "retriever", 0, 980, 420, {"query": "lock staircase duration"}, {"documents": [{"page": 12}]}, None),
        ("lock_times", "tool", 0, 1450, 310, {"locks": 5}, None, "TimeoutError: the keeper's log did not answer within 300 ms"),
        ("lock_times", "tool", 0, 1800, 140, {"locks": 5}, {"minutes": [8, 8, 8, 8, 8]}, None),
        ("respond", "chain", 0, 2000, 2150, {"facts": 2}, {"text": answer["content"]}, None),
        ("model", "llm", 5, 2050, 2050, {"messages": [*asked, call]}, {"choices": [{"message": answer}], "usage_metadata": usage}, None),
    ]
    made, orders = [], []
    for n, (name, kind, parent, at, took, inputs, outputs, error) in enumerate(shape):
        run_id, begin = str(uuid.UUID(int=0xCA7A1 << 96 | n, version=4)), start + dt.timedelta(milliseconds=at)
        own = begin.strftime("%Y%m%dT%H%M%S%fZ") + run_id
        orders.append(own if parent is None else f"{orders[parent]}.{own}")
        made.append({
            "id": run_id, "trace_id": made[0]["id"] if made else run_id, "name": name, "run_type": kind,
            "session_name": "support-agent", "inputs": inputs, "outputs": outputs, "error": error,
            "parent_run_id": made[parent]["id"] if parent is not None else None, "dotted_order": orders[n],
            "start_time": begin.isoformat(), "end_time": (begin + dt.timedelta(milliseconds=took)).isoformat(),
            "tags": ["production"] if parent is None else None, "extra": {"metadata": {"thread_id": "boat-17"}},
        })  # fmt: skip
    return made


def export(place, destination, project, days):
    until = DAY + dt.timedelta(days=days)
    return place.export(destination, place.project(project), DAY.isoformat(), until.isoformat())


def address(place, path):
    return f"http://{place.api}/ui/{path}"


def test_only_operators_get_in(browser, place):
    with reader(browser, place, signed_in=False) as page:
        assert page.goto(address(place, "jobs?state=failed")).status == 401
        sign_in(page, "a-key-that-nobody-made-0123456789")
        expect(page.get_by_role("alert")).to_have_text("This API key is invalid.")
        sign_in(page)
        # To where the reader was going.
        expect(page).to_have_url(address(place, "jobs?state=failed"))
        cookie = next(one for one in page.context.cookies(address(place, "")) if one["name"] == "towpath_session")
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/ui"
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(address(place, "sign-in"))
        assert page.goto(address(place, "queues")).status == 401
        # Nor does a copy of the cookie open anything, wherever it was kept.
        page.context.add_cookies([cookie])
        assert page.goto(address(place, "queues")).status == 401


def test_a_name_of_elsewhere_that_leads_here_opens_nothing(browser, place):
    """A page that has its own name moved to this machine, as DNS rebinding does."""
    port = place.api.rsplit(":", 1)[1]
    foreign = browser.browser_type.launch(
        executable_path=BROWSER, args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
    )
    try:
        page = foreign.new_page()
        for path in ("/ui/sign-in", "/ui/queues"):
            answer = page.goto(f"http://evil.example:{port}{path}")
            assert answer.status == 421
        assert "public_url" in page.content()
    finally:
        foreign.close()


def test_queues_show_what_waits_and_buttons_work(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "queues"))
        row = page.locator("tr#p-export_parts")
        expect(row.locator(".pill")).to_have_text("paused")
        assert int(row.locator("[data-is=Ready]").inner_text()) == 5
        # Without a reload: what another operator does is seen.
        place.call("POST", "/internal/queues/flushes/pause")
        flushes = page.locator("tr#p-flushes")
        expect(flushes.locator(".pill")).to_have_text("paused", timeout=10_000)
        flushes.get_by_role("button", name="Resume").click()
        expect(flushes.locator(".pill")).to_have_text("active")
        flushes.get_by_role("button", name="Pause").click()
        expect(flushes.get_by_role("button", name="Resume")).to_be_visible()
        flushes.get_by_role("button", name="Resume").click()
        expect(flushes.locator(".pill")).to_have_text("active")
        # The first samples of the depth have come in by now, or soon.
        expect(row.locator("svg.spark")).to_be_visible(timeout=15_000)


def test_traces_are_found_by_filters_and_read_as_trees(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "traces"))
        page.get_by_role("link", name="support-agent").click()
        newest = page.locator("tbody tr").first
        expect(newest.locator("[data-is=Run]")).to_contain_text("lock-keeper")
        expect(newest.locator("[data-is=Input]")).to_contain_text("through the staircase")
        expect(newest.locator("[data-is=Latency]")).to_have_text("4.2 s")
        # Pages continue where the one before ended.
        first = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id)")
        page.get_by_role("link", name="Older").click()
        page.wait_for_load_state()
        second = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id)")
        assert len(first) == len(second) == 50 and not set(first) & set(second)
        # A mistake is shown where it is, and what was typed stays.
        page.get_by_label("Filter").fill('and(eq(run_type, "tool"), neq(eror, null))')
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("alert")).to_contain_text("at character 31")
        expect(page.locator("pre.where mark")).to_have_text("eror, null))")
        page.get_by_label("Filter").fill('and(eq(run_type, "tool"), neq(error, null))')
        page.get_by_label("Runs").select_option("every run")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("[data-is=Outcome]")).to_contain_text("TimeoutError")
        page.locator("tbody tr a").click()
        # The tree, and the run from near.
        branches = page.locator(".branch")
        expect(branches).to_have_count(7)
        assert branches.locator(".name").all_inner_texts() == [
            "lock-keeper", "plan", "find_documents", "lock_times", "lock_times", "respond", "model"
        ]  # fmt: skip
        expect(page.locator(".branch[aria-current]")).to_contain_text("310 ms")
        expect(page.locator(".why.bad")).to_contain_text("the keeper's log did not answer")
        branches.last.click()
        expect(page.locator(".near h2").first).to_have_text("model")
        expect(page.locator("#outputs .said.model")).to_contain_text("About 40 minutes")
        expect(page.locator(".facts")).to_contain_text("449 (412 in, 37 out)")
        # Others' addresses lead nowhere.
        assert page.goto(address(place, f"traces/{uuid.uuid4()}")).status == 404


def side_by_side(page, place):
    page.goto(address(place, "datasets"))
    page.get_by_role("link", name="canal-questions").click()
    page.get_by_role("link", name="hasty-1a2b3c4d").click()
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector("table.compared")


def test_two_experiments_are_read_side_by_side(browser, place):
    with reader(browser, place) as page:
        side_by_side(page, place)
        first, second = page.locator("#summaries tbody tr").all()
        expect(first).to_contain_text("hasty-1a2b3c4d")
        expect(second.locator(".pill.good")).to_have_text("correct 0.75")
        expect(second).to_contain_text("2 better, 0 worse")
        # A median is exact to one percent.
        expect(second.locator("[data-is='Median latency'] .pill.bad")).to_have_text(re.compile("^(2.9|3.0) s$"))
        expect(second.locator("[data-is=Cost] .pill.bad")).to_have_text("$0.025")
        expect(first.locator("[data-is=Cost] .pill")).to_have_text("$0.004")
        rows = page.locator("table.compared tbody tr")
        expect(rows).to_have_count(2)
        expect(rows.first.locator("[data-is='Latency, cost']").last).to_contain_text("$0.0125")
        expect(rows.first.locator(".pill.good")).to_have_text("correct 0.75")
        rows.first.locator("[data-is=careful-5e6f7a8b] a").click()
        expect(page.locator(".facts")).to_contain_text("$0.0125")


@contextlib.contextmanager
def quarantined(place):
    """An entry as a flush leaves one of a WAL segment whose object is not there."""
    entry = uuid.uuid4()
    columns = "id, tenant_id, kind, reason, path, byte_offset, bytes, decoded_bytes, items, names, accepted_at, created_at"
    reason = "its object is missing in the object store"
    path = f"wal/{entry}.unit"
    if place.database:
        values = f"'{entry}', '{place.tenant}', 'missing', '{reason}', '{path}', 8, 5000, 0, 1234, '{{}}', now(), now()"
        harness.psql(f"INSERT INTO quarantine ({columns}) VALUES ({values})", place.database)
    else:
        now = int(dt.datetime.now(dt.timezone.utc).timestamp() * 1_000_000)
        tenant = uuid.UUID(place.tenant).bytes
        values = (entry.bytes, tenant, "missing", reason, path, 8, 5000, 0, 1234, "{}", now, now)
        with contextlib.closing(sqlite3.connect(place.data / "towpath.db", timeout=30)) as database, database:
            database.execute(f"INSERT INTO quarantine ({columns}) VALUES ({', '.join('?' * len(values))})", values)
    yield str(entry)
    place.call("POST", "/internal/quarantine/bulk", {"action": "drop", "ids": [str(entry)]})


def test_quarantine_is_shown_and_emptied(browser, place):
    with quarantined(place) as entry, reader(browser, place) as page:
        page.goto(address(place, "traces"))
        banner = page.get_by_role("status").filter(has_text="Quarantine")
        expect(banner).to_contain_text(re.compile(r"1.234 operations are in quarantine and not shown"))
        banner.get_by_role("link").click()
        row = page.locator(f"tr#q{entry}")
        expect(row.locator(".pill")).to_have_text("missing")
        expect(row).to_contain_text("its object is missing in the object store")
        row.locator("[data-is=Entry] a").click()
        expect(page.locator(".facts")).to_contain_text(f"wal/{entry}.unit")
        # Its object is not there, which is said; and nothing changes before the question is answered.
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".empty")).to_contain_text("is missing in the object store")
        page.goto(address(place, f"quarantine/{entry}"))
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.get_by_role("button", name="Drop").click()
        expect(page.locator("h1")).to_have_text(entry)
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Drop").click()
        expect(page.locator(".empty")).to_contain_text("No entries")


def test_jobs_can_be_found_and_read(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "jobs"))
        page.get_by_label("State").select_option("ready")
        page.get_by_label("Kind").fill("export_part")
        page.get_by_role("button", name="Show").click()
        expect(page).to_have_url(re.compile("state=ready"))
        expect(page.locator("tbody tr")).to_have_count(5)
        page.locator("tbody a.mono").first.click()
        expect(page.locator(".why")).to_contain_text("The pool export_parts is paused")
        page.go_back()
        page.get_by_role("link", name="Clear").click()
        # A dead one says what happened to it.
        page.goto(address(place, "dead"))
        assert page.locator("tbody tr").count() >= 1
        page.locator("tbody tr", has_text="export").locator("a.mono").first.click()
        expect(page.locator(".why")).to_contain_text("It is over: failed")
        expect(page.locator("ol.line")).to_contain_text("Attempt failed (retry_0)")
        expect(page.locator("ol.line pre").first).to_contain_text("not a directory")


def test_long_lists_go_on(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "jobs"))
        seen = set()
        while True:
            ids = page.locator("tbody tr").evaluate_all("rows => rows.map(row => row.id)")
            assert ids and not seen & set(ids)
            seen |= set(ids)
            older = page.get_by_role("link", name="Older")
            if older.count() == 0:
                break
            older.click()
            page.wait_for_load_state()
        # 14 and 5 and 5 days, three exports, and at least one fold.
        assert len(seen) >= 28


def test_exports_show_their_days(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "exports"))
        expect(page.locator("tbody tr")).to_have_count(3)
        done = page.locator("tbody tr", has_text="warehouse")
        expect(done.locator(".pill")).to_have_text("COMPLETED")
        done.locator("a").click()
        expect(page.locator(".day.good")).to_have_count(14)
        expect(page.locator(".day b").first).to_have_text("01 Mar")
        rows = page.locator("td[data-is=Rows]").all_inner_texts()
        total = sum(int(re.sub(r"\D", "", text)) for text in rows)
        shown = page.locator(".tile", has_text="rows").locator("b").inner_text()
        assert total == int(re.sub(r"\D", "", shown)) > 300


def test_a_destination_is_deleted(browser, place):
    made = destination(place, f"doomed-{uuid.uuid4().hex[:8]}")
    with reader(browser, place) as page:
        page.goto(address(place, "exports"))
        page.get_by_role("link", name="Destinations").click()
        row = page.locator(f"tr#t{made}")
        expect(row).to_be_visible()
        page.once("dialog", lambda dialog: dialog.dismiss())
        row.get_by_role("button", name="Delete").click()
        expect(row).to_be_visible()
        page.once("dialog", lambda dialog: dialog.accept())
        row.get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)
        expect(page.locator("tbody tr", has_text="warehouse")).to_be_visible()
    assert place.request("GET", f"/api/v1/bulk-exports/destinations/{made}")[0] == 404


def repository(path) -> str:
    """A repository with a graph that needs nothing; its address."""
    path.mkdir()
    (path / "langgraph.json").write_text('{"graphs": {"agent": {"native": "echo"}}}')
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgSign=false"]
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run(["git", *who, *words], cwd=path, check=True, timeout=60)
    return f"file://{path}"


def deploy(place, name, url="file:///nowhere/at/all"):
    """From a repository; where that is not there its revision fails, and says why."""
    body = {
        "name": name,
        "source": "github",
        "source_config": {"repo_url": url},
        "source_revision_config": {"repo_ref": "main", "graph_config_path": "langgraph.json"},
        "secrets": [{"name": "MODEL_KEY", "value": "canary-of-a-secret"}],
    }
    return place.call("POST", "/v2/deployments", body, status=201)


def revision_over(place, deployment):
    def ask():
        found = place.call("GET", f"/v2/deployments/{deployment['id']}/revisions")["resources"][0]
        return found if found["finished_at"] else None

    return harness.until("the revision to be over", ask)


def test_deployments_show_revisions_and_what_they_say_as_it_comes(browser, place):
    made = deploy(place, "shown")
    failed = revision_over(place, made)
    assert failed["status"] == "BUILD_FAILED"
    with reader(browser, place) as page:
        page.goto(address(place, "deployments"))
        row = page.locator("tbody tr", has_text="shown")
        expect(row).to_contain_text("BUILD_FAILED")
        expect(row).to_contain_text("nothing")
        row.locator("td[data-is=Deployment] a").click()
        expect(page.locator("h1")).to_have_text("shown")
        expect(page.locator("body")).to_contain_text("MODEL_KEY")
        assert "canary-of-a-secret" not in page.content()
        expect(page.locator("[data-is=Revision]")).to_have_count(1)
        # Another one appears on the page that is open, and so does what it says on its own.
        place.call("POST", f"/v2/deployments/{made['id']}/revisions", {}, status=201)
        expect(page.locator("[data-is=Revision]")).to_have_count(2, timeout=15_000)
        page.locator("[data-is=Revision] a").first.click()
        expect(page.locator("h1")).to_have_text("shown, revision 2")
        expect(page.locator(".head .pill").first).to_have_text("BUILD_FAILED", timeout=15_000)
        expect(page.locator(".why")).to_contain_text("asking the repository failed")
        expect(page.locator(".log > div").first).to_contain_text("does not appear to be a git repository")
        expect(page.get_by_role("button", name="Redeploy")).to_have_count(0)
        page.goto(address(place, f"deployments/{made['id']}"))
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Delete").click()
        expect(page.locator("tbody tr", has_text="shown")).to_have_count(0, timeout=30_000)


def test_a_worker_is_shown_with_its_slots(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "workers"))
        workers = 1 if place.layout == "embedded" else 2
        expect(page.locator("tbody tr")).to_have_count(workers)
        expect(page.locator("tbody tr .pill")).to_have_text(["active"] * workers)
        expect(page.locator("tbody tr").first).to_contain_text("export_parts")


@contextlib.contextmanager
def sandboxed(place):
    """The id of a sandbox in which a command has ended."""
    if place.layout != "embedded":
        pytest.skip("one process of an installation has sandboxes")
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"], capture_output=True).returncode:
        print("skipped: this machine has no user namespaces, so it has no sandboxes")
        pytest.skip("this machine has no user namespaces, so it has no sandboxes")
    box = place.call("POST", "/v2/sandboxes/boxes", {"name": "yard"}, 201)["id"]
    try:
        run = {"command": "echo tea > ~/note.txt; echo '<b>five</b>'; exit 3"}
        assert place.call("POST", f"/v2/sandboxes/dp/{box}/execute", run)["exit_code"] == 3
        yield box
    finally:
        place.request("DELETE", f"/v2/sandboxes/boxes/{box}")
        # It outlives the platform unless the machine has let go of it.
        harness.until("the sandbox to be gone", lambda: None if open_jobs_of_sandboxes(place) else True)


def open_jobs_of_sandboxes(place):
    jobs = place.call("GET", "/internal/jobs?pool=sandboxes&limit=1000")["items"]
    return [job for job in jobs if job["state"] in ("scheduled", "blocked", "ready", "running", "waiting")]


def test_a_sandbox_shows_what_is_in_it(browser, place):
    with sandboxed(place) as box, reader(browser, place) as page:
        page.goto(address(place, "sandboxes"))
        page.get_by_role("link", name="yard").click()
        expect(page.locator("#stdout")).to_have_text("<b>five</b>")
        expect(page.locator("tbody tr", has_text="exit 3")).to_have_count(1)
        page.get_by_role("link", name="note.txt").click()
        expect(page.locator(".log", has_text="tea")).to_be_visible()
        # What comes is shown without a click.
        page.goto(address(place, f"sandboxes/{box}"))
        place.call("POST", f"/v2/sandboxes/dp/{box}/execute", {"command": "echo later"})
        expect(page.locator("#stdout")).to_have_text("later", timeout=15_000)
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".head .pill")).to_have_text("stopped", timeout=15_000)
        page.locator("input[name=name]").fill("kept")
        page.get_by_role("button", name="Save snapshot").click()
        kept = page.locator("tbody tr", has_text="kept")
        expect(kept.locator(".pill")).to_have_text("ready", timeout=15_000)


def test_pages_read_without_scripts_and_forms_too(browser, place):
    with reader(browser, place, script=False) as page:
        for name in PAGES:
            assert page.goto(address(place, name)).status == 200
            expect(page.locator("h1")).to_be_visible()
        page.goto(address(place, "queues"))
        page.locator("tr#p-exports").get_by_role("button", name="Pause").click()
        expect(page.locator("tr#p-exports .pill")).to_have_text("paused")
        page.locator("tr#p-exports").get_by_role("button", name="Resume").click()
        expect(page.locator("tr#p-exports .pill")).to_have_text("active")


def test_a_page_says_that_the_server_is_gone(browser, place):
    # The browser complains of each question that found no one, and shall.
    with reader(browser, place, quiet=False) as page:
        page.goto(address(place, "queues"))
        expect(page.locator(".lost")).to_be_hidden()
        page.route("**/ui/queues", lambda route: route.abort("connectionrefused"))
        expect(page.locator(".lost")).to_be_visible(timeout=10_000)
        page.unroute("**/ui/queues")
        expect(page.locator(".lost")).to_be_hidden(timeout=10_000)


def test_foreign_posts_are_refused(browser, place):
    with reader(browser, place) as page:
        cookie = "; ".join(f"{one['name']}={one['value']}" for one in page.context.cookies(address(place, "")))
        for headers in ({}, {"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}):
            send = {"Cookie": cookie, "X-API-Key": None, "X-Tenant-Id": None} | headers
            status, _ = place.request("POST", "/ui/queues/flushes/pause", b"", send)
            assert status == 403, headers
        page.goto(address(place, "queues"))
        expect(page.locator("tr#p-flushes .pill")).to_have_text("active")


@pytest.mark.parametrize(
    "name",
    [*PAGES, "project", "trace", "datasets", "dataset", "prompts", "job", "export", "exports/destinations", "deployment", "revision", "sandbox", "quarantine", "quarantined", "sign-in"],
)
@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_every_page_fits_and_is_pictured(browser, place, name, look):
    if place.layout == "cluster" and look != "light":
        pytest.skip("the looks do not depend on where rows are kept")
    size = {"width": 390, "height": 844} if look == "phone" else {}
    scheme = "dark" if look == "dark" else "light"
    filled = contextlib.nullcontext()
    if name.startswith("quarantine"):
        filled = quarantined(place)
    elif name == "sandbox":
        filled = sandboxed(place)
    with filled as entry, reader(browser, place, signed_in=name != "sign-in", scheme=scheme, **size) as page:
        if name == "quarantined":
            page.goto(address(place, f"quarantine/{entry}"))
            page.wait_for_selector(".facts")
        elif name == "sandbox":
            page.goto(address(place, f"sandboxes/{entry}"))
            page.wait_for_selector("#stdout")
        elif name == "job":
            page.goto(address(place, "dead"))
            page.locator("tbody a.mono").first.click()
            page.wait_for_selector(".crumb")
        elif name in ("project", "trace"):
            page.goto(address(place, "traces"))
            page.get_by_role("link", name="support-agent").click()
            page.wait_for_selector("table.runs")
            if name == "trace":
                page.locator("tbody tr a").first.click()
                page.locator(".branch").last.click()
                page.wait_for_selector("#outputs")
        elif name == "dataset":
            side_by_side(page, place)
        elif name == "export":
            page.goto(address(place, "exports"))
            page.locator("tbody tr", has_text="warehouse").locator("a").click()
            page.wait_for_selector(".days")
        elif name in ("deployment", "revision"):
            page.goto(address(place, "deployments"))
            row = page.locator("tbody tr", has_text="pictured")
            row.locator("td[data-is=Deployment] a" if name == "deployment" else "td[data-is='Latest revision'] a").click()
            page.wait_for_selector(".crumb")
        elif name != "sign-in":
            page.goto(address(place, name))
        expect(page.locator("h1, .brand").first).to_be_visible()
        wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], f"{name} is wider than the window: {wide}"
        cut = page.evaluate(
            "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth + 1).length"
        )
        assert cut == 0, f"a table of {name} does not fit"
        if (name, look) not in PICTURED or place.layout != "embedded":
            return
        if os.environ.get("TOWPATH_UPDATE_IMAGES"):
            IMAGES.mkdir(exist_ok=True)
            page.screenshot(path=IMAGES / f"{name}-{look}.png", animations="disabled")
        else:
            assert (IMAGES / f"{name}-{look}.png").stat().st_size > 5_000, "make the pictures: TOWPATH_UPDATE_IMAGES=1"


# Last: it ends the export that the pages before it show.
def test_a_job_is_cancelled_and_a_part_is_not_tried_alone(browser, place):
    with reader(browser, place) as page:
        page.goto(address(place, "dead"))
        row = page.locator("tbody tr").last
        expect(row.get_by_role("button", name="Retry")).to_have_count(0)
        row.get_by_role("link", name="part of a job").click()
        expect(page.locator("h2", has_text="Children")).to_be_visible()
        page.goto(address(place, "jobs?state=ready&kind=export_part"))
        page.locator("tbody a.mono").last.click()
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".head .pill").first).to_have_text("cancelled")

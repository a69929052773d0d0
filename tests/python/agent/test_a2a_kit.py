"""The agent that the compatibility kit of the Agent2Agent protocol talks to, and the script that runs the kit.

The kit itself is no part of this repository: `TOWPATH_TEST_A2A_TCK` names a folder with a copy of it, and
`TOWPATH_TEST_A2A_TCK_PYTHON` a Python with its packages. Without them its test is skipped.
"""

import os
import pathlib
import subprocess
import sys
import uuid

import httpx
import pytest

from world import GRAPHS, Server

FIXTURE = GRAPHS.with_name("a2a-tck.json")
SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "a2a-tck"


@pytest.fixture(scope="module")
def kit_server():
    running = Server("embedded", graphs=FIXTURE)
    yield running
    running.stop()


@pytest.fixture
def ask(kit_server):
    """Calls a method of the agent."""

    def ask(method, params, path="/a2a/tck"):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = httpx.post(f"{kit_server.url}{path}", json=body, headers={"A2A-Version": "1.0"}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def message(prefix, text="hello", **more):
    message_id = f"tck-{prefix}-{uuid.uuid4().hex}"
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": text}]} | more}


FILE = {"filename": "output.txt", "mediaType": "text/plain"}


@pytest.mark.parametrize(
    ("prefix", "part"),
    [
        ("complete-task", {"text": "Hello from TCK"}),
        ("artifact-text", {"text": "Generated text content"}),
        ("artifact-file", FILE | {"raw": "dGNr"}),
        ("artifact-file-url", FILE | {"url": "https://example.com/output.txt"}),
        ("artifact-data", {"data": {"key": "value", "count": 42}}),
        ("stream-ordering-001", {"text": "Ordered output"}),
        ("anything", {"text": "Hello from TCK"}),
    ],
)
def test_the_id_of_a_message_decides_the_artifact(ask, prefix, part):
    task = ask("SendMessage", message(prefix))["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    assert task["artifacts"][0]["parts"] == [part]


def test_a_message_is_answered_without_a_task(ask):
    result = ask("SendMessage", message("message-response"))["result"]
    assert set(result) == {"message"}
    answer = result["message"]
    assert (answer["role"], answer["parts"]) == ("ROLE_AGENT", [{"text": "Direct message response"}])
    assert answer["contextId"] and "taskId" not in answer
    # It is a task for those who ask, and for those who do not wait.
    (listed,) = ask("ListTasks", {"contextId": answer["contextId"]})["result"]["tasks"]
    assert listed["status"]["state"] == "TASK_STATE_COMPLETED"
    immediate = message("message-response") | {"configuration": {"returnImmediately": True}}
    assert set(ask("SendMessage", immediate)["result"]) == {"task"}


def test_a_task_is_continued_until_it_is_complete(ask):
    task = ask("SendMessage", message("input-required"))["result"]["task"]
    said = ["TCK history message 1", "TCK history message 2", "TCK complete after history"]
    states = []
    for text in said:
        task = ask("SendMessage", message("input-required", text, taskId=task["id"]))["result"]["task"]
        states.append(task["status"]["state"])
    assert states == ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED"]
    texts = [one["parts"][0]["text"] for one in task["history"] if one["role"] == "ROLE_USER"]
    assert texts == ["hello", *said]


def test_a_message_may_be_rejected(ask):
    task = ask("SendMessage", message("reject-task"))["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "rejected" in task["status"]["message"]["parts"][0]["text"]


def test_the_kit(kit_server):
    kit, python = os.environ.get("TOWPATH_TEST_A2A_TCK"), os.environ.get("TOWPATH_TEST_A2A_TCK_PYTHON")
    if kit is None:
        pytest.skip("TOWPATH_TEST_A2A_TCK names no folder with a copy of the compatibility kit")
    command = [sys.executable, str(SCRIPT), kit, "--url", kit_server.url, "--python", python or sys.executable]
    command += ["--", "--webhook-host", "127.0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    print(next(line for line in done.stdout.splitlines() if line.startswith("A2A compatibility kit: ")))

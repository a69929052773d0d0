"""The official client of the Agent2Agent protocol, in both versions that it speaks."""

import asyncio
import json
import signal
import uuid

import httpx
import pytest
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from langgraph_sdk import get_client

from clients import collect, eventually
from projects import CONFIG

VERSIONS = ("1.0", "0.3")
# Threads are their makers' own. The handler replaces the metadata of a run as a whole.
AUTH = """
    from langgraph_sdk import Auth

    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None):
        if not authorization:
            raise Auth.exceptions.HTTPException(status_code=401, detail="say who you are")
        return {"identity": authorization.removeprefix("Bearer "), "permissions": []}

    @auth.on.threads
    async def threads(ctx, value):
        owner = {"owner": ctx.user.identity}
        if ctx.action in ("create", "create_run"):
            value["metadata"] = owner
        return owner
"""


async def connected(url, assistant, version, streaming, http):
    """A client that was given the card, with the interface of one version left in it."""
    card = await A2ACardResolver(http, f"{url}/a2a/{assistant}").get_agent_card()
    kept = [interface for interface in card.supported_interfaces if interface.protocol_version == version]
    assert len(kept) == 1, card
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(kept)
    return ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
async def connect(server, version):
    """A client for an assistant, by its name."""
    opened = []

    async def connect(assistant, streaming=False, url=None):
        http = httpx.AsyncClient(timeout=60, headers={"A2A-Version": version})
        opened.append(http)
        return await connected(url or server.urls[-1], assistant, version, streaming, http)

    yield connect
    for http in opened:
        await http.aclose()


def says(*parts, **more):
    parts = [Part(text=part) if isinstance(part, str) else ParseDict({"data": part}, Part()) for part in parts]
    message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=parts, **more)
    return SendMessageRequest(message=message)


async def sent(client, request):
    """The task that a message began or continued, once its run is over."""
    (response,) = await collect(client.send_message(request))
    return response.task


def texts(parts):
    return [part.text for part in parts]


async def test_a_message_becomes_a_task_and_its_context_a_thread(connect, graph, sdk):
    client = await connect(graph("agent"))
    task = await sent(client, says("hello there"))
    assert task.status.state == TaskState.TASK_STATE_COMPLETED
    (artifact,) = task.artifacts
    said = texts(artifact.parts)[0]
    assert "hello there" in said
    assert [message.role for message in task.history] == [Role.ROLE_USER, Role.ROLE_AGENT]
    assert (await sdk.threads.get(task.context_id))["status"] == "idle"
    # The next task of the same context is on the same thread, and has a history of its own.
    other = await sent(client, says("again", context_id=task.context_id))
    assert other.context_id == task.context_id and other.id != task.id
    assert [texts(message.parts)[0] for message in other.history][0] == "again"
    read = await client.get_task(GetTaskRequest(id=task.id))
    assert MessageToDict(read) == MessageToDict(task)
    assert len((await client.get_task(GetTaskRequest(id=task.id, history_length=1))).history) == 1
    assert len((await sdk.runs.list(task.context_id))) == 2


async def test_a_stream_says_more_and_more_and_then_what_it_came_to(connect, graph):
    client = await connect(graph("talk"), streaming=True)
    events = await collect(client.send_message(says("go")))
    assert events[0].HasField("task") and events[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    said = [texts(event.status_update.status.message.parts) for event in events if event.HasField("status_update")]
    said = [parts[0] for parts in said if parts]
    assert said == sorted(said, key=len) and said[-1] == "one two three four five six"
    assert events[-2].artifact_update.artifact.parts[0].text == "one two three four five six"
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert {event.status_update.task_id for event in events if event.HasField("status_update")} == {events[0].task.id}


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_question_is_answered_by_the_next_message(connect, graph, streaming):
    client = await connect(graph("human"), streaming=streaming)
    asked = await last_task(client, says({"log": []}))
    assert asked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    (question,) = asked.status.message.parts
    assert MessageToDict(question.data) == {"question": "go on?"}
    ended = await last_task(client, says("yes", task_id=asked.id, context_id=asked.context_id))
    assert ended.id == asked.id and ended.status.state == TaskState.TASK_STATE_COMPLETED
    state = MessageToDict(ended.artifacts[0].parts[0].data)
    assert state["answer"] == "yes" and state["log"][-1] == "done"
    with pytest.raises(UnsupportedOperationError):
        await collect(client.send_message(says("more", task_id=asked.id)))


async def last_task(client, request):
    """The task as it is after a message, streamed or not."""
    events = await collect(client.send_message(request))
    return await client.get_task(GetTaskRequest(id=events[0].task.id))


async def test_a_failed_task_says_why(connect, graph):
    client = await connect(graph("broken"))
    task = await sent(client, says({"log": []}))
    assert task.status.state == TaskState.TASK_STATE_FAILED
    assert "it broke" in task.status.message.parts[0].text


async def test_tasks_are_canceled(connect, graph):
    client = await connect(graph("slow"))
    request = says({"log": []})
    request.configuration.return_immediately = True
    begun = await sent(client, request)
    working = TaskState.TASK_STATE_WORKING

    async def works():
        return (await client.get_task(GetTaskRequest(id=begun.id))).status.state == working

    await eventually("the task to be worked on", works)
    canceled = await client.cancel_task(CancelTaskRequest(id=begun.id))
    assert canceled.status.state == TaskState.TASK_STATE_CANCELED
    with pytest.raises(TaskNotCancelableError):
        await client.cancel_task(CancelTaskRequest(id=begun.id))
    missing = f"{uuid.uuid4()}:{uuid.uuid4()}"
    with pytest.raises(TaskNotFoundError):
        await client.get_task(GetTaskRequest(id=missing))
    with pytest.raises(InvalidParamsError):
        # Text is for graphs with messages.
        await collect(client.send_message(says("hi")))


async def test_tasks_are_listed_in_pages(server, graph):
    async with httpx.AsyncClient(timeout=60) as http:
        client = await connected(server.url, graph("agent"), "1.0", False, http)
        context = (await sent(client, says("one"))).context_id
        ids = [(await sent(client, says(word, context_id=context))).id for word in ("two", "three")]
        first = await client.list_tasks(ListTasksRequest(context_id=context, page_size=2))
        assert [task.id for task in first.tasks] == ids[::-1] and first.total_size == 3
        token = first.next_page_token
        second = await client.list_tasks(ListTasksRequest(context_id=context, page_size=2, page_token=token))
        assert len(second.tasks) == 1 and second.next_page_token == ""


async def test_a_stream_that_was_left_is_subscribed_to_again(connect, graph, server):
    client = await connect(graph("drawl"), streaming=True)
    stream = client.send_message(says("go"))
    first = await anext(stream)
    async for event in stream:
        if event.status_update.status.message.parts:
            break
    await stream.aclose()
    # Another process of the server, where there is one, reads the same log.
    other = await connect(graph("drawl"), streaming=True, url=server.urls[0])
    events = await collect(other.subscribe(SubscribeToTaskRequest(id=first.task.id)))
    assert events[0].task.id == first.task.id
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert events[-2].artifact_update.artifact.parts[0].text == "one two three four five six"
    with pytest.raises(UnsupportedOperationError):
        await collect(other.subscribe(SubscribeToTaskRequest(id=first.task.id)))


async def test_addresses_are_kept_without_showing_their_secrets(connect, graph):
    client = await connect(graph("human"))
    task = await sent(client, says({"log": []}))
    config = TaskPushNotificationConfig(task_id=task.id, id="mine", url="https://hooks.example.com/a", token="t0ken")
    made = await client.create_task_push_notification_config(config)
    assert (made.task_id, made.id, made.url, made.token) == (task.id, "mine", "https://hooks.example.com/a", "")
    got = await client.get_task_push_notification_config(GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine"))
    assert got == made
    listed = ListTaskPushNotificationConfigsRequest(task_id=task.id)
    assert list((await client.list_task_push_notification_configs(listed)).configs) == [made]
    await client.delete_task_push_notification_config(
        DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine"),
    )
    assert not (await client.list_task_push_notification_configs(listed)).configs


async def test_the_extended_card_is_the_card(connect, graph):
    client = await connect(graph("agent"))
    card = await client.get_extended_agent_card(GetExtendedAgentCardRequest())
    assert card.name == graph("agent") and card.capabilities.streaming and card.capabilities.push_notifications


async def test_an_assistant_of_ones_own_is_an_agent_too(sdk, server):
    made = await sdk.assistants.create("agent", name="Repeater", description="Says it again.")
    async with httpx.AsyncClient(timeout=60) as http:
        client = await connected(server.url, made["assistant_id"], "1.0", False, http)
        task = await sent(client, says("hello"))
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        path = f"{server.url}/.well-known/agent-card.json?assistant_id={made['assistant_id']}"
        card = (await http.get(path)).json()
        assert (card["name"], card["description"]) == ("Repeater", "Says it again.")


async def test_a_task_survives_the_death_of_everything_and_its_address_is_told(fleet, receiver, version):
    name = f"a2a-{version}-{fleet.layout}"
    async with httpx.AsyncClient(timeout=60, headers={"A2A-Version": version}) as http:
        client = await connected(fleet.urls[0], "walk", version, True, http)
        request = says({"name": name})
        push = request.configuration.task_push_notification_config
        push.url, push.token = f"{receiver.url}/hook/{name}", "t0ken"
        gate = receiver.hold("two", name)
        stream = client.send_message(request)
        first = await anext(stream)
        await asyncio.to_thread(receiver.until_made, "two", name)
        for process in fleet.processes:
            process.child.send_signal(signal.SIGKILL)
        for process in fleet.processes:
            await asyncio.to_thread(process.child.wait)
        with pytest.raises(A2AClientError):
            await collect(stream)
        gate.set()
        await asyncio.to_thread(fleet.again, fleet.processes)
        events = await collect(client.subscribe(SubscribeToTaskRequest(id=first.task.id)))
        assert events[0].task.id == first.task.id
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    await asyncio.to_thread(receiver.until_made, "hook", name)
    *_, body, headers = receiver.made("hook", name)[0]
    told = json.loads(body)
    told, completed = (told["task"], "TASK_STATE_COMPLETED") if version == "1.0" else (told, "completed")
    assert told["id"] == first.task.id and told["status"]["state"] == completed
    assert {key.lower(): value for key, value in headers.items()}["x-a2a-notification-token"] == "t0ken"
    async with get_client(url=fleet.urls[0], api_key=None) as sdk:
        assert (await sdk.threads.get(first.task.context_id))["status"] == "idle"


def test_a_stranger_reaches_no_task(serve, project):
    project.write(config=CONFIG | {"auth": {"path": "./auth.py:auth"}}, auth=AUTH)
    server, _ = serve()

    def ask(user, method, params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {"authorization": f"Bearer {user}"}
        answer = httpx.post(f"{server.url}/a2a/echo", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            (data,) = [line for line in answer.text.splitlines() if line.startswith("data: ")]
            return json.loads(data.removeprefix("data: "))
        return answer.json()

    def message(**more):
        return {"message": {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "canary"}]} | more}

    task = ask("ann", "SendMessage", message())["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", "it is a task whatever the handler made of its metadata"
    config = {"taskId": task["id"], "id": "mine", "url": "https://hooks.example.com/a"}
    assert ask("ann", "CreateTaskPushNotificationConfig", config)["result"]["id"] == "mine"
    for method, params, code in [
        ("GetTask", {"id": task["id"]}, -32001),
        ("CancelTask", {"id": task["id"]}, -32001),
        ("SubscribeToTask", {"id": task["id"]}, -32001),
        ("CreateTaskPushNotificationConfig", config | {"url": "https://evil.example.com"}, -32001),
        ("GetTaskPushNotificationConfig", {"taskId": task["id"], "id": "mine"}, -32001),
        ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}, -32001),
        ("DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "mine"}, -32001),
        ("SendMessage", message(contextId=task["contextId"]), -32602),
        ("SendStreamingMessage", message(contextId=task["contextId"]), -32602),
        ("SendMessage", message(taskId=task["id"]), -32001),
        ("SendStreamingMessage", message(taskId=task["id"]), -32001),
    ]:
        answer = ask("bob", method, params)
        assert answer.get("error", {}).get("code") == code, (method, answer)
        assert "canary" not in json.dumps(answer), method
    of_bob = ask("bob", "ListTasks", {"historyLength": 5, "includeArtifacts": True})["result"]
    assert (of_bob["tasks"], of_bob["totalSize"]) == ([], 0)
    assert ask("bob", "ListTasks", {"contextId": task["contextId"]})["result"]["tasks"] == []
    of_ann = ask("ann", "ListTasks", {})["result"]
    assert [listed["id"] for listed in of_ann["tasks"]] == [task["id"]] and of_ann["totalSize"] == 1
    assert ask("ann", "GetTask", {"id": task["id"]})["result"] == task
    kept = ask("ann", "ListTaskPushNotificationConfigs", {"taskId": task["id"]})["result"]["configs"]
    assert [one["url"] for one in kept] == [config["url"]]
    # A name of a context is each caller's own: it does not tell whether another one uses it.
    named = [ask(caller, "SendMessage", message(contextId="ours"))["result"]["task"] for caller in ("bob", "ann", "ann")]
    of_ours = [ask(caller, "ListTasks", {"contextId": "ours"})["result"]["tasks"] for caller in ("ann", "bob")]
    assert [[one["id"] for one in tasks] for tasks in of_ours] == [[named[2]["id"], named[1]["id"]], [named[0]["id"]]]

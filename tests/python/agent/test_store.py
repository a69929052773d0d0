"""The long-term store through the official client."""

import uuid

import pytest
from langgraph_sdk.errors import UnprocessableEntityError

from clients import eventually

# In both languages.
pytestmark = pytest.mark.usefixtures("graph")


async def test_an_items_life(client):
    place = ["life", str(uuid.uuid4())]
    assert await client.store.get_item(place, "k") is None
    await client.store.put_item(place, "k", {"n": 1, "deep": {"list": [1, {"x": None}]}})
    item = await client.store.get_item(place, "k")
    assert (item["namespace"], item["key"]) == (place, "k")
    assert item["value"] == {"n": 1, "deep": {"list": [1, {"x": None}]}}
    await client.store.put_item(place, "k", {"n": 2})
    again = await client.store.get_item(place, "k")
    assert again["value"] == {"n": 2}
    assert again["created_at"] == item["created_at"] and again["updated_at"] > item["updated_at"]
    await client.store.delete_item(place, "k")
    assert await client.store.get_item(place, "k") is None
    await client.store.delete_item(place, "k")


async def test_searching(client):
    top = str(uuid.uuid4())
    values = {
        "a": {"n": 1, "kind": "cat", "tags": ["x", "y"], "deep": {"n": 1, "m": "p"}},
        "b": {"n": 2.5, "kind": "dog", "ok": True, 'odd "key".$': "v"},
        "c": {"n": "2", "kind": "cat", "ok": False, "none": None},
    }
    for key, value in values.items():
        await client.store.put_item([top, "pets"], key, value)
    await client.store.put_item([top, "petshop"], "d", {"kind": "cat"})
    await client.store.put_item([top], "e", {"kind": "cat"})

    async def keys(prefix, **filter):
        found = await client.store.search_items(prefix, filter=filter or None)
        return "".join(sorted(item["key"] for item in found["items"]))

    assert await keys([top]) == "abcde"
    assert await keys([top, "pets"]) == "abc", "a namespace is not a prefix of letters"
    assert await keys([top, "pets"], kind="cat") == "ac"
    assert await keys([top, "pets"], n=1) == "a"
    assert await keys([top, "pets"], n="2") == "c"
    assert await keys([top, "pets"], n={"$gt": 1}) == "b", "a text is not compared with a number"
    assert await keys([top, "pets"], n={"$gte": 1, "$lt": 2.5}) == "a"
    assert await keys([top, "pets"], n={"$lte": 2.5}) == "ab"
    assert await keys([top, "pets"], n={"$ne": 1}) == "bc"
    assert await keys([top, "pets"], kind={"$eq": "dog"}) == "b"
    assert await keys([top, "pets"], kind={"$lt": "d"}) == "ac"
    assert await keys([top, "pets"], ok=True) == "b"
    assert await keys([top, "pets"], ok=False) == "c"
    assert await keys([top, "pets"], none=None) == "abc", "a key that is not there is as good as null"
    assert await keys([top, "pets"], tags=["x", "y"]) == "a"
    assert await keys([top, "pets"], tags=["x"]) == ""
    assert await keys([top, "pets"], deep={"n": 1}) == "a"
    assert await keys([top, "pets"], deep={"n": {"$gt": 1}}) == ""
    assert await keys([top, "pets"], **{'odd "key".$': "v"}) == "b"
    with pytest.raises(UnprocessableEntityError, match="filter.n"):
        await client.store.search_items([top], filter={"n": {"$regex": "x"}})

    found = await client.store.search_items([top, "pets"], limit=2)
    assert [item["key"] for item in found["items"]] == ["c", "b"], "last written first"
    assert found["items"][0]["score"] is None
    found = await client.store.search_items([top, "pets"], limit=2, offset=2)
    assert [item["key"] for item in found["items"]] == ["a"]


async def test_namespaces(client):
    top = str(uuid.uuid4())
    for path in (["a", "b", "c"], ["a", "b", "d"], ["a", "x"], ["z", "b", "c"]):
        await client.store.put_item([top, *path], "k", {})

    async def listed(**how):
        found = await client.store.list_namespaces(prefix=[top, *how.pop("below", [])], **how)
        return ["/".join(labels[1:]) for labels in found["namespaces"]]

    assert await listed() == ["a/b/c", "a/b/d", "a/x", "z/b/c"]
    assert await listed(below=["a"]) == ["a/b/c", "a/b/d", "a/x"]
    assert await listed(suffix=["b", "c"]) == ["a/b/c", "z/b/c"]
    assert await listed(max_depth=2) == ["a", "z"]
    assert await listed(limit=2, offset=1) == ["a/b/d", "a/x"]
    assert await listed(below=["*", "b"]) == ["a/b/c", "a/b/d", "z/b/c"]


async def test_items_whose_time_is_over_are_gone(client, sdk):
    place = ["ttl", str(uuid.uuid4())]
    await client.store.put_item(place, "short", {"n": 1}, ttl=0.01)
    await client.store.put_item(place, "long", {"n": 1}, ttl=60)

    async def gone():
        # Without refreshing, or looking would keep it alive.
        found = await sdk.store.search_items(place, refresh_ttl=False)
        return [item["key"] for item in found["items"]] == ["long"]

    await eventually("the item with the short life to be gone", gone)
    assert await client.store.get_item(place, "short") is None
    await client.store.put_item(place, "short", {"n": 2})
    item = await client.store.get_item(place, "short")
    assert item["created_at"] == item["updated_at"], "a new item, not the old one written again"


async def test_what_is_no_item_is_refused(client, http):
    for place, message in [(["a.b"], "periods"), ([], "empty"), ([""], "empty")]:
        answer = await http.put("/store/items", json={"namespace": place, "key": "k", "value": {}})
        assert answer.status_code == 422 and message in answer.json()["detail"], answer.text
    answer = await http.put("/store/items", json={"namespace": ["a"], "key": "k", "value": [1]})
    assert (answer.status_code, answer.json()) == (422, {"detail": "value: expected a map"})
    answer = await http.post("/store/items/search", json={})
    assert (answer.status_code, answer.json()) == (422, {"detail": "namespace_prefix: field required"})
    answer = await http.get("/store/items", params={"namespace": "a"})
    assert (answer.status_code, answer.json()) == (400, {"detail": "Key is required"})



async def test_names_of_any_length(client, http):
    top = uuid.uuid4().hex
    label, key = "ü" * 1000, "k" + "é" * 999
    long, sibling, short = [top, *[label] * 20], [top, *[label] * 19, "x"], [top]
    for place, name, n in [(long, "a", 1), (sibling, "a", 2), (short, key, 3), (long, key, 4), (short, key[:-1] + "è", 5)]:
        await client.store.put_item(place, name, {"n": n})
    # An address holds less than a body.
    item = await client.store.get_item(short, key)
    assert (item["namespace"], item["key"], item["value"]) == (short, key, {"n": 3})

    async def found(place):
        items = (await client.store.search_items(place))["items"]
        assert all(item["namespace"][: len(place)] == place for item in items)
        return sorted(item["value"]["n"] for item in items)

    assert await found(short) == [1, 2, 3, 4, 5]
    assert await found([top, label]) == [1, 2, 4]
    assert await found(long) == [1, 4] and await found(sibling) == [2]
    assert await found([top, label[:-1]]) == []
    namespaces = (await client.store.list_namespaces(prefix=[top]))["namespaces"]
    assert sorted(namespaces) == sorted([short, long, sibling])
    await client.store.put_item(long, key, {"n": 6})
    await client.store.delete_item(long, "a")
    assert await found(long) == [6]
    for place, name in [([label + "ü"], "k"), (["a"] * 101, "k"), (["a"], "k" * 1001)]:
        answer = await http.put("/store/items", json={"namespace": place, "key": name, "value": {}})
        assert answer.status_code == 422, answer.text

"""A program as its author would write it: pushes a prompt, changes it, and pulls its versions. Runs with any release of the official
client; prints what it saw as JSON.

    python prompter.py URL KEY WORKSPACE NAME
"""

import json
import sys

from langchain_core.prompts import ChatPromptTemplate
from langsmith import Client
from langsmith.utils import LangSmithConflictError, LangSmithNotFoundError


def main(url, key, workspace, name):
    client = Client(api_url=url, api_key=key, workspace_id=workspace, web_url=url)
    existed = client.get_prompt(name) is not None
    polite = ChatPromptTemplate([("system", "You keep a lock. Be polite."), ("human", "{question}")])
    short = ChatPromptTemplate([("system", "You keep a lock."), ("human", "{question}")])
    first = client.push_prompt(
        name, object=polite, description="a lock keeper", readme="# Lock", tags=["water"], commit_tags=["production", "v1"],
    )
    second = client.push_prompt(name, object=short, commit_description="shorter")
    try:
        client.push_prompt(name, object=short)
        unchanged = "taken"
    except LangSmithConflictError as error:
        unchanged = "Nothing to commit" in str(error)
    commits = list(client.list_prompt_commits(name))
    one = list(client.list_prompt_commits(name, limit=1))
    newest, oldest = commits
    pull = lambda version: client.pull_prompt(f"{name}{version}", skip_cache=True)
    texts = {
        version: pull(version).invoke({"question": "Open?"}).messages[0].content
        for version in ("", ":latest", ":production", ":v1", f":{newest.commit_hash}", f":{oldest.commit_hash[:8]}")
    }
    raw = client.pull_prompt_commit(f"{name}:v1", skip_cache=True)
    client.update_prompt(name, description="keeps locks", is_archived=True)
    archived = client.list_prompts(is_archived=True, query=name)
    listed = client.list_prompts(query=name)
    client.update_prompt(name, is_archived=False)
    liked = client.like_prompt(name)["likes"], client.get_prompt(name).liked_by_auth_user, client.unlike_prompt(name)["likes"]
    read = client.get_prompt(name)
    made = client.create_prompt(f"{name}-empty", description="empty", tags=["a"])
    committed = client.create_commit(f"{name}-empty", polite, tags="only")
    try:
        client.create_commit(f"{name}-missing", polite)
        missing = "taken"
    except LangSmithNotFoundError:
        missing = True
    client.delete_prompt(f"{name}-empty")
    client.delete_prompt(name)
    print(json.dumps({
        "existed": existed,
        "unchanged": unchanged,
        "urls": [address.startswith(f"{url}/prompts/{name}/") for address in (first, second)],
        "first": first,
        "commits": [commit.description for commit in commits],
        "parent": newest.parent_commit_hash == oldest.commit_hash and str(newest.parent_id) == str(oldest.id),
        "one": [commit.commit_hash == newest.commit_hash for commit in one],
        "texts": sorted(texts.values()),
        "latest": texts[""],
        "hash": raw.commit_hash == oldest.commit_hash,
        "archived": [(prompt.repo_handle, prompt.description) for prompt in archived.repos],
        "listed": listed.total,
        "liked": liked,
        "read": [read.num_commits, read.last_commit_hash == newest.commit_hash, read.tags, read.readme],
        "made": [made.num_commits, made.tags],
        "committed": "-empty/" in committed,
        "missing": missing,
        "gone": client.get_prompt(name) is None,
    }))


main(*sys.argv[1:])

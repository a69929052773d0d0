"""A program as its author would write it: makes a dataset, evaluates two targets on it, compares them. Runs with any release of
the official client; prints what it saw as JSON.

    python evaluator.py URL KEY WORKSPACE NAME
"""

import asyncio
import json
import sys

from langsmith import Client, aevaluate, evaluate
from langsmith.evaluation import evaluate_comparative


def echo(inputs: dict) -> dict:
    return {"answer": inputs["question"]}


async def shout(inputs: dict) -> dict:
    return {"answer": inputs["question"].upper()}


def exact(outputs: dict, reference_outputs: dict) -> dict:
    return {"key": "exact", "score": outputs["answer"] == reference_outputs["answer"]}


def passed(outputs: list, reference_outputs: list) -> dict:
    right = [said["answer"] == known["answer"] for said, known in zip(outputs, reference_outputs)]
    return {"key": "passed", "score": sum(right) / len(right)}


def louder(runs, example) -> dict:
    return {"key": "louder", "scores": {run.id: float(run.outputs["answer"].isupper()) for run in runs}}


def main(url, key, workspace, name):
    client = Client(api_url=url, api_key=key, workspace_id=workspace)
    dataset = client.create_dataset(name, description="questions", metadata={"of": "evaluator"})
    client.create_examples(
        dataset_id=dataset.id,
        examples=[
            {
                "inputs": {"question": question},
                "outputs": {"answer": question},
                "metadata": {"length": len(question)},
                "split": "test" if question == "lock" else "train",
                "attachments": {"note": ("text/plain", question.encode())},
            }
            for question in ("lock", "boat", "canal")
        ],
    )
    first = evaluate(
        echo, data=name, evaluators=[exact], summary_evaluators=[passed], experiment_prefix="echo", client=client,
        max_concurrency=2,
    )
    rows = list(first)

    async def second():
        results = await aevaluate(
            shout, data=client.list_examples(dataset_name=name, splits=["train"]), evaluators=[exact],
            experiment_prefix="shout", client=client,
        )
        return results.experiment_name, [row async for row in results]

    second_name, loud = asyncio.run(second())
    client.flush()
    compared = evaluate_comparative(
        (first.experiment_name, second_name), evaluators=[louder], client=client, max_concurrency=2,
    )
    compared = list(compared)
    client.flush()

    project = client.read_project(project_name=first.experiment_name, include_stats=True)
    results = client.get_experiment_results(name=first.experiment_name)
    made = list(results["examples_with_runs"])
    attached = {
        example.inputs["question"]: example.attachments["note"]["reader"].read().decode()
        for example in client.list_examples(dataset_id=dataset.id, include_attachments=True)
    }
    example = next(iter(client.list_examples(dataset_id=dataset.id, splits=["test"])))
    version = client.read_dataset_version(dataset_id=dataset.id, tag="latest")
    client.update_dataset_tag(dataset_id=dataset.id, as_of=version.as_of, tag="prod")
    client.update_example(example.id, outputs={"answer": "gate"})
    client.update_dataset_splits(dataset_id=dataset.id, split_name="hard", example_ids=[example.id])
    difference = client.diff_dataset_versions(dataset_id=dataset.id, from_version="prod", to_version="latest")
    before = next(iter(client.list_examples(dataset_id=dataset.id, example_ids=[example.id], as_of="prod")))
    seen = {
        "rows": len(rows),
        "exact": [row["evaluation_results"]["results"][0].score for row in rows],
        "loud": len(loud),
        "compared": len(compared),
        "dataset_of_project": str(project.reference_dataset_id) == str(dataset.id),
        "session_feedback": (project.session_feedback_stats or {}).get("passed", {}).get("avg"),
        "feedback": results["feedback_stats"].get("exact", {}).get("n"),
        "results": sorted(row.inputs["question"] for row in made if row.runs),
        "attached": attached,
        "modified": [str(id_) for id_ in difference.examples_modified] == [str(example.id)],
        "before": before.outputs,
        "after": client.read_example(example.id).outputs,
        "splits": client.list_dataset_splits(dataset_id=dataset.id),
        "experiments": len(list(client.list_projects(reference_dataset_id=dataset.id))),
    }
    client.delete_dataset(dataset_id=dataset.id)
    seen["gone"] = not client.has_dataset(dataset_name=name)
    print(json.dumps(seen))


main(*sys.argv[1:])

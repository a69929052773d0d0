"""Evaluations with the official client, unchanged: evaluate, aevaluate, evaluate_comparative and the pytest plugin.

Each test runs on SQLite in one process and on PostgreSQL + Redis with two workers.
"""

import json
import os
import pathlib
import subprocess
import sys
import uuid

import pytest
from langsmith import Client

import harness

# Programs that have the SDK: in the release that the suite itself runs with, and in the newest one.
PROGRAMS = {"pinned": sys.executable, "newest": os.environ.get("TOWPATH_TEST_NEWEST_PYTHON")}
EVALUATOR = pathlib.Path(__file__).with_name("evaluator.py")

CASES = '''
import pytest
from langsmith import testing


@pytest.mark.langsmith
@pytest.mark.parametrize("number", [1, 2])
def test_doubles(number):
    testing.log_inputs({"number": number})
    testing.log_outputs({"double": 2 * number})
    testing.log_reference_outputs({"double": 2 * number})
    testing.log_feedback(key="right", score=True)


@pytest.mark.langsmith
def test_fails():
    testing.log_inputs({"number": 3})
    assert False
'''


def environment(world, **more):
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(world.folder),
        "LANGSMITH_ENDPOINT": f"http://{world.api}",
        "LANGSMITH_API_KEY": harness.KEY,
        "LANGSMITH_WORKSPACE_ID": world.tenant,
        "LANGSMITH_TRACING": "true",
    } | more


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_experiments_are_evaluated_and_compared(world, program):
    python = PROGRAMS[program]
    if python is None:
        pytest.skip("TOWPATH_TEST_NEWEST_PYTHON is not set")
    name = f"questions-{uuid.uuid4()}"
    done = subprocess.run(
        [python, EVALUATOR, f"http://{world.api}", harness.KEY, world.tenant, name],
        env=environment(world), capture_output=True, text=True, timeout=harness.PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {
        "rows": 3,
        "exact": [1, 1, 1],
        "loud": 2,
        "compared": 2,
        "dataset_of_project": True,
        "session_feedback": 1.0,
        "feedback": 3,
        "results": ["boat", "canal", "lock"],
        "attached": {"lock": "lock", "boat": "boat", "canal": "canal"},
        "modified": True,
        "before": {"answer": "lock"},
        "after": {"answer": "gate"},
        "splits": ["hard", "test", "train"],
        "experiments": 2,
        "gone": True,
    }
    # What the client prints leads to a page; it leaves out the port of servers on the same machine.
    assert "/datasets/" in done.stdout and "/compare?selectedSessions=" in done.stdout


def test_the_pytest_plugin_records_cases_as_examples(world, tmp_path):
    (tmp_path / "test_cases.py").write_text(CASES)
    suite = f"cases-{uuid.uuid4()}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_cases.py"],
        cwd=tmp_path, env=environment(world, LANGSMITH_TEST_SUITE=suite), capture_output=True, text=True,
        timeout=harness.PATIENCE_S,
    )
    assert "2 passed" in done.stdout and "1 failed" in done.stdout, done.stdout + done.stderr
    client = Client(api_url=f"http://{world.api}", api_key=harness.KEY, workspace_id=world.tenant)
    dataset = client.read_dataset(dataset_name=suite)
    assert dataset.example_count == 3
    (experiment,) = client.list_projects(reference_dataset_id=dataset.id)
    results = client.get_experiment_results(project_id=experiment.id)
    runs = [run for row in results["examples_with_runs"] for run in row.runs]
    assert sorted(run.error is not None for run in runs) == [False, False, True]
    stats = client.read_project(project_id=experiment.id, include_stats=True).feedback_stats
    assert stats["right"]["n"] == 2
    assert stats["pass"]["n"] == 3


def test_rows_of_a_file_are_examples(world, tmp_path):
    client = Client(api_url=f"http://{world.api}", api_key=harness.KEY, workspace_id=world.tenant)
    file = tmp_path / "questions.csv"
    file.write_text('question,answer\n"which, lock?",the first\n')
    name = f"csv-{uuid.uuid4()}"
    dataset = client.upload_csv(str(file), input_keys=["question"], output_keys=["answer"], name=name)
    (example,) = client.list_examples(dataset_id=dataset.id)
    assert example.inputs == {"question": "which, lock?"}
    assert example.outputs == {"answer": "the first"}
    with pytest.raises(Exception, match="not available in this build"):
        client.share_dataset(dataset_id=dataset.id)

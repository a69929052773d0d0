"""Reading an export back with two readers that are not ours."""

import json
import pathlib

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import expected

TEXT, NANOS, COST = pa.string(), pa.timestamp("ns"), pa.decimal128(20, 10)
MICROS_UTC = pa.timestamp("us", tz="UTC")
SPECIAL = {
    "parent_run_ids": pa.list_(TEXT),
    "tags": pa.list_(TEXT),
    "start_time": NANOS,
    "end_time": NANOS,
    "first_token_time": NANOS,
    "is_root": pa.bool_(),
    "total_tokens": pa.int64(),
    "prompt_tokens": pa.int64(),
    "completion_tokens": pa.int64(),
    "total_cost": COST,
    "prompt_cost": COST,
    "completion_cost": COST,
}


V2 = SPECIAL | {name: MICROS_UTC for name in ("start_time", "end_time", "first_token_time")}


def files(root: pathlib.Path, export: str, tenant: str, project: str, runs="runs") -> list[pathlib.Path]:
    """The files of an export. Each must be at the contract's path."""
    folder = root / f"export_id={export}"
    found = sorted(folder.rglob("*.parquet"))
    for path in found:
        parts = path.relative_to(folder).parts
        assert parts[:3] == (f"tenant_id={tenant}", f"session_id={project}", runs), parts
        year, month, day = (part.split("=") for part in parts[3:6])
        assert (year[0], month[0], day[0]) == ("year", "month", "day"), parts
        assert (len(year[1]), len(month[1]), len(day[1])) == (4, 2, 2), parts
    return found


def manifest(root: pathlib.Path, export: str):
    path = root / f"export_id={export}" / "_manifest.json"
    return json.loads(path.read_text()) if path.exists() else None


def by_pyarrow(found, columns=expected.COLUMNS, types=SPECIAL) -> list[dict]:
    rows = []
    for path in found:
        # One file at a time and not as a dataset: the path's keys must not add columns.
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
        assert schema.names == list(columns), schema.names
        for field in schema:
            wanted = types.get(field.name, TEXT)
            same = field.type == wanted or (pa.types.is_list(wanted) and pa.types.is_list(field.type))
            assert same, f"{field.name} is {field.type}, not {wanted}"
        table = file.read()
        partition = dict(part.split("=") for part in path.parts if part.count("=") == 1)
        if "start_time" in columns:
            days = {moment.date().isoformat() for moment in table["start_time"].to_pylist()}
            assert days == {"{year}-{month}-{day}".format(**partition)}, (days, path)
        rows.extend(table.to_pylist())
    return rows


def by_duckdb(found, columns=expected.COLUMNS) -> list[dict]:
    if not found:
        return []
    with duckdb.connect() as connection:
        names = ", ".join(f'"{name}"' for name in columns)
        # Not partitioned: the file's own columns are asked for, not the path's.
        query = f"SELECT {names} FROM read_parquet($files, hive_partitioning = false)"
        answer = connection.sql(query, params={"files": [str(path) for path in found]})
        return answer.to_arrow_table().to_pylist()


def parsed(row: dict) -> dict:
    """Texts of JSON become values, so that they compare by what they say."""
    return {
        name: expected.exact(value) if name in expected.JSON_COLUMNS and value is not None else value
        for name, value in row.items()
    }


def assert_same(rows: list[dict], wanted: dict):
    """Every row that is wanted, none twice, none else, and every value of each."""
    ids = [row["id"] for row in rows]
    assert len(ids) == len(set(ids)), f"{len(ids) - len(set(ids))} rows came twice"
    missing, foreign = wanted.keys() - set(ids), set(ids) - wanted.keys()
    assert not missing and not foreign, f"{len(missing)} rows are missing, {len(foreign)} are foreign"
    for row in rows:
        got, want = parsed(row), wanted[row["id"]]
        wrong = {name: (got[name], want[name]) for name in got if got[name] != want[name]}
        assert not wrong, f"row {row['id']}: (got, wanted) {wrong}"

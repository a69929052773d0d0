-- Datasets, and what evaluations keep beside traces.

-- A dataset. Clients choose ids, so an id is unique in its workspace only. `version_at` is its newest version; each change of its
-- examples makes one, under the lock of this row.
CREATE TABLE dataset (
    id             uuid NOT NULL,
    tenant_id      uuid NOT NULL,
    name           text NOT NULL,
    description    text,
    data_type      text NOT NULL CHECK (data_type IN ('kv', 'llm', 'chat')),
    inputs_schema  text,  -- JSON object
    outputs_schema text,  -- JSON object
    metadata       text NOT NULL,  -- JSON object
    created_at     timestamptz NOT NULL,
    modified_at    timestamptz NOT NULL,
    version_at     timestamptz NOT NULL,
    example_count  bigint NOT NULL CHECK (example_count >= 0),
    stored_rows    bigint NOT NULL CHECK (stored_rows >= example_count),  -- of `example`, those of earlier versions too
    stored_bytes   bigint NOT NULL CHECK (stored_bytes >= 0),  -- of texts and files
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name)
);
CREATE INDEX dataset_listing ON dataset (tenant_id, created_at DESC, id);

-- When a dataset changed.
CREATE TABLE dataset_version (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL,
    as_of      timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, dataset_id, as_of),
    FOREIGN KEY (tenant_id, dataset_id) REFERENCES dataset (tenant_id, id) ON DELETE CASCADE
);

-- Names of versions. `latest` is none of them: it moves by itself.
CREATE TABLE dataset_tag (
    tenant_id  uuid NOT NULL,
    dataset_id uuid NOT NULL,
    tag        text NOT NULL,
    as_of      timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, dataset_id, tag),
    FOREIGN KEY (tenant_id, dataset_id) REFERENCES dataset (tenant_id, id) ON DELETE CASCADE
);

-- An example as it was from one version of its dataset until another. Rows of earlier versions go with the dataset, or when the
-- example is deleted for good.
CREATE TABLE example (
    tenant_id     uuid NOT NULL,
    dataset_id    uuid NOT NULL,
    example_id    uuid NOT NULL,
    valid_from    timestamptz NOT NULL,
    valid_until   timestamptz CHECK (valid_until > valid_from),
    created_at    timestamptz NOT NULL,
    inputs        text NOT NULL,  -- JSON object
    outputs       text,  -- JSON object
    metadata      text NOT NULL,  -- JSON object; `dataset_split` names the splits
    source_run_id uuid,
    files         text NOT NULL,  -- JSON list of names, types and ids of `example_file`
    bytes         bigint NOT NULL CHECK (bytes >= 0),  -- of the texts
    PRIMARY KEY (tenant_id, example_id, valid_from),
    FOREIGN KEY (tenant_id, dataset_id) REFERENCES dataset (tenant_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX example_current ON example (tenant_id, example_id) WHERE valid_until IS NULL;
CREATE INDEX example_listing ON example (tenant_id, dataset_id, created_at DESC, example_id);
-- Whether a version differs from the one before it: an example begins or ends there. Others are removed, so that a dataset
-- has at most two versions for each row of its examples.
CREATE INDEX example_from ON example (tenant_id, dataset_id, valid_from);
CREATE INDEX example_until ON example (tenant_id, dataset_id, valid_until) WHERE valid_until IS NOT NULL;

-- A file of an example. It is in the database and not an object, so that it comes and goes in the transaction of its rows.
CREATE TABLE example_file (
    tenant_id  uuid NOT NULL,
    id         uuid NOT NULL,
    dataset_id uuid NOT NULL,
    example_id uuid NOT NULL,
    mime_type  text NOT NULL,
    data       bytea NOT NULL,
    bytes      bigint NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, dataset_id) REFERENCES dataset (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX example_file_example ON example_file (tenant_id, example_id);
CREATE INDEX example_file_dataset ON example_file (tenant_id, dataset_id);

-- Experiments of one dataset, judged against each other.
CREATE TABLE comparative_experiment (
    tenant_id      uuid NOT NULL,
    id             uuid NOT NULL,
    dataset_id     uuid NOT NULL,
    name           text,
    description    text,
    extra          text,  -- JSON object
    experiment_ids text NOT NULL,  -- JSON list
    created_at     timestamptz NOT NULL,
    modified_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, dataset_id) REFERENCES dataset (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX comparative_experiment_dataset ON comparative_experiment (tenant_id, dataset_id, created_at DESC, id);

-- How the scores of a key of feedback are meant.
CREATE TABLE feedback_config (
    tenant_id             uuid NOT NULL,
    feedback_key          text NOT NULL,
    id                    uuid NOT NULL,
    config                text NOT NULL,  -- JSON object
    is_lower_score_better boolean NOT NULL,
    modified_at           timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, feedback_key),
    UNIQUE (tenant_id, id)
);

-- Trace runs that people are asked to judge.
CREATE TABLE annotation_queue (
    tenant_id           uuid NOT NULL,
    id                  uuid NOT NULL,
    name                text NOT NULL,
    description         text,
    rubric_instructions text,
    rubric_items        text,  -- JSON list
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name)
);

-- A trace run in a queue.
CREATE TABLE annotation_queue_run (
    tenant_id        uuid NOT NULL,
    queue_id         uuid NOT NULL,
    run_id           uuid NOT NULL,
    added_at         timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, queue_id, run_id),
    FOREIGN KEY (tenant_id, queue_id) REFERENCES annotation_queue (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX annotation_queue_run_order ON annotation_queue_run (tenant_id, queue_id, added_at, run_id);

-- The index of experiments by dataset is made beside the work: see `store/src/postgres/indexes.rs`.

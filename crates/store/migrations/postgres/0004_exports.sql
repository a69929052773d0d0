-- Bulk exports: where they go, what was asked, and one export run per UTC day.

-- `credentials` is sealed; `credentials_keys` names what is in it. An export names its destination without a foreign
-- key: a destination may go, which fails the exports that still need it.
CREATE TABLE destination (
    id               uuid    NOT NULL PRIMARY KEY,
    tenant_id        uuid    NOT NULL,
    destination_type text    NOT NULL CHECK (destination_type IN ('s3', 'file')),
    display_name     text    NOT NULL,
    config           text    NOT NULL,                          -- JSON
    credentials      bytea,
    credentials_keys text    NOT NULL DEFAULT '[]',             -- JSON
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    CHECK (destination_type = 's3' OR credentials IS NULL)
);
CREATE INDEX destination_listing ON destination (tenant_id, created_at DESC, id DESC);

CREATE TABLE export (
    id                    uuid    NOT NULL PRIMARY KEY,
    tenant_id             uuid    NOT NULL,
    destination_id        uuid    NOT NULL,
    project_id            uuid    NOT NULL,
    status                text    NOT NULL CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED',
                                                             'TIMEDOUT')),
    start_time            timestamptz NOT NULL,
    end_time              timestamptz NOT NULL,
    compression           text    NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    export_fields         text,                                 -- JSON; absent is all
    source_bulk_export_id uuid,
    job_id                uuid    NOT NULL,
    error                 text,
    planned               boolean NOT NULL DEFAULT false,           -- its export runs are recorded
    created_at            timestamptz NOT NULL,
    updated_at            timestamptz NOT NULL,
    started_at            timestamptz,
    finished_at           timestamptz,
    UNIQUE (source_bulk_export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
);
CREATE INDEX export_listing ON export (tenant_id, created_at DESC, id DESC);

CREATE TABLE export_run (
    id             uuid    NOT NULL PRIMARY KEY,
    tenant_id      uuid    NOT NULL,
    export_id      uuid    NOT NULL REFERENCES export (id) ON DELETE CASCADE,
    job_id         uuid    NOT NULL,
    status         text    NOT NULL CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED',
                                                      'TIMEDOUT')),
    start_time     timestamptz NOT NULL,
    end_time       timestamptz NOT NULL,
    prefix         text    NOT NULL,                            -- folder of its files
    retry_number   bigint NOT NULL DEFAULT 0,
    errors         text    NOT NULL DEFAULT '{}',               -- JSON: retry_n to text
    rows_written   bigint NOT NULL DEFAULT 0,
    bytes_written  bigint NOT NULL DEFAULT 0,
    files_written  bigint NOT NULL DEFAULT 0,
    latest_cursor  text,                                        -- JSON: last row that lies in a finished file
    pending_upload text,                                        -- JSON: the file that is about to be visible
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    finished_at    timestamptz,
    UNIQUE (export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
);

-- Files that are finished, in the order they were written.
CREATE TABLE export_file (
    export_run_id uuid    NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    seq           bigint NOT NULL,
    path          text    NOT NULL,
    rows          bigint NOT NULL CHECK (rows > 0),
    bytes         bigint NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (export_run_id, seq)
);

-- Uploads in parts that were begun and neither finished nor given up: what a clean-up has to abort.
CREATE TABLE export_upload (
    export_run_id uuid    NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    path          text    NOT NULL,
    upload_id     text    NOT NULL,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (export_run_id, path, upload_id)
);

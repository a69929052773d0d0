-- Bulk exports: where they go, what was asked, and one export run per UTC day.

-- `credentials` is sealed; `credentials_keys` names what is in it. An export names its destination without a foreign
-- key: a destination may go, which fails the exports that still need it.
CREATE TABLE destination (
    id               BLOB    NOT NULL PRIMARY KEY,
    tenant_id        BLOB    NOT NULL,
    destination_type TEXT    NOT NULL CHECK (destination_type IN ('s3', 'file')),
    display_name     TEXT    NOT NULL,
    config           TEXT    NOT NULL,                          -- JSON
    credentials      BLOB,
    credentials_keys TEXT    NOT NULL DEFAULT '[]',             -- JSON
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    CHECK (destination_type = 's3' OR credentials IS NULL)
) STRICT;
CREATE INDEX destination_listing ON destination (tenant_id, created_at DESC, id DESC);

CREATE TABLE export (
    id                    BLOB    NOT NULL PRIMARY KEY,
    tenant_id             BLOB    NOT NULL,
    destination_id        BLOB    NOT NULL,
    project_id            BLOB    NOT NULL,
    status                TEXT    NOT NULL CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED',
                                                             'TIMEDOUT')),
    start_time            INTEGER NOT NULL,
    end_time              INTEGER NOT NULL,
    compression           TEXT    NOT NULL CHECK (compression IN ('none', 'gzip', 'snappy', 'zstandard')),
    export_fields         TEXT,                                 -- JSON; absent is all
    source_bulk_export_id BLOB,
    job_id                BLOB    NOT NULL,
    error                 TEXT,
    planned               INTEGER NOT NULL DEFAULT 0,           -- its export runs are recorded
    created_at            INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    started_at            INTEGER,
    finished_at           INTEGER,
    UNIQUE (source_bulk_export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
) STRICT;
CREATE INDEX export_listing ON export (tenant_id, created_at DESC, id DESC);

CREATE TABLE export_run (
    id             BLOB    NOT NULL PRIMARY KEY,
    tenant_id      BLOB    NOT NULL,
    export_id      BLOB    NOT NULL REFERENCES export (id) ON DELETE CASCADE,
    job_id         BLOB    NOT NULL,
    status         TEXT    NOT NULL CHECK (status IN ('CREATED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED',
                                                      'TIMEDOUT')),
    start_time     INTEGER NOT NULL,
    end_time       INTEGER NOT NULL,
    prefix         TEXT    NOT NULL,                            -- folder of its files
    retry_number   INTEGER NOT NULL DEFAULT 0,
    errors         TEXT    NOT NULL DEFAULT '{}',               -- JSON: retry_n to text
    rows_written   INTEGER NOT NULL DEFAULT 0,
    bytes_written  INTEGER NOT NULL DEFAULT 0,
    files_written  INTEGER NOT NULL DEFAULT 0,
    latest_cursor  TEXT,                                        -- JSON: last row that lies in a finished file
    pending_upload TEXT,                                        -- JSON: the file that is about to be visible
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    finished_at    INTEGER,
    UNIQUE (export_id, start_time),
    CHECK (start_time < end_time),
    CHECK ((finished_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEDOUT')))
) STRICT;

-- Files that are finished, in the order they were written.
CREATE TABLE export_file (
    export_run_id BLOB    NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    seq           INTEGER NOT NULL,
    path          TEXT    NOT NULL,
    rows          INTEGER NOT NULL CHECK (rows > 0),
    bytes         INTEGER NOT NULL CHECK (bytes > 0),
    PRIMARY KEY (export_run_id, seq)
) STRICT;

-- Uploads in parts that were begun and neither finished nor given up: what a clean-up has to abort.
CREATE TABLE export_upload (
    export_run_id BLOB    NOT NULL REFERENCES export_run (id) ON DELETE CASCADE,
    path          TEXT    NOT NULL,
    upload_id     TEXT    NOT NULL,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (export_run_id, path, upload_id)
) STRICT;

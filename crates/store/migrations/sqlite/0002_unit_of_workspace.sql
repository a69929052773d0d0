-- A unit of the write-ahead log belongs to one workspace: it is a range of an object, which holds what several workspaces
-- sent at one time.
--
-- `path` names the object, `byte_offset` and `bytes` the range. A unit at offset 0 is a whole object, which may hold what
-- other workspaces sent, too: builds before this migration registered such units. `shard` is that of the workspace.
-- `ordinal` is the place in the order of acceptance within the shard; it is given when a fold takes the unit. `seq` is the
-- order of registration. A quarantined unit is neither folded nor swept.
--
-- The table is made anew, since SQLite cannot take away a constraint. So is the one that names it, before a row of it goes
-- with the row it names.
CREATE TABLE new_wal_unit (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            BLOB NOT NULL UNIQUE,
    path          TEXT NOT NULL,
    bytes         INTEGER NOT NULL CHECK (bytes > 0),
    operations    INTEGER NOT NULL CHECK (operations >= 0),
    state         TEXT NOT NULL CHECK (state = 'open' OR state = 'folded' OR state = 'quarantined'),
    fold_job      BLOB,  -- the job that folds or folded it
    created_at    INTEGER NOT NULL,
    folded_at     INTEGER,
    tenant_id     BLOB NOT NULL DEFAULT x'00000000000000000000000000000000',
    shard         INTEGER NOT NULL DEFAULT 0 CHECK (shard >= 0),
    byte_offset   INTEGER NOT NULL DEFAULT 0 CHECK (byte_offset >= 0),
    decoded_bytes INTEGER NOT NULL DEFAULT 0 CHECK (decoded_bytes >= 0),
    ordinal       INTEGER,
    CHECK ((state = 'folded') = (folded_at IS NOT NULL))
) STRICT;
CREATE TABLE new_wal_unit_project (
    unit_id    BLOB NOT NULL REFERENCES new_wal_unit (id) ON DELETE CASCADE,
    tenant_id  BLOB NOT NULL,
    project_id BLOB NOT NULL,
    PRIMARY KEY (unit_id, tenant_id, project_id)
) STRICT;

-- Numbers of units that were forgotten are not given again.
INSERT INTO sqlite_sequence (name, seq) SELECT 'new_wal_unit', seq FROM sqlite_sequence WHERE name = 'wal_unit';
INSERT INTO new_wal_unit (seq, id, path, bytes, operations, state, fold_job, created_at, folded_at)
SELECT seq, id, path, bytes, operations, state, fold_job, created_at, folded_at FROM wal_unit;
INSERT INTO new_wal_unit_project (unit_id, tenant_id, project_id)
SELECT unit_id, tenant_id, project_id FROM wal_unit_project;
DROP TABLE wal_unit_project;
DROP TABLE wal_unit;
ALTER TABLE new_wal_unit RENAME TO wal_unit;
ALTER TABLE new_wal_unit_project RENAME TO wal_unit_project;
CREATE INDEX wal_unit_open ON wal_unit (seq) WHERE state = 'open';
CREATE INDEX wal_unit_folded ON wal_unit (folded_at) WHERE state = 'folded';
CREATE INDEX wal_unit_path ON wal_unit (path);
CREATE INDEX wal_unit_open_of ON wal_unit (shard, tenant_id, seq) WHERE state = 'open';
CREATE INDEX wal_unit_project_touches ON wal_unit_project (tenant_id, project_id, unit_id);

-- What the names of projects in a unit mean, since it was registered. `wal_unit_project` is of no use any more; builds
-- before this migration filled it.
CREATE TABLE wal_unit_name (
    unit_id    BLOB NOT NULL REFERENCES wal_unit (id) ON DELETE CASCADE,
    name       TEXT NOT NULL,
    project_id BLOB NOT NULL,
    PRIMARY KEY (unit_id, name)
) STRICT;

-- The number that the next unit of a shard gets.
CREATE TABLE fold_shard (
    shard        INTEGER PRIMARY KEY CHECK (shard >= 0),
    next_ordinal INTEGER NOT NULL CHECK (next_ordinal > 0)
) STRICT;
WITH RECURSIVE given(shard) AS (SELECT 0 UNION ALL SELECT shard + 1 FROM given WHERE shard < 15)
INSERT INTO fold_shard (shard, next_ordinal)
SELECT shard, 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'wal_unit'), 0) FROM given;

-- An open unit becomes one of each workspace that it touches. The first of them keeps the row. The last four bits of an id
-- are its last hexadecimal digit.
INSERT INTO wal_unit (id, path, bytes, operations, state, created_at, tenant_id, shard, ordinal)
SELECT randomblob(16), u.path, u.bytes, u.operations, 'open', u.created_at, p.tenant_id,
       instr('0123456789ABCDEF', substr(hex(p.tenant_id), -1)) - 1, u.seq
FROM wal_unit u JOIN (SELECT DISTINCT unit_id, tenant_id FROM wal_unit_project) p ON p.unit_id = u.id
WHERE u.state = 'open' AND p.tenant_id > (
    SELECT f.tenant_id FROM wal_unit_project f WHERE f.unit_id = u.id ORDER BY f.tenant_id LIMIT 1);
UPDATE wal_unit SET (tenant_id, shard, ordinal) = (
    SELECT f.tenant_id, instr('0123456789ABCDEF', substr(hex(f.tenant_id), -1)) - 1, wal_unit.seq
    FROM wal_unit_project f WHERE f.unit_id = wal_unit.id ORDER BY f.tenant_id LIMIT 1)
WHERE ordinal IS NULL AND state = 'open' AND EXISTS (SELECT 1 FROM wal_unit_project f WHERE f.unit_id = wal_unit.id);
INSERT INTO wal_unit_name (unit_id, name, project_id)
SELECT n.id, p.name, p.id
FROM wal_unit_project t JOIN wal_unit u ON u.id = t.unit_id
JOIN wal_unit n ON n.path = u.path AND n.tenant_id = t.tenant_id
JOIN project p ON p.tenant_id = t.tenant_id AND p.id = t.project_id
WHERE n.state = 'open';

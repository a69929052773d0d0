-- A unit of the write-ahead log belongs to one workspace: it is a range of an object, which holds what several workspaces
-- sent at one time.
--
-- `path` names the object, `byte_offset` and `bytes` the range. A unit at offset 0 is a whole object, which may hold what
-- other workspaces sent, too: builds before this migration register such units, for the nil workspace. `shard` is that of
-- the workspace. `ordinal` is the place in the order of acceptance within the shard; it is given when a fold takes the
-- unit. `seq` is the order of registration. A quarantined unit is neither folded nor swept.
ALTER TABLE wal_unit
    DROP CONSTRAINT wal_unit_path_key,
    DROP CONSTRAINT wal_unit_state_check,
    ADD CONSTRAINT wal_unit_state_check CHECK (state = 'open' OR state = 'folded' OR state = 'quarantined'),
    ADD COLUMN tenant_id     uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    ADD COLUMN shard         smallint NOT NULL DEFAULT 0 CHECK (shard >= 0),
    ADD COLUMN byte_offset   bigint NOT NULL DEFAULT 0 CHECK (byte_offset >= 0),
    ADD COLUMN decoded_bytes bigint NOT NULL DEFAULT 0 CHECK (decoded_bytes >= 0),
    ADD COLUMN ordinal       bigint;
CREATE INDEX wal_unit_path ON wal_unit (path);
CREATE INDEX wal_unit_open_of ON wal_unit (shard, tenant_id, seq) WHERE state = 'open';

-- What the names of projects in a unit mean, since it was registered. `wal_unit_project` is of no use any more; builds
-- before this migration fill it.
CREATE TABLE wal_unit_name (
    unit_id    uuid NOT NULL REFERENCES wal_unit (id) ON DELETE CASCADE,
    name       text NOT NULL,
    project_id uuid NOT NULL,
    PRIMARY KEY (unit_id, name)
);

-- The number that the next unit of a shard gets.
CREATE TABLE fold_shard (
    shard        smallint PRIMARY KEY CHECK (shard >= 0),
    next_ordinal bigint NOT NULL CHECK (next_ordinal > 0)
);
INSERT INTO fold_shard (shard, next_ordinal)
SELECT given.shard, 1 + (SELECT last_value FROM wal_unit_seq_seq) FROM generate_series(0, 15) AS given(shard);

-- An open unit becomes one of each workspace that it touches. The first of them keeps the row.
INSERT INTO wal_unit (id, path, bytes, operations, state, created_at, tenant_id, shard, ordinal)
SELECT gen_random_uuid(), u.path, u.bytes, u.operations, 'open', u.created_at, p.tenant_id,
       get_byte(uuid_send(p.tenant_id), 15) & 15, u.seq
FROM wal_unit u JOIN (SELECT DISTINCT unit_id, tenant_id FROM wal_unit_project) p ON p.unit_id = u.id
WHERE u.state = 'open' AND p.tenant_id > (
    SELECT f.tenant_id FROM wal_unit_project f WHERE f.unit_id = u.id ORDER BY f.tenant_id LIMIT 1);
UPDATE wal_unit SET (tenant_id, shard, ordinal) = (
    SELECT f.tenant_id, get_byte(uuid_send(f.tenant_id), 15) & 15, wal_unit.seq
    FROM wal_unit_project f WHERE f.unit_id = wal_unit.id ORDER BY f.tenant_id LIMIT 1)
WHERE ordinal IS NULL AND state = 'open' AND EXISTS (SELECT 1 FROM wal_unit_project f WHERE f.unit_id = wal_unit.id);
INSERT INTO wal_unit_name (unit_id, name, project_id)
SELECT n.id, p.name, p.id
FROM wal_unit_project t JOIN wal_unit u ON u.id = t.unit_id
JOIN wal_unit n ON n.path = u.path AND n.tenant_id = t.tenant_id
JOIN project p ON p.tenant_id = t.tenant_id AND p.id = t.project_id
WHERE n.state = 'open';

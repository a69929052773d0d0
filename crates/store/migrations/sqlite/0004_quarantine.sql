-- Accepted trace data that could not be folded. It counts as missing until it is folded after all or dropped.
CREATE TABLE quarantine (
    id            BLOB PRIMARY KEY,
    tenant_id     BLOB NOT NULL,
    kind          TEXT NOT NULL CHECK (kind = 'damaged' OR kind = 'rejected' OR kind = 'missing'),
    reason        TEXT NOT NULL,
    path          TEXT NOT NULL,     -- the object that holds its frames, in the format of a unit
    byte_offset   INTEGER NOT NULL,  -- the first byte of its frames there
    bytes         INTEGER NOT NULL,
    decoded_bytes INTEGER NOT NULL,
    items         INTEGER NOT NULL,  -- operations, feedback and attachments
    names         TEXT NOT NULL,     -- JSON object: what the names of projects meant when it was accepted
    projects      TEXT,              -- JSON list of the projects that it may touch; null: any
    first_start   INTEGER,           -- the starts that it may touch; null: any
    last_start    INTEGER,
    accepted_at   INTEGER NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT;
CREATE INDEX quarantine_listing ON quarantine (tenant_id, created_at DESC, id);
CREATE INDEX quarantine_path ON quarantine (path);

-- Frames of an open unit that are folded or quarantined already, counted from its first. More than none only where the
-- unit could not be folded as a whole.
ALTER TABLE wal_unit ADD COLUMN frames_done INTEGER NOT NULL DEFAULT 0;

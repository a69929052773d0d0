-- Accepted trace data that could not be folded. It counts as missing until it is folded after all or dropped.
CREATE TABLE quarantine (
    id            uuid PRIMARY KEY,
    tenant_id     uuid NOT NULL,
    kind          text NOT NULL CHECK (kind = 'damaged' OR kind = 'rejected' OR kind = 'missing'),
    reason        text NOT NULL,
    path          text NOT NULL,    -- the object that holds its frames, in the format of a unit
    byte_offset   bigint NOT NULL,  -- the first byte of its frames there
    bytes         bigint NOT NULL,
    decoded_bytes bigint NOT NULL,
    items         bigint NOT NULL,  -- operations, feedback and attachments
    names         text NOT NULL,    -- JSON object: what the names of projects meant when it was accepted
    projects      text,             -- JSON list of the projects that it may touch; null: any
    first_start   timestamptz,      -- the starts that it may touch; null: any
    last_start    timestamptz,
    accepted_at   timestamptz NOT NULL,
    created_at    timestamptz NOT NULL
);
CREATE INDEX quarantine_listing ON quarantine (tenant_id, created_at DESC, id);
CREATE INDEX quarantine_path ON quarantine (path);

-- Frames of an open unit that are folded or quarantined already, counted from its first. More than none only where the
-- unit could not be folded as a whole.
ALTER TABLE wal_unit ADD COLUMN frames_done bigint NOT NULL DEFAULT 0;

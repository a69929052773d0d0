-- Operations that were in quarantine when the segments of an export were pinned, and so may be missing from it.
ALTER TABLE export ADD COLUMN missing_operations bigint NOT NULL DEFAULT 0 CHECK (missing_operations >= 0);

-- The sweep looks whether objects that were missing are back.
CREATE INDEX quarantine_missing ON quarantine (id) WHERE kind = 'missing';

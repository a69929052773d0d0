-- Operations that were in quarantine when the segments of an export were pinned, and so may be missing from it.
ALTER TABLE export ADD COLUMN missing_operations bigint NOT NULL DEFAULT 0 CHECK (missing_operations >= 0);

-- Before an object is removed, the entries that name it are looked up. The sweep looks for missing objects that are back.
CREATE INDEX quarantine_path ON quarantine (path);
CREATE INDEX quarantine_missing ON quarantine (id) WHERE kind = 'missing';

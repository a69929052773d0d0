-- Since when no revision needs a source archive: one that is being made meanwhile is looked for again before it goes.
ALTER TABLE source_upload ADD COLUMN released_at INTEGER;

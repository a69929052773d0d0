-- Old lines of agent servers are found without reading those of builds, which stay as long as their revision. The index for
-- that is made without locking the table: see `store/src/postgres/indexes.rs`.
SELECT 1;

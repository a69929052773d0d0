-- Which run wrote, so that taking back a run takes back what it wrote on checkpoints that were there before it. Absent:
-- written by an update from outside, or before this column.
ALTER TABLE checkpoint_writes ADD COLUMN run_id TEXT;

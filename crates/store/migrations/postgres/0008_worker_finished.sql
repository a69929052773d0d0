-- How many jobs of each pool a worker has ended an attempt of, in this life: what rates are made of.
-- JSON: pool name to number.
ALTER TABLE worker ADD COLUMN finished TEXT NOT NULL DEFAULT '{}';

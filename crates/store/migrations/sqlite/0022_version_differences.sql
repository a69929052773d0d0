-- Whether a version of a dataset differs from the one before it: an example begins or ends there. Others are removed, so that a
-- dataset has at most two versions for each row of its examples.
CREATE INDEX example_from ON example (tenant_id, dataset_id, valid_from);
CREATE INDEX example_until ON example (tenant_id, dataset_id, valid_until) WHERE valid_until IS NOT NULL;

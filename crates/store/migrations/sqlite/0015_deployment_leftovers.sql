-- Old lines of agent servers are found without reading those of builds, which stay as long as their revision.
CREATE INDEX revision_log_deploy ON revision_log (id) WHERE kind = 'deploy';

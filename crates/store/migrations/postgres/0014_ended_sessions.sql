-- Sessions that were ended before their time. A session is a sealed token and is kept nowhere; that it was ended has to
-- be remembered until it would have ended by itself.
CREATE TABLE ended_session (
    token      bytea NOT NULL PRIMARY KEY,                      -- SHA-256 of it
    expires_at timestamptz NOT NULL
);
CREATE INDEX ended_session_by_expiry ON ended_session (expires_at);

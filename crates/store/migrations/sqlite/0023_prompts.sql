-- Prompts with their commits, as clients push and pull them.

-- A prompt. `last_seq` and `last_commit_hash` are those of its newest commit. Each change of its commits, tags and likes happens
-- under the lock of this row.
CREATE TABLE prompt (
    id               BLOB NOT NULL,
    tenant_id        BLOB NOT NULL,
    name             TEXT NOT NULL,
    description      TEXT,
    readme           TEXT,
    labels           TEXT NOT NULL,  -- JSON list of texts
    is_archived      INTEGER NOT NULL,
    last_seq         INTEGER NOT NULL CHECK (last_seq >= 0),
    last_commit_hash TEXT,
    commit_count     INTEGER NOT NULL CHECK (commit_count >= 0),
    like_count       INTEGER NOT NULL CHECK (like_count >= 0),
    stored_bytes     INTEGER NOT NULL CHECK (stored_bytes >= 0),  -- of the manifests
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name)
) STRICT;
CREATE INDEX prompt_listing ON prompt (tenant_id, updated_at DESC, id);

-- A version of a prompt. The parent is named by its hash, because it may be deleted first.
CREATE TABLE prompt_commit (
    id            BLOB NOT NULL,
    tenant_id     BLOB NOT NULL,
    prompt_id     BLOB NOT NULL,
    seq           INTEGER NOT NULL,
    hash          TEXT NOT NULL,
    parent_hash   TEXT,
    manifest      TEXT NOT NULL,  -- JSON object
    manifest_hash TEXT NOT NULL,
    description   TEXT,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, seq),
    UNIQUE (tenant_id, prompt_id, hash),
    UNIQUE (tenant_id, prompt_id, id),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
) STRICT;

-- Names of commits. `latest` is none of them: it moves by itself.
CREATE TABLE prompt_tag (
    tenant_id  BLOB NOT NULL,
    prompt_id  BLOB NOT NULL,
    name       TEXT NOT NULL,
    id         BLOB NOT NULL,
    commit_seq INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, name),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
) STRICT;

-- Keys whose holders like a prompt.
CREATE TABLE prompt_like (
    tenant_id BLOB NOT NULL,
    prompt_id BLOB NOT NULL,
    key_id    BLOB NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, key_id),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
) STRICT;

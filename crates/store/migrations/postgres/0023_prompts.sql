-- Prompts with their commits, as clients push and pull them.

-- A prompt. `last_seq` and `last_commit_hash` are those of its newest commit. Each change of its commits, tags and likes happens
-- under the lock of this row.
CREATE TABLE prompt (
    id               uuid NOT NULL,
    tenant_id        uuid NOT NULL,
    name             text NOT NULL,
    description      text,
    readme           text,
    labels           text NOT NULL,  -- JSON list of texts
    is_archived      boolean NOT NULL,
    last_seq         bigint NOT NULL CHECK (last_seq >= 0),
    last_commit_hash text,
    commit_count     bigint NOT NULL CHECK (commit_count >= 0),
    like_count       bigint NOT NULL CHECK (like_count >= 0),
    stored_bytes     bigint NOT NULL CHECK (stored_bytes >= 0),  -- of the manifests
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, name)
);
CREATE INDEX prompt_listing ON prompt (tenant_id, updated_at DESC, id);

-- A version of a prompt. The parent is named by its hash, because it may be deleted first.
CREATE TABLE prompt_commit (
    id            uuid NOT NULL,
    tenant_id     uuid NOT NULL,
    prompt_id     uuid NOT NULL,
    seq           bigint NOT NULL,
    hash          text NOT NULL,
    parent_hash   text,
    manifest      text NOT NULL,  -- JSON object
    manifest_hash text NOT NULL,
    description   text,
    created_at    timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, seq),
    UNIQUE (tenant_id, prompt_id, hash),
    UNIQUE (tenant_id, prompt_id, id),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
);

-- Names of commits. `latest` is none of them: it moves by itself.
CREATE TABLE prompt_tag (
    tenant_id  uuid NOT NULL,
    prompt_id  uuid NOT NULL,
    name       text NOT NULL,
    id         uuid NOT NULL,
    commit_seq bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, name),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
);

-- Keys whose holders like a prompt.
CREATE TABLE prompt_like (
    tenant_id uuid NOT NULL,
    prompt_id uuid NOT NULL,
    key_id    uuid NOT NULL,
    PRIMARY KEY (tenant_id, prompt_id, key_id),
    FOREIGN KEY (tenant_id, prompt_id) REFERENCES prompt (tenant_id, id) ON DELETE CASCADE
);

-- Reading traces back: feedback can be changed and taken back, projects can end and go.

-- When its body was last changed by hand.
ALTER TABLE feedback ADD COLUMN modified_at timestamptz;
-- A row that stays says that an older word still to be folded counts no more.
ALTER TABLE feedback ADD COLUMN deleted boolean NOT NULL DEFAULT false;
CREATE INDEX feedback_listing ON feedback (tenant_id, seq DESC, id);

ALTER TABLE project ADD COLUMN end_time timestamptz;

-- Ids of projects that are gone. Their trace runs are not shown any more, so the ids are not given out again.
CREATE TABLE project_gone (
    tenant_id uuid NOT NULL,
    id        uuid NOT NULL,
    gone_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);

-- Reading traces back: feedback can be changed and taken back, projects can end.

-- When its body was last changed by hand.
ALTER TABLE feedback ADD COLUMN modified_at timestamptz;
-- A row that stays says that an older word still to be folded counts no more.
ALTER TABLE feedback ADD COLUMN deleted boolean NOT NULL DEFAULT false;
-- `feedback_source.type` of the body.
ALTER TABLE feedback ADD COLUMN source text;
CREATE INDEX feedback_listing ON feedback (tenant_id, seq DESC, id);

ALTER TABLE project ADD COLUMN end_time timestamptz;

-- Which trace runs an export leaves in, in the filter language. Of exports and of schedules; absent is all.
CREATE TABLE export_filter (
    id        uuid NOT NULL PRIMARY KEY,
    tenant_id uuid NOT NULL,
    filter    text NOT NULL
);

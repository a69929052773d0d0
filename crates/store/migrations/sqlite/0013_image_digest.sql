-- What pulls an image again that a revision deployed: its repository and its digest. A tag may be another image by then.
ALTER TABLE revision_artifact ADD COLUMN image TEXT;

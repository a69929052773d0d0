-- The name that a client gave the context of a task, where it is not the id of its thread. The id of such a thread is
-- computed from the name.
ALTER TABLE a2a_task ADD COLUMN context TEXT;

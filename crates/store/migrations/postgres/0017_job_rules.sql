-- For SQLite only: PostgreSQL looks up a list in a rule as fast as it compares. The number is taken in both.
SELECT 1;

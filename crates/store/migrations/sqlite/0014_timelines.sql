-- Histories of the database: a file has one.
CREATE TABLE kb.toolwharf_timelines (
    id TEXT NOT NULL PRIMARY KEY,
    since TEXT NOT NULL
) STRICT;

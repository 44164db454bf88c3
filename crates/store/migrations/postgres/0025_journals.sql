-- The journals of tool calls. Only SQLite has any.
CREATE TABLE kb.toolwharf_journals (
    file TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    position BIGINT NOT NULL,
    hash TEXT NOT NULL,
    ended BIGINT NOT NULL
);

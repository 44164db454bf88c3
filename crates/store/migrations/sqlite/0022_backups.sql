-- The last scheduled backup that succeeded, and the last one that failed. `reason` says why it failed.
CREATE TABLE kb.toolwharf_backups (
    outcome TEXT NOT NULL PRIMARY KEY CHECK (outcome IN ('ok', 'failed')),
    at TEXT NOT NULL,
    host TEXT NOT NULL,
    place TEXT NOT NULL,
    bytes INTEGER,
    reason TEXT
) STRICT;

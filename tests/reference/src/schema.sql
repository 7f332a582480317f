-- One row for each chunk that a server is thought to hold. A chunk's hash is that of all chunks
-- up to it, so its depth in a prompt follows from its hash. Of equal times the later call is the
-- later use: otherwise a prompt could push out its own tail for older ones that are shorter.
CREATE TABLE held (
    server    TEXT NOT NULL,
    hash      INTEGER NOT NULL,
    depth     INTEGER NOT NULL,
    last_used REAL NOT NULL,
    call      INTEGER NOT NULL,
    PRIMARY KEY (server, hash)
) WITHOUT ROWID;

CREATE INDEX oldest ON held (server, last_used, call, depth);

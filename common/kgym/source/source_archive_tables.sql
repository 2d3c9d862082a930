CREATE TABLE about (changes TEXT NOT NULL);
-- kind: file, binary, link; body: compressed text, or where a link leads
CREATE TABLE file (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, body BLOB
);
CREATE TABLE folder (path TEXT NOT NULL, name TEXT NOT NULL, file INTEGER,
    PRIMARY KEY (path, name)) WITHOUT ROWID;
CREATE TABLE word (word BLOB PRIMARY KEY, files BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE words (text BLOB NOT NULL);
CREATE TABLE symbol (
    name BLOB NOT NULL, file INTEGER NOT NULL, line INTEGER NOT NULL, last INTEGER NOT NULL,
    kind TEXT NOT NULL
);

-- :make_meta  which store this index is of, and how far it is
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- :make_ranks  one row per indexed text: order among equal scores, and the score of a word in it
CREATE TABLE ranks (
    seq        INTEGER PRIMARY KEY,       -- of the event
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    thread     INTEGER NOT NULL,          -- what its author stored that day under the same `d`
    once       INTEGER NOT NULL,
    repeated   INTEGER NOT NULL,
    frequent   INTEGER NOT NULL
);

-- :make_texts  the texts again: a contentless table needs them to delete a row
CREATE TABLE texts (
    seq   INTEGER PRIMARY KEY,
    kind  INTEGER NOT NULL,
    stems TEXT NOT NULL,                  -- first: read without the pages of a long text
    text  TEXT NOT NULL
);

-- :make_words  contentless and without column sizes, as nothing is ranked by statistics; a tab is a
-- sign of tokens, because no text has one: a token for a kind has no other rows
CREATE VIRTUAL TABLE words USING fts5(
    text, repeated, frequent, kind, content='', columnsize=0,
    tokenize='porter unicode61 remove_diacritics 2 tokenchars ''	'''
);

-- :make_tokens  what the tokenizer made of the texts
CREATE VIRTUAL TABLE tokens USING fts5vocab(words, instance);

-- :tokens  -> rowid, place, token
SELECT doc, offset, term FROM tokens WHERE col = 'text';

-- :listed_tokens  -> those of the only text, in their order
SELECT group_concat(term, ' ') FROM (SELECT term FROM tokens WHERE col = 'text' ORDER BY offset);

-- :make_vectors  384 signed bytes for each text that was compared, see meanings.py
CREATE TABLE IF NOT EXISTS vectors (seq INTEGER PRIMARY KEY, vector BLOB NOT NULL);

-- :next_texts  seq, last seq, limit -> seq, text of later texts
SELECT seq, text FROM texts WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?;

-- :add_vector  vector, seq: if the text is still there
INSERT OR REPLACE INTO vectors (vector, seq) SELECT ?, seq FROM texts WHERE seq = ?;

-- :vectors  after, limit -> seq, vector
SELECT seq, vector FROM vectors WHERE seq > ? ORDER BY seq LIMIT ?;

-- :has_vectors  [seq] -> those that have one
SELECT v.seq FROM json_each(?) AS j CROSS JOIN vectors AS v ON v.seq = j.value;

-- :drop_vector  seq
DELETE FROM vectors WHERE seq = ?;

-- :empty_vectors
DELETE FROM vectors;

-- :count_tables  -> how many tables and indices the file has
SELECT count(*) FROM sqlite_master;

-- :put_meta  name, value
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?);

-- :get_meta  name -> value
SELECT value FROM meta WHERE name = ?;

-- :log  seq, limit -> seq, raw, id_key of later events, in order
SELECT seq, raw, id_key FROM store.events WHERE seq > ? ORDER BY seq LIMIT ?;

-- :log_of_kinds  [kind], last seq, seq, limit -> the same of later events of these kinds
SELECT seq, raw, id_key FROM store.events
WHERE +kind IN (SELECT value FROM json_each(?)) AND seq <= ? AND seq > ? ORDER BY seq LIMIT ?;

-- :indexed  [seq] -> those that have a text here
SELECT r.seq FROM json_each(?) AS j CROSS JOIN ranks AS r ON r.seq = j.value;

-- :add_words  seq, text, repeated, frequent, kind
INSERT INTO words (rowid, text, repeated, frequent, kind) VALUES (?, ?, ?, ?, ?);

-- :add_rank  seq, created_at, id_key, thread, once, repeated, frequent
INSERT INTO ranks (seq, created_at, id_key, thread, once, repeated, frequent)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- :add_text  seq, kind, stems, text
INSERT INTO texts (seq, kind, stems, text) VALUES (?, ?, ?, ?);

-- :texts_of  [seq], seq, limit -> seq, text, kind of those after it, in order
SELECT seq, text, kind FROM texts WHERE seq IN (SELECT value FROM json_each(?)) AND seq > ?
ORDER BY seq LIMIT ?;

-- :drop_words  seq, text, repeated, frequent, kind: the values that were added
INSERT INTO words (words, rowid, text, repeated, frequent, kind) VALUES ('delete', ?, ?, ?, ?, ?);

-- :any_words  -> at most one row; an error when the index cannot be opened
SELECT 1 FROM words WHERE words MATCH 'a' LIMIT 1;

-- :drop_rank  seq
DELETE FROM ranks WHERE seq = ?;

-- :drop_text  seq
DELETE FROM texts WHERE seq = ?;

-- :next_ranks  seq, limit -> seq of later rows
SELECT seq FROM ranks WHERE seq > ? ORDER BY seq LIMIT ?;

-- :gone  [seq] -> seq of those whose events are deleted
SELECT j.value FROM json_each(?) AS j WHERE NOT EXISTS (
    SELECT 1 FROM store.events AS e WHERE e.seq = j.value
);

-- :merge  pages: rewrite so much of the index without deleted words; negative: begin with all of it
INSERT INTO words (words, rank) VALUES ('merge', ?);

-- :empty_words
INSERT INTO words (words) VALUES ('delete-all');

-- :empty_ranks
DELETE FROM ranks;

-- :empty_texts
DELETE FROM texts;

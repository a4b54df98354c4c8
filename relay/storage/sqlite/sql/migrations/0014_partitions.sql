-- Rows of guarded groups get partitions of their own: nobody passes over those of others. The start
-- notes which groups are guarded, and their rows are moved while the relay runs.
INSERT INTO meta (name, value) VALUES ('unplaced', 1);
ALTER TABLE events ADD COLUMN partition INTEGER NOT NULL DEFAULT 0;
ALTER TABLE groups ADD COLUMN partition INTEGER;
CREATE TABLE partition_moves (
    grp  TEXT PRIMARY KEY,
    kind INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    upto INTEGER NOT NULL
) WITHOUT ROWID;
DROP INDEX events_time;
DROP INDEX events_kind;
DROP INDEX events_group;
CREATE INDEX events_time   ON events (created_at DESC, id_key, seq, partition, kind);
CREATE INDEX events_kind   ON events (partition, kind, created_at DESC, id_key, grp, expires_at);
CREATE INDEX events_group  ON events (grp, kind) WHERE grp IS NOT NULL;
-- In place of 256 classes for all kinds from 256, known kinds have a class each, and all others share
-- 32. OR IGNORE: a tag may be left of a row that is gone; it gets no class.
ALTER TABLE tags RENAME TO former_tags;
CREATE TABLE tags (
    hash       INTEGER NOT NULL,
    kind_class INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    id_key     INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (hash, kind_class, created_at DESC, id_key, seq)
) WITHOUT ROWID;
INSERT OR IGNORE INTO tags SELECT t.hash, iif(t.kind_class <= 64, t.kind_class, (
    SELECT iif(e.kind IN (
        78, 443, 444, 445, 818, 1018, 1021, 1022, 1040, 1059, 1063, 1068, 1080, 1081,
        1082, 1111, 1121, 1222, 1234, 1244, 1311, 1312, 1337, 1617, 1618, 1619, 1621, 1622,
        1630, 1631, 1632, 1633, 1634, 1635, 1636, 1637, 1971, 1984, 1985, 1986, 1987, 1988,
        1989, 2003, 2004, 2022, 4129, 4550, 7000, 7374, 7375, 7376, 7516, 7517, 8000, 8001,
        9000, 9001, 9002, 9003, 9004, 9005, 9006, 9007, 9008, 9009, 9010, 9011, 9012, 9013,
        9014, 9015, 9016, 9017, 9018, 9019, 9020, 9021, 9022, 9023, 9024, 9025, 9026, 9027,
        9028, 9029, 9030, 9041, 9321, 9467, 9734, 9735, 9802, 10000, 10001, 10002, 10003,
        10004, 10005, 10006, 10007, 10008, 10009, 10011, 10012, 10013, 10015, 10019, 10020,
        10030, 10050, 10051, 10054, 10063, 10064, 10096, 10101, 10102, 10154, 10166, 10312,
        10317, 13194, 13534, 14199, 15128, 17375, 19004, 30000, 30002, 30003, 30004, 30005,
        30006, 30007, 30008, 30009, 30015, 30017, 30018, 30019, 30020, 30023, 30024, 30030,
        30040, 30041, 30063, 30078, 30090, 30091, 30092, 30093, 30094, 30095, 30096, 30097,
        30100, 30101, 30166, 30174, 30175, 30179, 30267, 30300, 30311, 30312, 30313, 30315,
        30350, 30382, 30383, 30384, 30385, 30388, 30402, 30403, 30443, 30617, 30618, 30818,
        30819, 31121, 31122, 31234, 31388, 31890, 31922, 31923, 31924, 31925, 31988, 31989,
        31990, 31991, 32267, 33534, 34235, 34236, 34550, 35128, 37516, 38172, 38173, 38383,
        39000, 39001, 39002, 39003, 39004, 39005, 39006, 39007, 39008, 39009, 39041, 39089,
        39092, 39701, 40002, 40003, 40100, 43001, 44100, 44101, 44200, 45001, 46020
    ), e.kind, e.kind & 31 | 256)
    FROM events AS e WHERE e.seq = t.seq
)), t.created_at, t.id_key, t.seq FROM former_tags AS t;
DROP TABLE former_tags;
